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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from ggsched.ir.graph import Graph
from ggsched.passes.order.dataflow import find_dependencies
from ggsched.passes.order.enqueue_order import Item
from ggsched.passes.order.hazards import Lanes
from ggsched.passes.order.liveness import Liveness
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
        born: (step, value) of each first write, in order.
    """

    first: tuple[Known, ...]
    last: tuple[Known, ...]
    born: tuple[tuple[int, int], ...]

    def last_conflicting_birth(self, values: Sequence[int], touched: Iterable[Known]) -> list[int]:
        """Return for each the last step at which a value is born that does not find it complete.

        It is -1 where there is none.

        Args:
            values: The values that count.
            touched: The last steps of each lane that touch some bytes.
        """
        wanted = set(values)
        born = [(step, self.first[v]) for step, v in self.born if v in wanted]
        steps = [-1, *(step for step, _ in born)]
        # The least that is known of a lane by then or later never falls, so it can be bisected.
        later = zip(*(known for _, known in reversed(born)), strict=True)
        floors = [list(accumulate(column, min))[::-1] for column in later]
        return [steps[max(map(bisect_left, floors, last), default=0)] for last in touched]


def touched_lanes(last: Known) -> list[tuple[int, int]]:
    """Return (lane, last step) of the lanes that touch some bytes at all."""
    return [(lane, step) for lane, step in enumerate(last) if step >= 0]


def find_visibility(
    graph: Graph,
    topology: Topology,
    splits: Splits,
    streams: Streams,
    outline: Sequence[Item],
    lanes: Lanes,
    timeline: Liveness,
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
        timeline: Liveness,
        outline: Sequence[Item],
        lanes: Lanes,
        clocks: Sequence[Known],
        order: Sequence[int],
    ) -> None:
        self.splits, self.timeline, self.outline, self.lanes = splits, timeline, outline, lanes
        self.clocks, self.order = clocks, order
        self.last_step = [self._last_step(item) for item in outline]
        values = len(splits.values)
        self.first: list[Known | None] = [None] * values
        self.last = [[-1] * values for _ in range(lanes.count)]  # by lane, which zip() turns around
        self.born: list[tuple[int, int]] = []

    def fill(self) -> Visibility:
        bindings, transfers = self.splits.bindings, self.splits.transfers
        node_step, transfer_step = self.timeline.node_step, self.timeline.transfer_step
        for number, item in enumerate(self.outline):
            if item.kind == "host":
                continue
            lane = self.lanes.of_item[number]
            if item.kind == "launch":
                for n in self.order[item.first : item.end]:
                    self._note(number, lane, node_step[n], bindings[n])
            else:
                t = transfers[item.source]
                touched = (t.src, t.dst) if t.rows is None else (t.src, t.rows.ids, t.dst)
                self._note(number, lane, transfer_step[t.id], touched)
        nothing = (-1,) * self.lanes.count
        return Visibility(
            tuple(nothing if known is None else known for known in self.first),
            tuple(zip(*self.last, strict=True)),
            tuple(self.born),
        )

    def _note(self, number: int, lane: int, step: int, touched: Sequence[int]) -> None:
        """Note what a step of an item touches; the last of it is written."""
        last = self.last[lane]
        for v in touched:
            last[v] = step
        written = touched[-1]
        if self.first[written] is None:
            # The last item is the host's and has no step, so what is -1 in a clock becomes -1.
            steps = self.last_step
            known = [steps[item] for item in self.clocks[number]]
            known[lane] = step - 1
            birth = self.timeline.lives[written].birth
            if birth < step:  # its group runs later than it stands: that is not program order
                known = [min(k, birth - 1) for k in known]
            self.first[written] = tuple(known)
            self.born.append((step, written))

    def _last_step(self, item: Item) -> int:
        match item.kind:
            case "host":
                return -1
            case "launch":
                return self.timeline.node_step[self.order[item.end - 1]]
            case _:
                return self.timeline.transfer_step[item.source]
