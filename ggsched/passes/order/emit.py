"""Emit: write the command list from work and synchronisation.

An event is recorded right after the item that somebody waits for, once, however many wait. Nodes
of one stream with nothing between them become one launch: a launch is cut after a node that is
waited for, and before a node that waits.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from ggsched.passes.order.happens_before import Sync
from ggsched.passes.order.sync import SyncPlan
from ggsched.passes.order.work import Work, cache_region, merge_regions
from ggsched.plan.command import (
    Barrier,
    Command,
    Copy,
    CopyRows,
    Download,
    Fill,
    HostSync,
    Launch,
    Record,
    Upload,
    Wait,
)
from ggsched.plan.effects import Hazard
from ggsched.plan.memory import Memory
from ggsched.plan.splits import HOST, Splits

_HOST_ITEM = -1


def emit(
    work: Sequence[Work], sync: SyncPlan, splits: Splits, memory: Memory
) -> tuple[Command, ...]:
    """Return the commands in the order in which the host enqueues them."""
    return _Writer(work, splits, memory).write(sync)


_TO_COME: Final = Record(-1, -1, -1)
"""Stands for a synchronisation until the command of its later item has a number."""


class _Writer:
    def __init__(self, work: Sequence[Work], splits: Splits, memory: Memory) -> None:
        self.work, self.splits, self.memory = work, splits, memory
        self.out: list[Command] = []
        self.id_of = [_HOST_ITEM] * len(work)
        self.event_of: dict[int, int] = {}
        self.open: dict[int, list[int]] = {}  # by stream the items of a launch

    def write(self, sync: SyncPlan) -> tuple[Command, ...]:
        """Write everything, first the work and then the synchronisation between it."""
        syncs = self._work(sync)
        for i in range(1, len(self.work) - 1):
            if self.work[i].kind == "host":  # the read of the upload that comes next
                self.id_of[i] = self.id_of[i + 1]
        for number, s in syncs:
            self.out[number] = self._sync(number, s)
        return tuple(self.out)

    def _work(self, sync: SyncPlan) -> list[tuple[int, Sync]]:
        """Write launches, transfers and records; return what belongs in between, and where."""
        out, id_of, event_of, before = self.out, self.id_of, self.event_of, sync.before
        every = [s for syncs in before.values() for s in syncs] + list(sync.at_end)
        recorded = {s.earlier for s in every if s.means in ("wait", "host_event")}
        between: list[tuple[int, Sync]] = []
        open_split = -1
        open_ = self.open
        for i, item in enumerate(self.work):
            for s in before.get(i, ()):
                if s.means in ("host_event", "host_stream"):
                    self._close_all()  # while the host waits, what it has must be under way
                elif item.stream in open_:
                    self._close(item.stream)
                between.append((len(out), s))
                out.append(_TO_COME)
            if item.kind == "launch":
                if item.source != open_split:
                    self._close_all()  # splits follow each other
                    open_split = item.source
                open_.setdefault(item.stream, []).append(i)
            else:
                if open_:
                    self._close_all()  # transfers belong between splits
                if item.kind != "host":
                    id_of[i] = len(out)
                    out.append(self._move(len(out), item))
            if i in recorded:
                if item.stream in open_:
                    self._close(item.stream)
                event_of[i] = len(event_of)
                out.append(Record(len(out), item.stream, event_of[i]))
        self._close_all()
        for s in sync.at_end:
            between.append((len(out), s))
            out.append(_TO_COME)
        return between

    def _close(self, stream: int) -> None:
        self.out.append(self._launch(self.open.pop(stream)))

    def _close_all(self) -> None:
        for items in self.open.values():
            self.out.append(self._launch(items))  # each takes the next number
        self.open.clear()

    def _launch(self, numbers: Sequence[int]) -> Launch:
        number, work = len(self.out), self.work
        for i in numbers:
            self.id_of[i] = number
        first = work[numbers[0]]
        if len(numbers) == 1:
            reads, writes, steps = first.reads, first.writes, first.steps
        else:
            reads = merge_regions([r for i in numbers for r in work[i].reads])
            writes = merge_regions([w for i in numbers for w in work[i].writes])
            steps = tuple([step for i in numbers for step in work[i].steps])
        return Launch(number, first.stream, first.source, steps, reads, writes)

    def _sync(self, number: int, s: Sync) -> Command:
        d = s.dependency
        hazard = Hazard(
            d.kind,
            d.arena,
            d.start,
            d.end,
            self.id_of[d.earlier],
            self.id_of[s.later],
            s.next_run,
        )
        match s.means:
            case "wait":
                return Wait(number, s.stream, self.event_of[s.earlier], hazard)
            case "barrier":
                return Barrier(number, s.stream, hazard)
            case "host_event":
                return HostSync(number, s.stream, self.event_of[s.earlier], hazard)
            case "host_stream":
                return HostSync(number, s.stream, None, hazard)

    def _move(self, number: int, item: Work) -> Command:
        transfer = self.splits.transfers[item.source]
        src, dst = item.ends
        if transfer.rows is not None:
            ids, nbytes, through_host_view, _ = msgspec.structs.astuple(transfer.rows)
            cache = cache_region(self.splits, self.memory, transfer)
            named = self.memory.regions[ids]
            return CopyRows(
                number, item.stream, src, dst, named, nbytes, through_host_view, cache, item.source
            )
        if transfer.pattern is not None:
            return Fill(number, item.stream, dst, transfer.pattern, item.source)
        values = self.splits.values
        make: type[Upload | Download | Copy] = Copy
        if values[transfer.src].device == HOST:
            make = Upload
        elif values[transfer.dst].device == HOST:
            make = Download
        return make(number, item.stream, src, dst, item.source)
