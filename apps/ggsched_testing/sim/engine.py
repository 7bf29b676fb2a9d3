"""The heart of the simulator: pending commands, what may run next, and simulated time.

A ``Task`` is a command that was enqueued. It comes after other tasks and is done in steps. Whenever
the host calls, and as long as it waits, a ``SchedulePolicy`` chooses which step happens next, or
whether the host goes on; nothing else makes anything happen.
"""

from bisect import insort
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from threading import RLock
from typing import Final, Protocol

from ggsched.backend.progress import Fault
from ggsched.errors import DeviceFault, GgschedError
from ggsched.topology.caps import DeviceFacts
from ggsched_testing.schedule_policy import HOST, Option, SchedulePolicy
from ggsched_testing.sim.costs import CommandKind, TimeSpan

Step = Callable[[], None]

MAX_SPANS: Final = 200_000
PATIENT_POLLS: Final = 2
"""How often the host may poll in a row before something has to happen (STR-3)."""
MAX_PUSHES: Final = 10
"""What has to happen then is twice as much each time, up to two to the power of this many steps: a
host that only polls sees the end of a long launch in tens of polls."""


class TaskDevice(Protocol):
    """What is known of the device of a task; it is a ``SimDevice``."""

    runs_after_faults: bool
    lost: DeviceFault | None

    @property
    def facts(self) -> DeviceFacts:
        """What it declares."""

    @property
    def streams(self) -> Sequence["TaskStream"]:
        """Its streams that may be open."""


class TaskStream(Protocol):
    """What is known of the stream of a task; it is a ``SimStream``."""

    name: str
    position: int
    known: int
    fault: Fault | None

    @property
    def device(self) -> TaskDevice:
        """The device."""

    def fault_before(self, position: int) -> Fault | None:
        """Return the failure of the command of this position (ERR-2)."""

    def fail(self, task: "Task", error: Exception) -> Fault:
        """Note that a task failed."""


class Task:
    """A command that was enqueued.

    Attributes:
        number: Number in the world.
        kind: What sort of command.
        label: For people, e.g. ``c12 launch n3 add``.
        stream: Stream that it was enqueued on.
        actor: Queue that does it; it does one task after the other.
        steps: What happens, in order.
        seconds: How long it takes in simulated time.
        parts: Of a launch the label and the seconds of each node.
        buffers: Memory that it uses.
        position: Number on its stream, from 1.
        fetch: Of a launch with constants: the task that reads them; it is part of the launch.
        injected_fault: What is to go wrong with it, as in ``Faults``, or "".
        hangs: Whether its last step does not happen.
        is_done: Whether it is complete, or will never be because something failed.
        fault: Why it is not complete, or why it failed.
        end_s: When it was complete.
        ended: Moment at which it was complete.
    """

    __slots__ = (
        "actor",
        "after",
        "at",
        "buffers",
        "causes",
        "end_s",
        "ended",
        "fault",
        "fetch",
        "followers",
        "hangs",
        "injected_fault",
        "is_done",
        "kind",
        "label",
        "number",
        "parts",
        "position",
        "seconds",
        "start_s",
        "steps",
        "stream",
    )

    def __init__(
        self,
        kind: CommandKind,
        label: str,
        stream: TaskStream,
        actor: str,
        steps: Sequence[Step],
        *,
        seconds: float = 0.0,
        buffers: Sequence[object] = (),
    ) -> None:
        self.number = -1
        self.kind: CommandKind = kind
        self.label = label
        self.stream = stream
        self.actor = actor
        self.steps = steps
        self.seconds = seconds
        self.parts: Sequence[tuple[str, float]] = ()
        self.buffers = buffers
        self.position = stream.position
        self.fetch: Task | None = None
        self.injected_fault = ""
        self.hangs = False
        self.is_done = False
        self.fault: Fault | None = None
        self.start_s = 0.0
        self.end_s = 0.0
        self.ended = 0
        self.at = 0
        self.after: set[Task] = set()
        self.followers: list[Task] = []
        self.causes: list[int] = []

    @property
    def is_doomed(self) -> bool:
        """Whether it will never happen, because an earlier command of its stream has failed."""
        return self.stream.fault_before(self.position) is not None

    def __lt__(self, other: "Task") -> bool:
        """Order by number, so that the steps that may happen are listed in that order."""
        return self.number < other.number


