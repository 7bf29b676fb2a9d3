"""Visibility: what is known to be complete at each step, whatever the memory plan will be.

From the waits that the data flow needs follows for each step what every lane is known to have
finished by then. Two values may share bytes exactly when every access to the one is known to be
complete before the first write of the other; then no wait exists for memory's sake. Computed once
and looked up by bisection, and only for lanes that touch the bytes in question: on a cluster those
are a few of thousands. It generalises the table of positions at which a result becomes visible to
each stream that was proposed for ggml (in the thread of llama.cpp #16991).
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from sys import maxsize

import msgspec

from ggsched.passes.order.enqueue_order import EnqueueOrder
from ggsched.passes.order.happens_before import AfterItem
from ggsched.passes.order.liveness import Liveness
from ggsched.passes.order.sync import SyncPlan
from ggsched.plan.splits import Splits

Touched = Mapping[int, int]
"""The last step of each lane that touches some bytes."""


@dataclass(frozen=True, slots=True)
class Visibility:
    """Which work each lane knows to be finished, and when.

    Attributes:
        first: For each value the steps that are known to be complete before its first write; None
            where nothing writes it.
        last: For each value the last step of each lane that touches it.
        writer: For each value the lane of its first write, -1 for none.
        born: The step of the first write of each value that has one.
    """

    first: tuple["KnownSteps | None", ...]
    last: tuple[Touched, ...]
    writer: tuple[int, ...]
    born: Mapping[int, int]

    def last_conflicting_birth(
        self, values: Sequence[int], touched: Sequence[Touched]
    ) -> list[int]:
        """Return for each the last step at which a value is born that does not find it complete.

        It is -1 where there is none.

        Args:
            values: The values that count.
            touched: The last steps of each lane that touch some bytes.
        """
        born = sorted([(self.born[v], v) for v in values if v in self.born])
        births = _Births([known for _, v in born if (known := self.first[v]) is not None])
        steps = [*(step for step, _ in born), -1]
        found = []
        for last in touched:
            latest = -1
            for lane, step in last.items():
                number = births.last_unaware(lane, step)
                if number > latest:
                    latest = number
            found.append(steps[latest])
        return found


class KnownSteps(msgspec.Struct, frozen=True, gc=False):
    """The steps that are known to be complete when a value is first written, by lane.

    Attributes:
        after: The items that are complete after the one that writes it.
        steps: The last step of each item.
        before: The last step before the write; of the lane that writes all until then are complete.
        most: No later step counts, whatever is known.
    """

    after: AfterItem
    steps: Sequence[int]
    before: int
    most: int

    def __getitem__(self, lane: int) -> int:
        """Return the last step of a lane, -1 for none."""
        after = self.after
        step = self.before if lane == after.lane else self.steps[after[lane]]
        return step if step < self.most else self.most


class _Births:
    """First writes in order; finds the last one that does not know a step of a lane to be complete.

    What the host knows never shrinks. So of the births that know no more of a lane than it does,
    those before some moment do not know the step. Those that know more are few, and are listed.
    """

    def __init__(self, known: Sequence[KnownSteps]) -> None:
        self._known = known
        self._versions = [k.after.version for k in known]
        self._most = _floors([k.most for k in known])
        self._aware: dict[int, list[int]] = {}
        for number, k in enumerate(known):
            for lane in {*k.after.beyond, k.after.lane}:
                self._aware.setdefault(lane, []).append(number)
        self._of_lane: dict[int, _OfLane] = {}

    def last_unaware(self, lane: int, step: int) -> int:
        """Return the number of the birth, -1 for none."""
        if not self._known:
            return -1
        known = self._of_lane.get(lane)
        if known is None:
            known = self._of_lane[lane] = self._lane(lane)
        host_steps, host_unaware, aware, floors, unaware = known
        last = host_unaware[bisect_left(host_steps, step)]
        if aware:
            at = bisect_left(aware, last)
            if at < len(aware) and aware[at] == last:
                last = unaware[at]
            at = bisect_left(floors, step)
            if at and aware[at - 1] > last:
                last = aware[at - 1]
        if self._most[0] < step:
            last = max(last, bisect_left(self._most, step) - 1)
        return last

    def _lane(self, lane: int) -> "_OfLane":
        some = self._known[0]
        versions, items = some.after.host.past[lane]
        host_steps = list(map(some.steps.__getitem__, items))
        host_unaware = [bisect_left(self._versions, version) - 1 for version in versions]
        host_unaware.append(len(self._known) - 1)
        aware = self._aware.get(lane, [])
        floors = _floors([self._known[number][lane] for number in aware])
        unaware: list[int] = []
        for at, number in enumerate(aware):
            follows = at > 0 and aware[at - 1] == number - 1
            unaware.append(unaware[-1] if follows else number - 1)
        return host_steps, host_unaware, aware, floors, unaware


_OfLane = tuple[list[int], list[int], list[int], list[int], list[int]]
"""What decides which births know a step of a lane to be complete.

The steps that the host has learned, one after another; the last birth before it learns each, and
the last of all. The births that know more than the host; the least step that is known at each of
them or at a later one; and the last birth before each that is no such.
"""


def _floors(values: Sequence[int]) -> list[int]:
    """Return for each the least of it and all later ones, which never falls."""
    return list(accumulate(reversed(values), min))[::-1]


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
    clocks, lives, bindings = sync.clocks(), live.lives, splits.bindings
    node_step, transfer_step, nodes = live.node_step, live.transfer_step, order.nodes
    count = len(splits.values)
    first: list[KnownSteps | None] = [None] * count
    last: list[dict[int, int]] = [{} for _ in range(count)]
    writer = [-1] * count
    born: dict[int, int] = {}
    # The last item is the host's and has no step, so what is -1 in a clock becomes -1.
    last_step = [-1] * len(order.items)

    def note(number: int, lane: int, step: int, touched: Sequence[int]) -> None:
        """Note what a step of an item touches; the last of it is written."""
        for v in touched:
            last[v][lane] = step
        written = touched[-1]
        if written not in born:
            birth = lives[written][0]
            # If its group runs later than it stands, that is not program order.
            most = birth - 1 if birth < step else maxsize
            first[written] = KnownSteps(clocks[number], last_step, step - 1, most)
            writer[written] = lane
            born[written] = step

    for number, (item, lane) in enumerate(zip(order.items, order.lanes.of_item, strict=True)):
        if item.kind == "launch":
            for n in nodes[item.first : item.end]:
                note(number, lane, node_step[n], bindings[n])
            last_step[number] = node_step[nodes[item.end - 1]]
        elif item.kind != "host":
            t = splits.transfers[item.source]
            step = last_step[number] = transfer_step[t.id]
            touched = (t.src, t.dst) if t.rows is None else (t.src, t.rows.ids, t.dst)
            note(number, lane, step, touched)
    return Visibility(tuple(first), tuple(last), tuple(writer), born)
