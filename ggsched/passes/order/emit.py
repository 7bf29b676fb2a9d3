"""Emit: write the command list from work and synchronisation.

An event is recorded right after the item that somebody waits for, once, however many wait. Nodes
of one stream with nothing between them become one launch: a launch is cut after a node that is
waited for, and before a node that waits.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from ggsched.passes.order.known import Sync
from ggsched.passes.order.sync import SyncPlan
from ggsched.passes.order.work import Work, cache_region, merge_ranges, transfer_regions
from ggsched.plan.command import (
    Barrier,
    Command,
    Copy,
    CopyRows,
    Download,
    Hazard,
    HostSync,
    Launch,
    Record,
    Upload,
    Wait,
)
from ggsched.plan.memory import Memory, Region
from ggsched.plan.splits import Splits

_HOST_ITEM = -1


def emit(
    work: Sequence[Work], sync: SyncPlan, splits: Splits, memory: Memory
) -> tuple[Command, ...]:
    """Return the commands in the order in which the host enqueues them."""
    return _Writer(work, sync, splits, memory).write(_order(work, sync))


@dataclass(frozen=True, slots=True)
class _Items:
    """Items that become one command: one transfer, or the nodes of a launch."""

    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Mark:
    """The record of an event after an item."""

    item: int


_Entry = _Items | _Mark | Sync


def _order(work: Sequence[Work], sync: SyncPlan) -> list[_Entry]:
    """Return what is enqueued, in order: items joined to launches, records, waits."""
    every = [s for syncs in sync.before.values() for s in syncs] + sync.at_end
    recorded = {s.earlier for s in every if s.means in ("wait", "host_event")}
    out: list[_Entry] = []
    open_launches: dict[int, list[int]] = {}

    def close(stream: int) -> None:
        if stream in open_launches:
            out.append(_Items(tuple(open_launches.pop(stream))))

    def close_all() -> None:
        for stream in list(open_launches):
            close(stream)

    for i, item in enumerate(work):
        syncs = sync.before.get(i, ())
        for s in syncs:
            if s.means.startswith("host"):
                close_all()  # while the host waits, what it has in hand must be under way
            else:
                close(item.stream)
            out.append(s)
        if item.kind == "launch":
            if open_launches and work[next(iter(open_launches.values()))[0]].source != item.source:
                close_all()  # splits follow each other
            open_launches.setdefault(item.stream, []).append(i)
        elif item.kind == "host":
            close_all()
        else:
            close_all()  # transfers belong between splits
            out.append(_Items((i,)))
        if i in recorded:
            close(item.stream)
            out.append(_Mark(i))
    close_all()
    out.extend(sync.at_end)
    return out


class _Writer:
    def __init__(
        self, work: Sequence[Work], sync: SyncPlan, splits: Splits, memory: Memory
    ) -> None:
        self.work, self.sync, self.splits, self.memory = work, sync, splits, memory
        self.id_of = [_HOST_ITEM] * len(work)
        self.event_of: dict[int, int] = {}

    def write(self, entries: Sequence[_Entry]) -> tuple[Command, ...]:
        """Number the entries, then write each of them as a command."""
        for number, entry in enumerate(entries):
            if isinstance(entry, _Items):
                for i in entry.numbers:
                    self.id_of[i] = number
            elif isinstance(entry, _Mark):
                self.event_of[entry.item] = len(self.event_of)
        for i in range(1, len(self.work) - 1):
            if self.work[i].kind == "host":  # the read of the upload that comes next
                self.id_of[i] = self.id_of[i + 1]
        return tuple(self._command(number, entry) for number, entry in enumerate(entries))

    def _command(self, number: int, entry: _Entry) -> Command:
        match entry:
            case Sync():
                return self._sync(number, entry)
            case _Mark(item=item):
                return Record(number, self.work[item].stream, self.event_of[item])
            case _Items(numbers=numbers):
                items = [self.work[i] for i in numbers]
                return (
                    self._launch(number, items) if items[0].steps else self._move(number, items[0])
                )

    def _sync(self, number: int, s: Sync) -> Command:
        kind, arena, start, end, earlier = s.dependency
        hazard = Hazard(
            kind,  # type: ignore[arg-type]  # a plain str inside the passes, for speed
            arena,
            start,
            end,
            self.id_of[earlier],
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

    def _launch(self, number: int, items: Sequence[Work]) -> Command:
        first = items[0]
        if len(items) == 1:
            reads, writes, steps = first.reads, first.writes, first.steps
        else:
            reads = merge_ranges([r for item in items for r in item.reads])
            writes = merge_ranges([w for item in items for w in item.writes])
            steps = tuple(step for item in items for step in item.steps)
        return Launch(
            number,
            first.stream,
            first.source,
            steps,
            tuple(Region(a, lo, hi - lo) for a, lo, hi in reads),
            tuple(Region(a, lo, hi - lo) for a, lo, hi in writes),
        )

    def _move(self, number: int, item: Work) -> Command:
        transfer = self.splits.transfers[item.source]
        src, dst = transfer_regions(self.splits, self.memory.regions, transfer)
        if transfer.rows is not None:
            ids, nbytes, through_host_view, _ = msgspec.structs.astuple(transfer.rows)
            cache = cache_region(self.splits, self.memory, transfer)
            named = self.memory.regions[ids]
            return CopyRows(
                number, item.stream, src, dst, named, nbytes, through_host_view, cache, item.source
            )
        make = Upload if item.kind == "upload" else Download if item.kind == "download" else Copy
        return make(number, item.stream, src, dst, item.source)
