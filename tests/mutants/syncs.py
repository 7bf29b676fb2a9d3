"""STR-4, STR-5, STR-6: streams that hold each other up, syncs and is_done that lie."""

import threading
from collections.abc import Callable

from ggsched.backend.base import BaseDevice, BaseEvent, BaseStream
from ggsched.backend.program_body import Command
from ggsched.errors import SyncTimeout, UsageError
from ggsched_testing.sim import SimStream
from ggsched_testing.sim.engine import Task
from tests.mutants.baselines import CPU, SIM, SIM_TWO_QUEUES
from tests.mutants.mutant import breaks
from tests.mutants.mutate_calls import share_queue, streams_beside

# --- STR-4 ------------------------------------------------------------------------------------


@breaks("STR-4", "All streams of the device share one queue.", CPU)
class OneWorkerForAll(BaseDevice):
    """A stream that waits holds up every other one."""

    def create_stream(self) -> BaseStream:
        stream = super().create_stream()
        first = next((s for s in self._streams if not s.is_closed and s is not stream), None)
        return stream if first is None else share_queue(stream, first)


@breaks("STR-4", "Transfers of all streams go through one queue, in order.", SIM)
class OneTransferQueue(SimStream):
    """A transfer of a stream that is held holds up those of all others."""

    def _enqueue(self, task: Task) -> None:
        kept = self.device.__dict__
        if task.kind != "launch" and kept.get("last_transfer") is not None:
            self.device.world.submit(task, [kept["last_transfer"], self.queues[0].last])
            self.queues[0].last = kept["last_transfer"] = task
            return
        super()._enqueue(task)
        if task.kind != "launch":
            kept["last_transfer"] = task


@breaks("STR-4", "sync waits for every stream of the device.", CPU)
class SyncWaitsForTheDevice(BaseStream):
    """As a library does that has one sync for all."""

    def sync(self, timeout_s: float) -> None:
        for stream in streams_beside(self):
            stream.progress.require(stream.progress.enqueued, timeout_s)
        super().sync(timeout_s)


@breaks("STR-4", "sync of a stream that was never used waits for every other one.", CPU)
class FirstSyncWaitsForAll(BaseStream):
    """Until it has commands of its own, it is the default stream."""

    def sync(self, timeout_s: float) -> None:
        if not self.progress.enqueued:
            for stream in streams_beside(self):
                stream.progress.require(stream.progress.enqueued, timeout_s)
        super().sync(timeout_s)


# --- STR-5 ------------------------------------------------------------------------------------


@breaks("STR-5", "sync returns at once.", CPU)
class SyncReturnsAtOnce(BaseStream):
    """What was enqueued may not have begun."""

    def sync(self, timeout_s: float) -> None:
        self._require_usable()


@breaks("STR-5", "sync waits for one of two queues.", SIM_TWO_QUEUES)
class SyncOfOneQueue(SimStream):
    """The transfers are forgotten."""

    def everything(self) -> list[Task | None]:
        return [self.queues[0].last]


@breaks("STR-5", "A timeout of sync poisons the stream.", CPU)
class TimeoutPoisons(BaseStream):
    """Who asks too early is punished."""

    def sync(self, timeout_s: float) -> None:
        try:
            super().sync(timeout_s)
        except SyncTimeout as error:
            self.progress.fail("sync", error)
            raise


@breaks("STR-5", "sync that is given no time raises, though there is nothing to wait for.", CPU)
class NoTimeNoSync(BaseStream):
    """Zero is taken for too late."""

    def sync(self, timeout_s: float) -> None:
        if timeout_s <= 0:
            raise SyncTimeout("no time to wait", where=self.progress.where)
        super().sync(timeout_s)


@breaks("STR-5", "sync waits for all but the last command.", SIM)
class SyncMissesTheLast(SimStream):
    """Off by one."""

    def sync(self, timeout_s: float) -> None:
        self._require_usable()
        last = self.queues[0].last
        before: list[Task | None] = [] if last is None else list(last.after)
        self.device.world.block(before, timeout_s, self.name)


# --- STR-6 ------------------------------------------------------------------------------------


@breaks("STR-6", "is_done of a stream blocks until it is.", CPU)
class IsDoneBlocks(BaseStream):
    """Asking is waiting."""

    @property
    def is_done(self) -> bool:
        self.progress.wait_for(self.progress.enqueued, threading.TIMEOUT_MAX)
        return True


@breaks("STR-6", "is_done of an event blocks until it is.", CPU)
class EventIsDoneBlocks(BaseEvent):
    """The fallback of a library that cannot ask."""

    __slots__ = ()

    @property
    def is_done(self) -> bool:
        progress = self._progress
        return progress is not None and progress.wait_for(self._position, threading.TIMEOUT_MAX)


@breaks("STR-6", "is_done of a stream is always true.", CPU)
class AlwaysDone(BaseStream):
    """What is requested is not known."""

    @property
    def is_done(self) -> bool:
        return True


@breaks("STR-6", "is_done of a stream never is.", CPU)
class NeverDone(BaseStream):
    """Only sync knows."""

    @property
    def is_done(self) -> bool:
        return self.progress.enqueued == 0


@breaks("STR-6", "A device can be used by one thread only.", CPU)
class OneThread(BaseStream):
    """Streams of two threads are refused."""

    def _submit(self, command: Command, work: Callable[[], None]) -> None:
        owner = self.device.__dict__.setdefault("owner", threading.get_ident())
        if owner != threading.get_ident():
            raise UsageError("the device belongs to another thread", where=self.progress.where)
        super()._submit(command, work)
