"""The obvious checker of a plan: a graph of what comes before what, closed, and all pairs compared.

One run of a plan becomes a graph of its commands. Its transitive closure says which are ordered;
any two that touch common bytes, one of them writing, must be. It is written from the contract's
rules on streams and events (STR-1, STR-5, EVT-1, EVT-2) for devices that keep copies and launches
of a stream in order, and shares no code with ``ggsched.sanitize``, from which it differs in that it
looks at one run only and at races only.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations

import networkx as nx

from ggsched.plan.bundle import Plan
from ggsched.plan.command import (
    Barrier,
    Copy,
    Download,
    HostSync,
    Launch,
    Record,
    Upload,
    Wait,
)
from ggsched.plan.memory import Region

BEFORE = -1
"""What stands for the host before it enqueues anything: it writes the inputs."""

Pair = tuple[int, int]


def races(plan: Plan, closure: type["NetworkxClosure"] | type["BitClosure"]) -> list[Pair]:
    """Return the pairs of commands that race; the host after the last is ``len(plan.commands)``.

    Args:
        plan: A plan without ``CopyRows``, for devices whose streams are in order as a whole.
        closure: How reachability is computed.

    Raises:
        ValueError: a plan that this checker does not understand.
    """
    order = closure(list(edges(plan)), len(plan.commands) + 1)
    touched: dict[int, list[tuple[int, int, int, bool]]] = {}
    for command, region, writes in accesses(plan):
        touched.setdefault(region.arena, []).append((region.offset, region.end, command, writes))
    found = set()
    for spans in touched.values():
        for (start, end, a, a_writes), (first, last, b, b_writes) in combinations(spans, 2):
            if a != b and (a_writes or b_writes) and start < last and first < end:
                a, b = min(a, b), max(a, b)
                if not order.comes_before(a, b) and not order.comes_before(b, a):
                    found.add((a, b))
    return sorted(found)


def edges(plan: Plan) -> Iterator[Pair]:
    """Yield who comes before whom, directly.

    Raises:
        ValueError: a device with other rules, or a command that copies rows.
    """
    if any(d.copy_order != "stream" or d.snapshots_uploads for d in plan.devices):
        raise ValueError(f"{plan.name}: a device orders copies and launches in another way")
    last: dict[int, int] = {}  # by stream
    recorded: dict[int, int] = {}  # by event
    host = BEFORE
    for c in plan.commands:
        match c:
            case Upload() | Download() | Copy() | Launch() | Record() | Wait() | Barrier():
                yield host, c.id
                if c.stream in last:
                    yield last[c.stream], c.id
                last[c.stream] = c.id
                if isinstance(c, Record):
                    recorded[c.event] = c.id
                if isinstance(c, Wait):
                    yield recorded[c.event], c.id
            case HostSync():
                yield host, c.id
                awaited = last.get(c.stream) if c.event is None else recorded[c.event]
                if awaited is not None:
                    yield awaited, c.id
                host = c.id
            case _:
                raise ValueError(f"{plan.name}: command {c.id} is not one of those known here")
    yield host, len(plan.commands)


def accesses(plan: Plan) -> Iterator[tuple[int, Region, bool]]:
    """Yield (command, bytes, whether they are written), with those of the host."""
    regions, end = plan.memory.regions, len(plan.commands)
    yield from ((BEFORE, regions[slot.value], True) for slot in plan.inputs)
    for c in plan.commands:
        if isinstance(c, Upload | Download | Copy):
            yield c.id, c.src, False
            yield c.id, c.dst, True
        elif isinstance(c, Launch):
            yield from ((c.id, r, False) for r in c.reads)
            yield from ((c.id, r, True) for r in c.writes)
    yield from ((end, regions[slot.value], False) for slot in plan.outputs)


class NetworkxClosure:
    """The transitive closure by networkx: an edge for each ordered pair."""

    def __init__(self, pairs: Iterable[Pair], end: int) -> None:
        """Close a graph of the nodes from ``BEFORE`` to ``end`` (not included)."""
        graph: nx.DiGraph[int] = nx.DiGraph()
        graph.add_nodes_from(range(BEFORE, end))
        graph.add_edges_from(pairs)
        closed = nx.transitive_closure_dag(graph)
        self._after: Mapping[int, Mapping[int, object]] = closed.adj

    def comes_before(self, a: int, b: int) -> bool:
        """Whether ``a`` is over before ``b`` begins."""
        return b in self._after[a]


class BitClosure:
    """The same with an integer of n bits for each node, which bears 20,000 of them."""

    def __init__(self, pairs: Sequence[Pair], end: int) -> None:
        """Close a graph in which edges lead to higher numbers only, listed by their ends."""
        self._before = [0] * (end + 1)
        for a, b in pairs:
            self._before[b + 1] |= self._before[a + 1] | 1 << (a + 1)

    def comes_before(self, a: int, b: int) -> bool:
        """Whether ``a`` is over before ``b`` begins."""
        return bool(self._before[b + 1] >> (a + 1) & 1)
