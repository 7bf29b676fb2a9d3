"""Retention: bytes that are left alone while groups run of which a device may make one call.

A device makes one call of groups that follow each other if none of them writes what another one
touches, for the parts of a call run in any order. Which groups those are it names in
``DeviceFacts.neighbours``. What they touch keeps its bytes until the last of them has run. A result
may take the place of an operand if no other of them touches either: one that others read is
computed by each part of the call that needs it. It is a hint: without it the plan is just as
correct, and the device runs the groups one by one.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ggsched.ir.graph import Graph
from ggsched.passes.memory.interference import Interferes
from ggsched.passes.order.liveness import Liveness
from ggsched.plan.fusions import Fusion
from ggsched.plan.memory import Life
from ggsched.plan.splits import Split, Splits
from ggsched.plan.streams import Streams
from ggsched.topology.model import Topology

MAX_NBYTES: Final = 1 << 19
"""Bytes that one call may keep beyond their lives. One call of several groups saves time where they
are small, as in decoding: four tokens of the largest models have less to rotate."""

Row = tuple[list[str], list[tuple[int, ...]]]
"""Groups that follow each other on a stream: what they are called, and their nodes."""


@dataclass(frozen=True, slots=True)
class Retention:
    """Hints to ``allocate``.

    Attributes:
        until: For some values the step until which no other value gets their bytes.
        held: For the last node of each of the groups the values whose bytes its result does not
            take over, because others touch them or the result.
    """

    until: Mapping[int, int] = field(default_factory=dict)
    held: Mapping[int, frozenset[int]] = field(default_factory=dict)

    def extend(
        self, members: Sequence[Sequence[int]], windows: list[Life], apart: Interferes | None
    ) -> tuple[list[Life], Interferes | None]:
        """Return what ``ReuseOrder.live_ranges`` returned, with the hints added."""
        until = self.until
        ends = [max((until[v] for v in ids if v in until), default=-1) for ids in members]
        longer = [Life(w.birth, max(w.death, end)) for w, end in zip(windows, ends, strict=True)]
        if apart is None:
            return longer, None

        def are_apart(i: int, j: int) -> bool:
            if windows[i].birth > windows[j].birth:
                i, j = j, i
            return windows[j].birth > ends[i] and apart(i, j)

        return longer, are_apart


def find_retention(
    graph: Graph,
    topology: Topology,
    splits: Splits,
    streams: Streams,
    fusions: Sequence[Fusion],
    live: Liveness,
) -> Retention:
    """Return the hints for a machine. Takes time in proportion to the graph."""
    wanted = [_by_first(facts.neighbours) for facts in topology.devices]
    if not any(wanted[s.device] for s in splits.splits):
        return Retention()
    groups = {f.nodes[-1]: f for f in fusions}
    inside = {n for f in fusions for n in f.nodes[:-1]}
    until: dict[int, int] = {}
    held: dict[int, frozenset[int]] = {}
    for s in splits.splits:
        for names, nodes in _rows(graph, s, streams, groups, inside) if wanted[s.device] else ():
            for at, end in _matches(names, wanted[s.device]):
                rows = [{v for n in group for v in splits.bindings[n]} for group in nodes[at:end]]
                seen = set().union(*rows)
                last = live.node_step[nodes[end - 1][-1]]
                dead = [v for v in seen if live.lives[v].death < last]
                if sum(splits.values[v].nbytes for v in dead) > MAX_NBYTES:
                    continue
                until.update((v, max(until.get(v, 0), last)) for v in dead)
                for group, touched in zip(nodes[at:end], rows, strict=True):
                    others = set().union(*(row for row in rows if row is not touched))
                    is_read = splits.bindings[group[-1]][-1] in others
                    kept = touched if is_read else touched & others
                    held[group[-1]] = held.get(group[-1], frozenset()) | kept
    return Retention(until, held)


def _by_first(neighbours: Iterable[str]) -> dict[str, list[list[str]]]:
    """Return the sequences by what they begin with."""
    by_first: dict[str, list[list[str]]] = {}
    for names in sorted(neighbours):
        sequence = names.split(", ")
        by_first.setdefault(sequence[0], []).append(sequence)
    return by_first


def _rows(
    graph: Graph,
    split: Split,
    streams: Streams,
    groups: Mapping[int, Fusion],
    inside: Iterable[int],
) -> Iterable[Row]:
    """Return for each stream of a split the groups that it runs, in order."""
    rows: dict[int, Row] = {}
    for n in range(split.first, split.end):
        if n not in inside:
            names, nodes = rows.setdefault(streams.of_node[n], ([], []))
            f = groups.get(n)
            names.append(graph.nodes[n].op if f is None else f.pattern)
            nodes.append((n,) if f is None else f.nodes)
    return rows.values()


def _matches(
    names: Sequence[str], by_first: Mapping[str, list[list[str]]]
) -> Iterator[tuple[int, int]]:
    """Yield where a sequence begins and ends."""
    for at, name in enumerate(names):
        for sequence in by_first.get(name, ()):
            end = at + len(sequence)
            if names[at:end] == sequence:
                yield at, end
