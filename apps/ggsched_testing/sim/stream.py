"""Streams: which task comes after which, and nothing about when it runs."""

from collections.abc import Iterable, Sequence

from ggsched.backend import checks
from ggsched.backend.progress import Fault
from ggsched.backend.protocols import Buffer, Event, HostMemory, Program
from ggsched.backend.timing import Latest, Part
from ggsched.errors import UsageError
from ggsched_testing.sim import transfers
from ggsched_testing.sim.costs import CommandKind
from ggsched_testing.sim.engine import Engine, Step, Task
from ggsched_testing.sim.event import SimEvent
from ggsched_testing.sim.kernels import Ahead
from ggsched_testing.sim.memory import SimBuffer
from ggsched_testing.sim.program import SimProgram
from ggsched_testing.sim.state import SimOwner


class Queue:
    """An internal queue of a stream: it does one task after the other.

    Attributes:
        actor: Its name.
        last: The task that was enqueued last.
    """

    def __init__(self, actor: str) -> None:
        self.actor = actor
        self.last: Task | None = None


class Latch:
    """Holds a stream until it is released; for tests that need work to be under way."""

    def __init__(self, engine: Engine, tasks: Sequence[Task]) -> None:
        self._engine = engine
        self._tasks = tasks

    def release(self) -> None:
        """Let the stream go on; legal twice."""
        for task in self._tasks:
            self._engine.release(task)


