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
    return _Writer(work, sync, splits, memory).write(_order(work, sync))


_Items = list[int]
"""Items that become one command: one transfer, or the nodes of a launch."""

_Mark = int
"""The item after which an event is recorded."""

_Entry = _Items | _Mark | Sync


def _order(work: Sequence[Work], sync: SyncPlan) -> list[_Entry]:
    """Return what is enqueued, in order: items joined to launches, records, waits."""
    before = sync.before
    every = [s for syncs in before.values() for s in syncs] + sync.at_end
    recorded = {s.earlier for s in every if s.means in ("wait", "host_event")}
    out: list[_Entry] = []
    open_split = -1
    open_launches: dict[int, _Items] = {}

    def close(stream: int) -> None:
        if stream in open_launches:
            out.append(open_launches.pop(stream))

    def close_all() -> None:
        out.extend(open_launches.values())
        open_launches.clear()

    for i, item in enumerate(work):
        for s in before.get(i, ()):
            if s.means in ("host_event", "host_stream"):
                close_all()  # while the host waits, what it has in hand must be under way
            else:
                close(item.stream)
            out.append(s)
        if item.kind == "launch":
            if item.source != open_split:
                close_all()  # splits follow each other
                open_split = item.source
            open_launches.setdefault(item.stream, []).append(i)
        else:
            close_all()  # transfers belong between splits
            if item.kind != "host":
                out.append([i])
        if i in recorded:
            close(item.stream)
            out.append(i)
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
        work, id_of, event_of = self.work, self.id_of, self.event_of
        for number, entry in enumerate(entries):
            if isinstance(entry, list):
                for i in entry:
                    id_of[i] = number
            elif isinstance(entry, int):
                event_of[entry] = len(event_of)
        for i in range(1, len(work) - 1):
            if work[i].kind == "host":  # the read of the upload that comes next
                id_of[i] = id_of[i + 1]
        out: list[Command] = []
        for number, entry in enumerate(entries):
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
