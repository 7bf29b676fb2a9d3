"""Visibility: what is known to be complete at each step, whatever the memory plan will be.

The order of the program on streams, with the waits that the data flow alone needs, is found by
planning the synchronisation of its data flow, as if no bytes were shared. From it follows for each
step what every lane is known to have finished by then. Two values may share bytes exactly when
every access to the one is known to be complete before the first write of the other; then no wait
exists for memory's sake. Computed once, as vectors over lanes, and asked by bisection. It
generalises the table of positions at which a result becomes visible to each stream that was
proposed for ggml (in the thread of llama.cpp #16991).
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ggsched.ir.graph import Graph
from ggsched.passes.order.dataflow import find_dependencies
from ggsched.passes.order.hazards import Lanes
from ggsched.passes.order.liveness import Timeline
from ggsched.passes.order.outline import Item
from ggsched.passes.order.sync import known_clocks
from ggsched.plan.splits import Splits
from ggsched.plan.streams import Streams
from ggsched.topology.model import Topology

Known = tuple[int, ...]
"""For each lane the last step that is complete, -1 for none."""


@dataclass(frozen=True, slots=True)
class Visibility:
    """Who has finished what, when.

    Attributes:
        first: For each value what is known to be complete before its first write.
        last: For each value the last step of each lane that touches it.
        births: For each lane the steps at which values are first written there, in order.
        known_at: For each lane and each other lane, as long as ``births``, the last step of the
            other that is known there by then.
    """

    first: tuple[Known, ...]
    last: tuple[Known, ...]
    births: tuple[tuple[int, ...], ...]
    known_at: tuple[tuple[tuple[int, ...], ...], ...]

    def seen_by(self, values: Sequence[int]) -> "Visibility":
        """Return the same with the births of these values alone."""
        wanted = {self.first[v] for v in values}
        births, known_at = [], []
        for steps, known in zip(self.births, self.known_at, strict=True):
            rows = zip(*known, strict=True) if steps else ()
            kept = [k for k, row in enumerate(rows) if row in wanted]
            births.append(tuple(steps[k] for k in kept))
            known_at.append(tuple(tuple(column[k] for k in kept) for column in known))
        return replace(self, births=tuple(births), known_at=tuple(known_at))

    def last_unaware(self, last: Known) -> int:
        """Return the last step at which a value is born that does not find these steps complete.

        It is -1 if there is none.

        Args:
            last: The last step of each lane that touches some bytes.
        """
        unaware = -1
        touched = touched_lanes(last)
        for births, known_at in zip(self.births, self.known_at, strict=True):
            if births:
                k = max((bisect_left(known_at[lane], s) for lane, s in touched), default=0)
                if k:
                    unaware = max(unaware, births[k - 1])
        return unaware


def touched_lanes(last: Known) -> list[tuple[int, int]]:
    """Return (lane, last step) of the lanes that touch some bytes at all."""
    return [(lane, step) for lane, step in enumerate(last) if step >= 0]


def join(a: Known, b: Known) -> Known:
    """Return the later of two lists of last steps, lane by lane."""
    return tuple(map(max, a, b))


def find_visibility(
    graph: Graph,
    topology: Topology,
    splits: Splits,
    streams: Streams,
    outline: Sequence[Item],
    lanes: Lanes,
    timeline: Timeline,
    order: Sequence[int],
) -> Visibility:
    """Return what is known to be complete when each value is first written."""
    within = find_dependencies(graph, splits, outline, lanes, order)
    clocks = known_clocks(outline, lanes, within, streams, topology)
    return _Table(splits, timeline, outline, lanes, clocks, order).fill()


class _Table:
    def __init__(
        self,
        splits: Splits,
        timeline: Timeline,
        outline: Sequence[Item],
        lanes: Lanes,
        clocks: Sequence[Known],
        order: Sequence[int],
    ) -> None:
        self.splits, self.timeline, self.outline, self.lanes = splits, timeline, outline, lanes
        self.clocks, self.order = clocks, order
        self.count = lanes.count
        self.last_step = [self._last_step(item) for item in outline]

    def fill(self) -> Visibility:
        values, bindings = len(self.splits.values), self.splits.bindings
        nothing = (-1,) * self.count
        first: list[Known] = [nothing] * values
        is_born = bytearray(values)
        last = [[-1] * self.count for _ in range(values)]
        births: list[list[int]] = [[] for _ in range(self.count)]
        known_at: list[list[Known]] = [[] for _ in range(self.count)]
        for number, item in enumerate(self.outline):
            if item.kind == "host":
                continue
            lane = self.lanes.of_item[number]
            before = self._known_before(number, lane)
            steps: Sequence[tuple[int, Sequence[int]]]
            if item.kind == "launch":
                node_step = self.timeline.node_step
                steps = [(node_step[n], bindings[n]) for n in self.order[item.first : item.end]]
            else:
                t = self.splits.transfers[item.source]
                touched = (t.src, t.dst) if t.rows is None else (t.src, t.rows.ids, t.dst)
                steps = [(self.timeline.transfer_step[t.id], touched)]
            for step, values_there in steps:
                for v in values_there:
                    last[v][lane] = step
                written = values_there[-1]
                if not is_born[written]:
                    is_born[written] = True
                    before[lane] = step - 1
                    known = tuple(before)
                    first[written] = self._in_program_order(written, known)
                    births[lane].append(step)
                    known_at[lane].append(known)
        return Visibility(
            tuple(first),
            tuple(map(tuple, last)),
            tuple(map(tuple, births)),
            tuple(tuple(zip(*known, strict=True)) for known in known_at),
        )

    def _in_program_order(self, value: int, known: Known) -> Known:
        """Leave out what a node comes after only because its group runs later than it stands."""
        birth = self.timeline.lives[value].birth
        return tuple(min(k, birth - 1) for k in known) if birth <= max(known) else known

    def _known_before(self, number: int, lane: int) -> list[int]:
        """Return the last step of each lane that is complete before an item begins."""
        steps = self.last_step
        return [
            -1 if item < 0 or k == lane else steps[item]
            for k, item in enumerate(self.clocks[number])
        ]

    def _last_step(self, item: Item) -> int:
        match item.kind:
            case "host":
                return -1
            case "launch":
                return self.timeline.node_step[self.order[item.end - 1]]
            case _:
                return self.timeline.transfer_step[item.source]
