"""STR-1, STR-2, STR-3: streams that do not keep order, block, or make no progress."""

from collections.abc import Callable, Iterable
from time import monotonic, sleep

from ggsched.backend import checks
from ggsched.backend.base import BaseEvent, BaseStream
from ggsched.backend.base_buffer import own_buffer, writable_memory
from ggsched.backend.program_body import Command
from ggsched.backend.protocols import Buffer, Event, HostMemory
from ggsched.errors import UsageError
from ggsched_testing.sim import SimStream, SimWorld
from ggsched_testing.sim.costs import CommandKind
from ggsched_testing.sim.engine import Task
from tests.mutants.baselines import CPU, SIM, SIM_BARRIER, SIM_TWO_QUEUES
from tests.mutants.mutant import breaks

SHORT_S = 0.2
"""How long a mutant blocks where it should not; long, compared with what it should do."""

# --- STR-1 ------------------------------------------------------------------------------------


@breaks("STR-1", "Copies overtake launches, though the copy order is 'stream'.", SIM_TWO_QUEUES)
class CopiesOvertakeLaunches(SimStream):
    """The copy engine has a queue of its own, and the planner does not know."""

    def predecessors(self, kind: CommandKind) -> Iterable[Task | None]:
        lanes = self.queues[:1] if kind == "launch" else self.queues[1:]
        return [queue.last for queue in lanes]


@breaks("STR-1", "A barrier does nothing.", SIM_BARRIER)
class BarrierIgnored(SimStream):
    """Launches and copies go on overtaking each other."""

    def barrier(self) -> None:
        self._require_usable()


@breaks("STR-1", "A command begins when the last but one is complete.", SIM)
class BeginsTooEarly(SimStream):
    """Two commands of a stream are under way at a time."""

    def predecessors(self, kind: CommandKind) -> Iterable[Task | None]:
        last = self.queues[0].last
        return [] if last is None else list(last.after)


@breaks("STR-1", "A download reads at once, past what is queued.", CPU)
class DownloadAtOnce(BaseStream):
    """A synchronous get against queued work."""

    def download(self, buffer: Buffer, offset: int, target: HostMemory) -> None:
        self._require_usable()
        checks.check_download(self.device, buffer, offset, target)
        self.device.read_memory(own_buffer(buffer).memory, offset, target)


@breaks("STR-1", "An upload writes at once, past what is queued.", CPU)
class UploadAtOnce(BaseStream):
    """A synchronous set against queued work."""

    def upload(self, source: HostMemory, buffer: Buffer, offset: int) -> None:
        self._require_usable()
        checks.check_upload(self.device, source, buffer, offset)
        self.device.write_memory(writable_memory(buffer), offset, source)


@breaks("STR-1", "The end of a long copy is copied behind the next command.", CPU)
class LongCopyEndsLate(BaseStream):
    """A copy is cut into pieces, and the last one is queued by itself."""

    def begin(self) -> None:
        self.rest: list[Callable[[], None]] = []

    def copy(self, src: Buffer, src_offset: int, dst: Buffer, dst_offset: int, nbytes: int) -> None:
        late = 8 if nbytes >= 1 << 20 else 0
        super().copy(src, src_offset, dst, dst_offset, nbytes - late)
        if late:
            a, b = own_buffer(src).memory, writable_memory(dst)
            first, at = src_offset + nbytes - late, dst_offset + nbytes - late
            self.rest.append(lambda: self.device.copy_memory(a, first, b, at, late))

    def _submit(self, command: Command, work: Callable[[], None]) -> None:
        rest, self.rest = self.rest, []
        super()._submit(command, work)
        for piece in rest:
            super()._submit("copy", piece)

    def sync(self, timeout_s: float) -> None:
        if self.rest:
            self._submit("nothing", lambda: None)
        super().sync(timeout_s)


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
        super().sync(timeout_s)
        self._since_sync = 0


# --- STR-3 ------------------------------------------------------------------------------------


@breaks("STR-3", "Commands run when the stream is synced, and not before.", CPU)
class RunsWhenSynced(BaseStream):
    """It batches, and nothing but sync flushes."""

    def begin(self) -> None:
        self.held: list[tuple[Command, Callable[[], None]]] = []
        self.count = self.progress.enqueued

    @property
    def is_done(self) -> bool:
        return not self.held and super().is_done

    def _submit(self, command: Command, work: Callable[[], None]) -> None:
        self.held.append((command, work))

    def flush(self) -> None:
        held, self.held = self.held, []
        for command, work in held:
            super()._submit(command, work)

    def record(self, event: Event) -> None:
        self.flush()
        super().record(event)

    def sync(self, timeout_s: float) -> None:
        self.flush()
        super().sync(timeout_s)

    def close(self) -> None:
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
        return super().is_done and self._position < 0

    def sync(self, timeout_s: float) -> None:
        super().sync(timeout_s)
        self._position = -1


@breaks("STR-3", "Waits are looked at only while the host blocks in a sync.", CPU)
class WaitsNeedTheHost(BaseStream):
    """The thread that would look is the host's own."""

    def wait(self, event: Event) -> None:
        kept = self.device.__dict__

        def stand_still() -> None:
            deadline = monotonic() + 1.0
            while not kept.get("syncs") and not self.is_closed and monotonic() < deadline:
                sleep(1e-4)

        super().wait(event)
        if isinstance(event, BaseEvent):
            self._submit("wait for an event", stand_still)

    def sync(self, timeout_s: float) -> None:
        kept = self.device.__dict__
        kept["syncs"] = int(kept.get("syncs", 0)) + 1
        try:
            super().sync(timeout_s)
        finally:
            kept["syncs"] -= 1