class Engine:
    """Pending tasks and the order in which they run.

    Attributes:
        policy: Chooses the next step.
        moment: Number of decisions so far.
        host_s: Simulated time of the host.
        pending: Tasks that are not done.
        present: Task whose step is under way; None while the host is at work.
        refusal: What the policy raised, if it did; somebody may have caught it on the way.
    """

    def __init__(self, policy: SchedulePolicy) -> None:
        self.policy = policy
        self.present: Task | None = None
        self.refusal: GgschedError | None = None
        self.moment = 0
        self.host_s = 0.0
        self.pending: set[Task] = set()
        self._ready: list[Task] = []
        self._tasks = 0
        self._host_moment = 0
        self._origin = 0
        self._polls: Counter[str] = Counter()
        self._pushes = 0
        self._spans: deque[TimeSpan] = deque(maxlen=MAX_SPANS)
        # A stream of another backend may wait for an event in a thread of its own.
        self._lock = RLock()

    # --- for whoever decides -----------------------------------------------------------------

    def let_choose(self, policy: SchedulePolicy) -> None:
        """Hand the decisions to another policy, whose moments count from now."""
        self.policy = policy
        self._origin = self.moment

    def touch(self, space: Hashable, start: int, end: int, *, writes: bool) -> None:
        """Tell the policy what the present step touches."""
        if start < end and self.policy.tracks:
            self.policy.touch(space, start, end, writes=writes)

    def timeline(self) -> tuple[TimeSpan, ...]:
        """Return when each command ran in simulated time, by start."""
        return tuple(sorted(self._spans, key=lambda span: (span.start_s, span.end_s)))

    # --- enqueueing and waiting --------------------------------------------------------------

    def submit(self, task: Task, after: Iterable[Task | None]) -> None:
        """Enqueue a task that comes after others."""
        with self._lock:
            task.number = self._tasks
            self._tasks += 1
            task.start_s = self.host_s
            task.causes.append(self._host_moment)
            for other in after:
                if other is None or other in task.after:
                    continue
                if other.is_done:
                    self._follow(task, other)
                else:
                    task.after.add(other)
                    other.followers.append(task)
            self.pending.add(task)
            if not task.after:
                self._make_ready(task)

    def step_of_host(self) -> None:
        """Let anything happen before the host goes on."""
        with self._lock:
            self._forget_polls()
            self._choose_until(())

    def poll(self, what: str) -> None:
        """Let anything happen before the host looks; something must, if it looks again and again.

        What is enqueued makes progress without the host waiting (STR-3).
        """
        with self._lock:
            self._polls[what] += 1
            if self._polls[what] > PATIENT_POLLS:
                self._polls.clear()
                for _ in range(1 << self._pushes):
                    if self._ready:
                        self._choose(host=False, wanted=(), needed=None)
                self._pushes = min(self._pushes + 1, MAX_PUSHES)
            self._choose_until(())

    def _forget_polls(self) -> None:
        self._polls.clear()
        self._pushes = 0

    def wait_for(self, tasks: Iterable[Task | None]) -> list[Task]:
        """Block the host until tasks are done; return those that never will be."""
        with self._lock:
            self._forget_polls()
            wanted = [task for task in tasks if task is not None]
            self._choose_until(wanted)
            if wanted:
                self.host_s = max(self.host_s, *(task.end_s for task in wanted))
            return [task for task in wanted if not task.is_done]

    def release(self, task: Task) -> None:
        """Let a task that was held go on."""
        with self._lock:
            task.hangs = False
            if not task.is_done and not task.after and task not in self._ready:
                task.causes.append(self._host_moment)
                self._make_ready(task)

    # --- steps -------------------------------------------------------------------------------

    def _choose_until(self, wanted: Sequence[Task]) -> None:
        """Ask until the host goes on, which it can when all wanted tasks are done."""
        needed: set[Task] | None = None
        while True:
            can = all(task.is_done for task in wanted)
            if not can and needed is None:
                needed = _closure(wanted)
            hopeless = not can and not self._ready
            if self._choose(host=can or hopeless, wanted=wanted, needed=needed):
                return

    def _choose(self, *, host: bool, wanted: Sequence[Task], needed: set[Task] | None) -> bool:
        """Let one thing happen; return whether it was the host that went on."""
        ready = self._ready
        options = [
            Option(t.actor, t.label, self._causes(t), needed is None or t in needed) for t in ready
        ]
        if host:
            options.append(Option(HOST, "the host goes on", self._causes_of_host(wanted)))
        at = self._ask(options)
        self.moment += 1
        if at == len(ready):
            self._host_moment = self.moment
            return True
        self._advance(ready[at])
        return False

    def _ask(self, options: Sequence[Option]) -> int:
        """Ask the policy; what it raises is not a device fault, so it is kept for the caller."""
        try:
            return self.policy.choose(options)
        except GgschedError as error:
            self.refusal = self.refusal or error
            raise

    def _causes(self, task: Task) -> tuple[int, ...]:
        if not self.policy.tracks:
            return ()
        return tuple(max(0, moment - self._origin) for moment in task.causes)

    def _causes_of_host(self, wanted: Sequence[Task]) -> tuple[int, ...]:
        if not self.policy.tracks:
            return ()
        if all(task.is_done for task in wanted):
            return tuple(max(0, task.ended - self._origin) for task in wanted)
        return tuple(range(1, self.moment - self._origin + 1))  # it gives up: nothing else is left

    def _advance(self, task: Task) -> None:
        """Do the next step of a task."""
        stream = task.stream
        self.touch(("fault", stream.name), 0, 1, writes=False)
        fault = stream.fault_before(task.position)
        ends = fault is not None and not stream.device.runs_after_faults
        if not ends:
            self.present = task
            try:
                task.steps[task.at]()
            except Exception as error:
                ends, fault = True, fault or stream.fail(task, error)
            finally:
                self.present = None
        task.at += 1
        if ends or task.at >= len(task.steps):
            task.fault = fault
            self._finish(task)
        elif task.hangs and task.at == len(task.steps) - 1:
            self._ready.remove(task)

    def _finish(self, task: Task) -> None:
        self._ready.remove(task)
        self.pending.discard(task)
        task.is_done = True
        task.end_s = task.start_s + task.seconds
        task.ended = self.moment
        if task.fault is None and task.kind != "fetch":
            span = (task.stream.device.facts.name, task.stream.name, task.label, task.kind)
            self._spans.append(TimeSpan(*span, task.start_s, task.end_s))
        self.touch(("done", task.actor), 0, 1, writes=True)
        for follower in task.followers:
            follower.after.discard(task)
            self._follow(follower, task)
            if not follower.after:
                self._make_ready(follower)
        task.followers.clear()
        task.steps = ()
        task.buffers = ()
        task.fetch = None

    def _follow(self, task: Task, before: Task) -> None:
        task.start_s = max(task.start_s, before.end_s)
        task.causes.append(before.ended)

    def _make_ready(self, task: Task) -> None:
        if not (task.hangs and task.at == len(task.steps) - 1):
            insort(self._ready, task)


def _closure(tasks: Iterable[Task]) -> set[Task]:
    """Return the tasks and all that they come after and that is not done."""
    found: set[Task] = set()
    stack = [task for task in tasks if not task.is_done]
    while stack:
        task = stack.pop()
        if task not in found:
            found.add(task)
            stack.extend(task.after)
    return found
