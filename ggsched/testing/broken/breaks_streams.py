"""STR: streams that do not keep order, do not make progress, or do not wait."""

import threading
from collections.abc import Callable, Iterable

from ggsched.backend import checks
from ggsched.backend.base import BaseDevice, BaseEvent, BaseStream
from ggsched.backend.base_stream import Command, own_buffer, writable_memory
from ggsched.backend.protocols import Buffer, Event, HostMemory
from ggsched.errors import SyncTimeout, UsageError
from ggsched.testing.broken.mutant import breaks
from ggsched.testing.broken.twins import CPU, SIM, SIM_BARRIER, SIM_TWO_QUEUES
from ggsched.testing.sim import SimStream, SimWorld
from ggsched.testing.sim.costs import CommandKind
from ggsched.testing.sim.engine import Task

SHORT_S = 0.2
"""How long a mutant blocks where it should not; long, compared with what it should do."""

# --- STR-1 ------------------------------------------------------------------------------------


@breaks("STR-1", "Copies overtake launches, though the copy order is 'stream'.", SIM_TWO_QUEUES)
class CopiesOvertakeLaunches(SimStream):
    """The copy engine has a queue of its own, and nobody told the planner."""

    def predecessors(self, kind: CommandKind) -> Iterable[Task | None]:
        """Return the last task of one lane."""
        lanes = self.queues[:1] if kind == "launch" else self.queues[1:]
        return [queue.last for queue in lanes]


@breaks("STR-1", "A barrier does nothing.", SIM_BARRIER)
class BarrierIgnored(SimStream):
    """Launches and copies go on overtaking each other."""

    def barrier(self) -> None:
        """Forget it."""
        self._require_usable()


@breaks("STR-1", "A command begins when the last but one is complete.", SIM)
class BeginsTooEarly(SimStream):
    """Two commands of a stream are under way at a time."""

    def predecessors(self, kind: CommandKind) -> Iterable[Task | None]:
        """Return what the last task comes after."""
        last = self.queues[0].last
        return [] if last is None else list(last.after)


@breaks("STR-1", "A download reads at once, past what is queued.", CPU)
class DownloadAtOnce(BaseStream):
    """A synchronous get against queued work."""

    def download(self, buffer: Buffer, offset: int, target: HostMemory) -> None:
        """Read now."""
        self._require_usable()
        checks.check_download(self.device, buffer, offset, target)
        self.device.read_memory(own_buffer(buffer).memory, offset, target)


@breaks("STR-1", "An upload writes at once, past what is queued.", CPU)
class UploadAtOnce(BaseStream):
    """A synchronous set against queued work."""

    def upload(self, source: HostMemory, buffer: Buffer, offset: int) -> None:
        """Write now."""
        self._require_usable()
        checks.check_upload(self.device, source, buffer, offset)
        self.device.write_memory(writable_memory(buffer), offset, source)


# --- STR-2 ------------------------------------------------------------------------------------


@breaks("STR-2", "Enqueueing waits for all that was enqueued before.", CPU)
class EnqueueingWaits(BaseStream):
    """Upload, copy and launch are synchronous behind a stream that is not."""

    def _submit(self, command: Command, work: Callable[[], None]) -> None:
        if not isinstance(command, str) or "wait" not in command:
            self.progress.require(self.progress.enqueued, SHORT_S)
        super()._submit(command, work)


@breaks("STR-2", "A wait blocks the caller until the event is done.", CPU)
class WaitBlocksTheCaller(BaseStream):
    """The host syncs where the stream should wait."""

    def wait(self, event: Event) -> None:
        """Block, for events of this backend."""
        if isinstance(event, BaseEvent):
            event.sync(SHORT_S)
        super().wait(event)


@breaks("STR-2", "The queue holds four commands; a fifth one waits for room.", CPU)
class QueueOfFour(BaseStream):
    """A ring that is full blocks whoever enqueues, until the host releases the stream."""

    def _submit(self, command: Command, work: Callable[[], None]) -> None:
        self.progress.require(self.progress.enqueued - 4, SHORT_S)
        super()._submit(command, work)


@breaks("STR-2", "More than a hundred commands between two syncs are refused.", SIM)
class HundredCommands(SimStream):
    """Nobody said that there is a limit."""

    _since_sync = 0

    def _admit(self, task: Task) -> None:
        self._since_sync += 1
        if self._since_sync > 100:
            raise UsageError("the queue is full", where=self.name)
        super()._admit(task)

    def sync(self, timeout_s: float) -> None:
        """Empty the queue."""
        super().sync(timeout_s)
        self._since_sync = 0


# --- STR-3 ------------------------------------------------------------------------------------


@breaks("STR-3", "Commands run when the stream is synced, and not before.", CPU)
class RunsWhenSynced(BaseStream):
    """It batches, and nothing but sync flushes."""

    def begin(self) -> None:
        """Make room for what is held back."""
        self.held: list[tuple[Command, Callable[[], None]]] = []
        self.count = self.progress.enqueued

    @property
    def is_done(self) -> bool:
        """Whether nothing is held back and all is complete."""
        return not self.held and super().is_done

    def _submit(self, command: Command, work: Callable[[], None]) -> None:
        self.held.append((command, work))

    def flush(self) -> None:
        """Enqueue what is held back."""
        held, self.held = self.held, []
        for command, work in held:
            super()._submit(command, work)

    def record(self, event: Event) -> None:
        """Flush, or the event would stand for less."""
        self.flush()
        super().record(event)

    def sync(self, timeout_s: float) -> None:
        """Flush and wait."""
        self.flush()
        super().sync(timeout_s)

    def close(self) -> None:
        """Flush and close."""
        self.flush()
        super().close()


