"""Visibility: what is known to be complete at each step, whatever the memory plan will be.

From the waits that the data flow needs follows for each step what every lane is known to have
finished by then. Two values may share bytes exactly when every access to the one is known to be
complete before the first write of the other; then no wait exists for memory's sake. Computed once,
as vectors over lanes, and asked by bisection. It generalises the table of positions at which a
result becomes visible to each stream that was proposed for ggml (in the thread of llama.cpp
#16991).
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from ggsched.passes.order.enqueue_order import EnqueueOrder, Item
from ggsched.passes.order.liveness import Liveness
from ggsched.passes.order.sync import SyncPlan
from ggsched.plan.splits import Splits

Clock = tuple[int, ...]
"""For each lane the last step that is complete, -1 for none."""


@dataclass(frozen=True, slots=True)
class Visibility:
    """Which work each lane knows to be finished, and when.

    Attributes:
        first: For each value what is known to be complete before its first write.
        last: For each value the last step of each lane that touches it.
        writer: For each value the lane of its first write, -1 for none.
        born: (step, value) of each first write, in order.
    """

    first: tuple[Clock, ...]
    last: tuple[Clock, ...]
    writer: tuple[int, ...]
    born: tuple[tuple[int, int], ...]

    def last_conflicting_birth(self, values: Sequence[int], touched: Iterable[Clock]) -> list[int]:
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


def touched_lanes(last: Clock) -> list[tuple[int, int]]:
    """Return (lane, last step) of the lanes that touch some bytes at all."""
    return [(lane, step) for lane, step in enumerate(last) if step >= 0]


def find_visibility(
    splits: Splits, live: Liveness, order: EnqueueOrder, sync: SyncPlan
) -> Visibility:
    """Return what is known to be complete when each value is first written.

    Args:
        splits: The values.
        live: Steps, and lives in them.
        order: The items.
        sync: The synchronisation that the data flow needs.
    """
    return _Table(splits, live, order, sync).fill()


class _Table:
    def __init__(self, splits: Splits, live: Liveness, order: EnqueueOrder, sync: SyncPlan) -> None:
        self.splits, self.live, self.order, self.clocks = splits, live, order, sync.clocks()
        self.last_step = list(map(self._last_step, order.items))
        values = len(splits.values)
        self.first: list[Clock | None] = [None] * values
        self.last = [[-1] * values for _ in range(order.lanes.count)]  # by lane, which zip() turns
        self.writer = [-1] * values
        self.born: list[tuple[int, int]] = []

    def fill(self) -> Visibility:
        bindings, transfers = self.splits.bindings, self.splits.transfers
        node_step, transfer_step = self.live.node_step, self.live.transfer_step
        lane_of, nodes = self.order.lanes.of_item, self.order.nodes
        for number, item in enumerate(self.order.items):
            if item.kind == "host":
                continue
            lane = lane_of[number]
            if item.kind == "launch":
                for n in nodes[item.first : item.end]:
                    self._note(number, lane, node_step[n], bindings[n])
            else:
                t = transfers[item.source]
                touched = (t.src, t.dst) if t.rows is None else (t.src, t.rows.ids, t.dst)
                self._note(number, lane, transfer_step[t.id], touched)
        nothing = (-1,) * self.order.lanes.count
        return Visibility(
            tuple(nothing if known is None else known for known in self.first),
            tuple(zip(*self.last, strict=True)),
            tuple(self.writer),
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
            birth = self.live.lives[written].birth
            if birth < step:  # its group runs later than it stands: that is not program order
                known = [min(k, birth - 1) for k in known]
            self.first[written] = tuple(known)
            self.writer[written] = lane
            self.born.append((step, written))

    def _last_step(self, item: Item) -> int:
        match item.kind:
            case "host":
                return -1
            case "launch":
                return self.live.node_step[self.order.nodes[item.end - 1]]
            case _:
                return self.live.transfer_step[item.source]
