"""Emit: write the command list from work and synchronisation.

An event is recorded right after the item that somebody waits for, once, however many wait. Nodes
of one stream with nothing between them become one launch: a launch is cut after a node that is
waited for, and before a node that waits.
"""

from collections.abc import Sequence

import msgspec

from ggsched.passes.order.known import Sync
from ggsched.passes.order.sync import SyncPlan
from ggsched.passes.order.work import Work, cache_region, merge_regions, transfer_regions
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
from ggsched.plan.memory import Memory
from ggsched.plan.splits import Splits

_HOST_ITEM = -1


def emit(
    work: Sequence[Work], sync: SyncPlan, splits: Splits, memory: Memory
) -> tuple[Command, ...]:
    """Return the commands in the order in which the host enqueues them."""
    order = _Order(work)
    order.follow(sync)
    return _Writer(order, splits, memory).write()


_Items = list[int]
"""Items that become one command: one transfer, or the nodes of a launch."""

_Mark = int
"""The item after which an event is recorded."""

_Entry = _Items | _Mark | Sync


class _Order:
    """What is enqueued, in order: items joined to launches, records, waits.

    Attributes:
        work: All items.
        entries: What becomes a command each.
        id_of: Number of the command of each item.
        event_of: Number of the event after an item that is waited for.
    """

    def __init__(self, work: Sequence[Work]) -> None:
        self.work = work
        self.entries: list[_Entry] = []
        self.id_of = [_HOST_ITEM] * len(work)
        self.event_of: dict[int, int] = {}
        self._open: dict[int, _Items] = {}

    def follow(self, sync: SyncPlan) -> None:
        """Enqueue everything."""
        entries, event_of, before = self.entries, self.event_of, sync.before
        every = [s for syncs in before.values() for s in syncs] + sync.at_end
        recorded = {s.earlier for s in every if s.means in ("wait", "host_event")}
        open_split = -1
        for i, item in enumerate(self.work):
            for s in before.get(i, ()):
                if s.means in ("host_event", "host_stream"):
                    self._close_all()  # while the host waits, what it has must be under way
                else:
                    self._close(item.stream)
                entries.append(s)
            if item.kind == "launch":
                if item.source != open_split:
                    self._close_all()  # splits follow each other
                    open_split = item.source
                self._open.setdefault(item.stream, []).append(i)
            else:
                self._close_all()  # transfers belong between splits
                if item.kind != "host":
                    self._append([i])
            if i in recorded:
                self._close(item.stream)
                event_of[i] = len(event_of)
                entries.append(i)
        self._close_all()
        entries.extend(sync.at_end)
        for i in range(1, len(self.work) - 1):
            if self.work[i].kind == "host":  # the read of the upload that comes next
                self.id_of[i] = self.id_of[i + 1]

    def _append(self, items: _Items) -> None:
        number = len(self.entries)
        for i in items:
            self.id_of[i] = number
        self.entries.append(items)

    def _close(self, stream: int) -> None:
        items = self._open.pop(stream, None)
        if items:
            self._append(items)

    def _close_all(self) -> None:
        if self._open:
            for items in self._open.values():
                self._append(items)
            self._open.clear()


class _Writer:
    def __init__(self, order: _Order, splits: Splits, memory: Memory) -> None:
        self.order, self.splits, self.memory = order, splits, memory
        self.id_of, self.event_of = order.id_of, order.event_of

    def write(self) -> tuple[Command, ...]:
        """Write each entry as a command."""
        work, event_of = self.order.work, self.event_of
        out: list[Command] = []
        for number, entry in enumerate(self.order.entries):
            if isinstance(entry, Sync):
                out.append(self._sync(number, entry))
            elif isinstance(entry, int):
                out.append(Record(number, work[entry].stream, event_of[entry]))
            elif len(entry) > 1:
                out.append(self._joined(number, [work[i] for i in entry]))
            else:
                out.append(self._one(number, work[entry[0]]))
        return tuple(out)

    def _one(self, number: int, item: Work) -> Command:
        if item.kind == "launch":
            return Launch(number, item.stream, item.source, item.steps, item.reads, item.writes)
        return self._move(number, item)

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

    def _joined(self, number: int, items: Sequence[Work]) -> Launch:
        """Return the launch of several items of one stream."""
        return Launch(
            number,
            items[0].stream,
            items[0].source,
            tuple([step for item in items for step in item.steps]),
            merge_regions([r for item in items for r in item.reads]),
            merge_regions([w for item in items for w in item.writes]),
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