@breaks("STR-3", "A launch is flushed by the next command only.", CPU)
class LaunchWaitsForCompany(RunsWhenSynced):
    """A batch of one is never sent."""

    def _submit(self, command: Command, work: Callable[[], None]) -> None:
        self.held.append((command, work))
        if isinstance(command, str):
            self.flush()


@breaks("STR-3", "Nothing runs unless the host blocks in a wait.", SIM)
class RunsWhileTheHostWaits(SimWorld):
    """Polling is not enough."""

    def poll(self, what: str = "") -> None:
        """Let nothing happen."""

    def step_of_host(self) -> None:
        """Let nothing happen."""


@breaks("STR-3", "is_done of an event is true only after somebody has synced it.", CPU)
class EventNeedsItsSync(BaseEvent):
    """The flag is written by the waiter."""

    __slots__ = ()

    @property
    def is_done(self) -> bool:
        """Whether it has been synced."""
        return super().is_done and self._position < 0

    def sync(self, timeout_s: float) -> None:
        """Wait, and note it."""
        super().sync(timeout_s)
        self._position = -1


# --- STR-4 ------------------------------------------------------------------------------------


@breaks("STR-4", "All streams of the device share one queue.", CPU)
class OneWorkerForAll(BaseDevice):
    """A stream that waits holds up every other one."""

    def create_stream(self) -> BaseStream:
        """Return a stream that puts its commands on the queue of the first."""
        stream = super().create_stream()
        first = next((s for s in self._streams if not s.is_closed and s is not stream), None)
        if first is not None:
            progress, put = stream.progress, first._submit

            def submit(command: Command, work: Callable[[], None]) -> None:
                def run() -> None:
                    try:
                        work()
                    finally:
                        progress.finish_one()

                progress.enqueued += 1
                put(command, run)

            stream._submit = submit  # type: ignore[method-assign]
        return stream


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
        """Wait for all."""
        for stream in list(self.device._streams):
            stream.progress.require(stream.progress.enqueued, timeout_s)
        super().sync(timeout_s)


# --- STR-5 ------------------------------------------------------------------------------------


@breaks("STR-5", "sync returns at once.", CPU)
class SyncReturnsAtOnce(BaseStream):
    """What was enqueued may not have begun."""

    def sync(self, timeout_s: float) -> None:
        """Return."""
        self._require_usable()


@breaks("STR-5", "sync waits for one of two queues.", SIM_TWO_QUEUES)
class SyncOfOneQueue(SimStream):
    """The transfers are forgotten."""

    def everything(self) -> list[Task | None]:
        """Return the last launch."""
        return [self.queues[0].last]


@breaks("STR-5", "A timeout of sync poisons the stream.", CPU)
class TimeoutPoisons(BaseStream):
    """Who asks too early is punished."""

    def sync(self, timeout_s: float) -> None:
        """Wait; fail for good if that takes too long."""
        try:
            super().sync(timeout_s)
        except SyncTimeout as error:
            self.progress.fail("sync", error)
            raise


@breaks("STR-5", "sync that is given no time raises, though there is nothing to wait for.", CPU)
class NoTimeNoSync(BaseStream):
    """Zero is taken for too late."""

    def sync(self, timeout_s: float) -> None:
        """Refuse to look."""
        if timeout_s <= 0:
            raise SyncTimeout("no time to wait", where=self.progress.where)
        super().sync(timeout_s)


@breaks("STR-5", "sync waits for all but the last command.", SIM)
class SyncMissesTheLast(SimStream):
    """Off by one."""

    def sync(self, timeout_s: float) -> None:
        """Wait for what the last command comes after."""
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
        """Wait, and say yes."""
        self.progress.wait_for(self.progress.enqueued, threading.TIMEOUT_MAX)
        return True


@breaks("STR-6", "is_done of an event blocks until it is.", CPU)
class EventIsDoneBlocks(BaseEvent):
    """The fallback of a library that cannot ask."""

    __slots__ = ()

    @property
    def is_done(self) -> bool:
        """Wait, and say yes."""
        progress = self._progress
        return progress is not None and progress.wait_for(self._position, threading.TIMEOUT_MAX)


@breaks("STR-6", "is_done of a stream is always true.", CPU)
class AlwaysDone(BaseStream):
    """What is asked for is not known."""

    @property
    def is_done(self) -> bool:
        """Say yes."""
        return True


@breaks("STR-6", "is_done of a stream never is.", CPU)
class NeverDone(BaseStream):
    """Only sync knows."""

    @property
    def is_done(self) -> bool:
        """Say no, unless nothing was ever enqueued."""
        return self.progress.enqueued == 0


@breaks("STR-6", "A device can be used by one thread only.", CPU)
class OneThread(BaseStream):
    """Streams of two threads are refused."""

    def _submit(self, command: Command, work: Callable[[], None]) -> None:
        owner = self.device.__dict__.setdefault("owner", threading.get_ident())
        if owner != threading.get_ident():
            raise UsageError("the device belongs to another thread", where=self.progress.where)
        super()._submit(command, work)
