"""Emit: write the command list from work and synchronisation.

An event is recorded right after the item that somebody waits for, once, however many wait.
"""

from collections.abc import Sequence

from ggsched.passes.sync import Sync, SyncPlan
from ggsched.passes.work import Work, transfer_regions
from ggsched.plan.command import (
    Barrier,
    Command,
    Copy,
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
    return _Emitter(work, sync, splits, memory).run()


class _Emitter:
    def __init__(
        self, work: Sequence[Work], sync: SyncPlan, splits: Splits, memory: Memory
    ) -> None:
        self.work, self.sync, self.splits, self.memory = work, sync, splits, memory
        every = [s for syncs in sync.before.values() for s in syncs] + sync.at_end
        self.recorded = {s.earlier for s in every if s.means in ("wait", "host_event")}
        self.id_of = self._number()
        self.event_of: dict[int, int] = {}
        self.commands: list[Command] = []

    def run(self) -> tuple[Command, ...]:
        for i, item in enumerate(self.work):
            for s in self.sync.before.get(i, ()):
                self._sync(s)
            if item.kind != "host":
                self._work(item)
            if i in self.recorded:
                self.event_of[i] = len(self.event_of)
                self.commands.append(Record(len(self.commands), item.stream, self.event_of[i]))
        for s in self.sync.at_end:
            self._sync(s)
        return tuple(self.commands)

    def _number(self) -> list[int]:
        """Return the command id of each item; hazards name items that come later too."""
        ids, next_id = [], 0
        for i, item in enumerate(self.work):
            next_id += len(self.sync.before.get(i, ()))
            ids.append(_HOST_ITEM if item.kind == "host" else next_id)
            next_id += (item.kind != "host") + (i in self.recorded)
        for i in range(1, len(ids) - 1):
            if self.work[i].kind == "host":  # the read of the upload that comes next
                ids[i] = ids[i + 1]
        return ids

    def _sync(self, s: Sync) -> None:
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
        number = len(self.commands)
        match s.means:
            case "wait":
                command: Command = Wait(number, s.stream, self.event_of[s.earlier], hazard)
            case "barrier":
                command = Barrier(number, s.stream, hazard)
            case "host_event":
                command = HostSync(number, s.stream, self.event_of[s.earlier], hazard)
            case "host_stream":
                command = HostSync(number, s.stream, None, hazard)
        self.commands.append(command)

    def _work(self, item: Work) -> None:
        number = len(self.commands)
        if item.kind == "launch":
            reads = tuple(Region(a, lo, hi - lo) for a, lo, hi in item.reads)
            writes = tuple(Region(a, lo, hi - lo) for a, lo, hi in item.writes)
            self.commands.append(
                Launch(number, item.stream, item.source, item.steps, reads, writes)
            )
            return
        transfer = self.splits.transfers[item.source]
        src, dst = transfer_regions(self.splits, self.memory.regions, transfer)
        make = Upload if item.kind == "upload" else Download if item.kind == "download" else Copy
        self.commands.append(make(number, item.stream, src, dst, item.source))