class SimTaken:
    """When a command ran, in simulated seconds; see ``ggsched.backend.timing``."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def parts(self) -> Sequence[Part] | None:
        """Return when the command ran, node by node for a launch."""
        task = self._task
        if not task.is_done or task.fault is not None:
            return None
        return list(_parts(task)) or [Part("", task.start_s, task.end_s)]


def _parts(task: Task) -> Iterable[Part]:
    """Yield the nodes of a launch: the first begins, and the last ends, with it."""
    at = task.end_s - sum(seconds for _, seconds in task.parts)
    for i, (label, seconds) in enumerate(task.parts):
        yield Part(label, at if i else task.start_s, at + seconds)
        at += seconds


class SimStream:
    """A queue of commands (STR-1..6), made of one or more internal queues.

    The first internal queue takes launches, and copies if it is the only one; the others take
    copies in turn.

    Attributes:
        device: Whose stream it is.
        name: E.g. ``sim:0 q1``.
        queues: The internal queues.
        position: Number of commands enqueued so far.
        known: How many of them the host has waited for.
        fault: The first command that failed.
    """

    def __init__(self, device: SimOwner, number: int, queues: int) -> None:
        self.device = device
        self.number = number
        self.name = f"{device.facts.name} q{number}"
        self.queues = [Queue(self.name if i == 0 else f"{self.name}.{i}") for i in range(queues)]
        self.position = 0
        self.known = 0
        self.fault: Fault | None = None
        self.is_closed = False
        self._copies = 0
        self._last_record: Task | None = None
        self._last_notice: Task | None = None
        self._last_fetch: Task | None = None
        self._newest: Task | None = None

    # --- the order ---------------------------------------------------------------------------

    def predecessors(self, kind: CommandKind) -> Iterable[Task | None]:
        """Return what a piece of work comes after on this stream (STR-1).

        Unless ``copy_order`` is ``stream``, launches are in order and copies are in order, but
        nothing keeps one after the other.
        """
        if self.device.facts.copy_order == "stream":
            return [queue.last for queue in self.queues]
        copies = self.queues[1:] if kind != "launch" else self.queues[:1]
        return [queue.last for queue in copies]

    def everything(self) -> list[Task | None]:
        """Return tasks after which all that was enqueued is complete: all queues, all records."""
        return [*(queue.last for queue in self.queues), self._last_record]

    def fault_before(self, position: int) -> Fault | None:
        """Return the failure of the command of this position (ERR-2)."""
        fault = self.fault
        return fault if fault is not None and fault.position <= position else None

    def fail(self, task: Task, error: Exception) -> Fault:
        """Note that a task failed; the first of the stream's commands counts."""
        fault = Fault(self.name, task.label, error, task.position)
        if self.fault is None or fault.position < self.fault.position:
            self.fault = fault
        self.device.world.touch(("fault", self.name), 0, 1, writes=True)
        return fault

    # --- the contract --------------------------------------------------------------------------

    @property
    def is_done(self) -> bool:
        """Whether everything enqueued so far is complete."""
        if self.is_closed:
            raise checks.closed_error("stream")
        world = self.device.world
        if not world.host_peeks:
            return self.known >= self.position
        world.poll(self.name)
        tasks = [task for task in self.everything() if task is not None]
        for task in tasks:
            world.touch(("done", task.actor), 0, 1, writes=False)
        return all(task.is_done for task in tasks)

    def upload(self, source: HostMemory, buffer: Buffer, offset: int) -> None:
        """Copy host bytes into a buffer (CPY-4)."""
        self._require_usable()
        checks.check_upload(self.device, source, buffer, offset)
        target = self._writable(buffer)
        label = f"upload {source.nbytes} B to {target.label(offset, source.nbytes)}"
        seconds = self.device.costs.moving("upload", source.nbytes)
        task = self._task("upload", label, (), seconds, [target])
        self._admit(task)
        task.steps = transfers.upload(self.device, source, target, offset)
        self._enqueue(task)

    def download(self, buffer: Buffer, offset: int, target: HostMemory) -> None:
        """Copy bytes of a buffer into host memory (CPY-5)."""
        self._require_usable()
        checks.check_download(self.device, buffer, offset, target)
        source = self._own(buffer)
        label = f"download {target.nbytes} B from {source.label(offset, target.nbytes)}"
        seconds = self.device.costs.moving("download", target.nbytes)
        steps = transfers.download(self.device, source, offset, target)
        task = self._task("download", label, steps, seconds, [source])
        self._admit(task)
        self._enqueue(task)

    def copy(self, src: Buffer, src_offset: int, dst: Buffer, dst_offset: int, nbytes: int) -> None:
        """Copy between buffers (CPY-1, CPY-3, CPY-6)."""
        self._require_usable()
        checks.check_copy(self.device, src, src_offset, dst, dst_offset, nbytes)
        self.device.check_path(src.device, dst.device)
        a, b = self._own(src), self._writable(dst)
        label = (
            f"copy {nbytes} B from {a.device.facts.name} {a.label(src_offset, nbytes)}"
            f" to {b.device.facts.name} {b.label(dst_offset, nbytes)}"
        )
        steps = transfers.copy(a, src_offset, b, dst_offset, nbytes)
        task = self._task("copy", label, steps, self.device.costs.moving("copy", nbytes), [a, b])
        self._admit(task)
        self._enqueue(task)

    def fill(self, buffer: Buffer, offset: int, nbytes: int, pattern: bytes) -> None:
        """Set bytes of a buffer to a repeated pattern (FIL-1..3)."""
        self._require_usable()
        checks.check_fill(self.device, buffer, offset, nbytes, pattern)
        target = self._writable(buffer)
        label = f"fill {nbytes} B of {target.label(offset, nbytes)} with {pattern.hex()}"
        steps = transfers.fill(target, offset, nbytes, pattern)
        task = self._task("fill", label, steps, self.device.costs.moving("fill", nbytes), [target])
        self._admit(task)
        self._enqueue(task)

    def launch(self, program: Program) -> None:
        """Run a program that was compiled for this stream (LCH-1..7)."""
        self._require_usable()
        if not isinstance(program, SimProgram) or program.stream is not self:
            raise checks.foreign_program_error(self.name)
        if program.is_closed:
            raise checks.closed_error("program")
        ahead = Ahead(program.early)
        steps = program.steps(ahead)
        task = self._task("launch", program.label, steps, program.seconds, program.buffers)
        task.parts = program.parts
        self._admit(task)
        if ahead.operands:
            task.fetch = self._fetch(ahead, task)
        self._enqueue(task)

    def record(self, event: Event) -> None:
        """Let an event stand for everything enqueued so far, on all internal queues (EVT-1).

        On a stream that is poisoned already the event is recorded *and* the call raises, so that
        whoever waits for it learns of the fault (EVT-6).
        """
        if self.is_closed:
            raise checks.closed_error("stream")
        checks.check_record(self.device, event)
        assert isinstance(event, SimEvent)  # this device's events are
        task = self._task("record", f"record e{event.number}", [_nothing])
        task.actor = f"{self.name}.events"
        task.seconds = self.device.costs.record_s
        self._admit(task)
        event.task = self._last_record = self._submit(task, self.recorded())
        self.device.world.step_of_host()
        self._require_usable()

    def recorded(self) -> Iterable[Task | None]:
        """Return what an event stands for, if it is recorded now (EVT-1)."""
        return self.everything()

    def wait(self, event: Event) -> None:
        """Hold later commands, on all internal queues, until an event is done (EVT-2, EVT-4)."""
        self._require_usable()
        self.device.check_wait(event)
        assert isinstance(event, SimEvent)
        task = self._task("wait", f"wait for e{event.number} of {event.device.facts.name}", ())
        self._admit(task)
        self._hold(task, event, self.notice_of(event))
        self.device.world.step_of_host()

    def notice_of(self, event: SimEvent) -> Task | None:
        """Return the task that notifies this stream of an event: the event's, or a thread's."""
        if self.device.wait_path(event.device.facts) != "thread" or event.device is self.device:
            return event.task
        notice = Task("notice", f"notice e{event.number}", self, f"{self.name}.thread", [_nothing])
        notice.position = 0  # the thread is none of the stream's commands
        notice.seconds = self.device.costs.thread_wait_s
        self.device.world.submit(notice, [event.task, self._last_notice])
        self._last_notice = notice
        return notice

    def barrier(self) -> None:
        """Keep later launches after earlier copies and the reverse (``copy_order`` barrier).

        Raises:
            UsageError: barriers mean nothing on this device; the host has to sync.
        """
        self._require_usable()
        if self.device.facts.copy_order == "host":
            raise UsageError(
                "it has no barriers", where=self.name, why="its copy order is 'host' (STR-1)"
            )
        task = self._task("barrier", "barrier", [_nothing])
        task.actor = f"{self.name}.barrier"
        self._admit(task)
        self._submit(task, [queue.last for queue in self.queues])
        for queue in self.queues:
            queue.last = task
        self.device.world.step_of_host()

    def sync(self, timeout_s: float) -> None:
        """Block until everything enqueued is complete, or will never be; then report (STR-5)."""
        if self.is_closed:
            raise checks.closed_error("stream")
        self.device.world.block(self.everything(), timeout_s, self.name)
        self.known = self.position
        self._require_usable()

    def close(self) -> None:
        """Release the stream; legal twice and after a fault (ERR-3)."""
        if not self.is_closed:
            self.is_closed = True
            self.device.world.forget("streams", self.number)

    def __take_times__(self) -> Latest:
        """Tell simulated times; see ``ggsched.backend.timing``."""
        return self._latest

    def _latest(self) -> SimTaken | None:
        task, self._newest = self._newest, None
        return None if task is None else SimTaken(task)

    def hold(self) -> Latch:
        """Let nothing that is enqueued later begin before the latch is released.

        No rule has this: tests of the contract need it. It is not counted as a command.
        """
        self._require_usable()
        tasks = [Task("hold", "latch", self, queue.actor, [_nothing]) for queue in self.queues]
        for task, queue in zip(tasks, self.queues, strict=True):
            task.hangs = True
            self.device.world.submit(task, [queue.last])
            queue.last = task
        return Latch(self.device.world, tasks)

    # --- helpers -------------------------------------------------------------------------------

    def _require_usable(self) -> None:
        """Refuse calls after ``close`` (ERR-3) and after a failed command (ERR-2)."""
        if self.is_closed:
            raise checks.closed_error("stream")
        self.device.world.touch(("fault", self.name), 0, 1, writes=False)
        if self.fault is not None:
            raise self.fault.error()

    def _own(self, buffer: Buffer) -> SimBuffer:
        assert isinstance(buffer, SimBuffer)  # the checks have compared the devices
        if buffer.is_closed:
            raise checks.closed_error("buffer")
        return buffer

    def _writable(self, buffer: Buffer) -> SimBuffer:
        own = self._own(buffer)
        if own.is_imported:
            raise UsageError("the buffer is read-only", why="it was imported from host memory")
        return own

    def _task(
        self,
        kind: CommandKind,
        label: str,
        steps: Sequence[Step],
        seconds: float = 0.0,
        buffers: Sequence[SimBuffer] = (),
    ) -> Task:
        label = f"c{self.device.world.enqueued} {label}"
        task = Task(kind, label, self, self.name, steps, seconds=seconds, buffers=buffers)
        self._newest = task
        return task

    def _admit(self, task: Task) -> None:
        """Count a command that passed all checks, unless it is to be refused (ERR-1)."""
        self.device.world.count(task)
        self.position += 1
        task.position = self.position
        self.device.world.host_s += self.device.costs.enqueue_s

    def _enqueue(self, task: Task) -> None:
        """Put a piece of work on the internal queue whose turn it is."""
        queue = self.queues[0]
        if task.kind != "launch" and len(self.queues) > 1:
            queue = self.queues[1 + self._copies % (len(self.queues) - 1)]
            self._copies += 1
        task.actor = queue.actor
        queue.last = self._submit(task, [*self.predecessors(task.kind), task.fetch])
        self.device.world.step_of_host()

    def _fetch(self, ahead: Ahead, launch: Task) -> Task:
        """Read constants of a launch at any time from now on, whatever is in front of it."""
        task = Task("fetch", f"fetch for {launch.label}", self, f"{self.name}.fetch", [ahead.fetch])
        self.device.world.submit(task, [self._last_fetch])
        self._last_fetch = task
        return task

    def _submit(self, task: Task, after: Iterable[Task | None]) -> Task:
        self.device.world.inject(task)
        self.device.world.submit(task, after)
        return task

    def _hold(self, task: Task, event: SimEvent, notice: Task | None) -> None:
        """Let every internal queue wait for a notice; the task is the first queue's."""
        original = event.task

        def learn() -> None:
            if original is not None and original.fault is not None:
                raise original.fault.error()

        for i, queue in enumerate(self.queues):
            part = task
            if i:
                part = Task("wait", task.label, self, queue.actor, ())
                part.position = task.position
            part.steps = [learn]
            part.actor = queue.actor
            part.seconds = self.device.costs.wait_s
            queue.last = self._submit(part, [queue.last, notice])


def _nothing() -> None:
    """Happen, without doing anything."""
