"""What the devices of one simulation share: time, memory, what they have made, what goes wrong."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from ggsched.backend.checks import check_timeout
from ggsched.backend.progress import Fault
from ggsched.backend.protocols import Device, Event, HostMemory
from ggsched.errors import DeviceFault, SyncTimeout, UsageError
from ggsched.topology.caps import DeviceFacts
from ggsched_testing.schedule_policy import RandomPolicy, SchedulePolicy
from ggsched_testing.sim.config import InjectedFaults, SimConfig
from ggsched_testing.sim.costs import Costs
from ggsched_testing.sim.engine import Engine, Task, TaskDevice
from ggsched_testing.sim.memory import Bytes, HostPlaces, SimBuffer
from ggsched_testing.sim.paths import ConfigPaths, Paths

Thing = Literal["buffers", "streams", "events", "programs"]
THINGS: Final[tuple[Thing, ...]] = ("buffers", "streams", "events", "programs")


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that the caller did and the contract forbids.

    Attributes:
        rule: Id of the rule.
        what: What was done, with the commands concerned.
    """

    rule: str
    what: str


class WorldState(Engine):
    """What the devices of one world share; see ``SimWorld``.

    Args:
        configs: Capabilities of each device.
        policy: Chooses the next step; by seed if not given.
        seed: For the policy.
        faults: What is to go wrong; can be set later, too.

    Attributes:
        enqueued: Number of commands so far, which is the number of the next one.
        violations: What callers did that the contract forbids.
        paths: Paths between the devices.
        host_peeks: Whether ``is_done`` looks at the device. If not, it returns what the host knows
            from waiting, and nothing happens meanwhile: that keeps down the orders of a program
            that uses it for tidying up only.
    """

    def __init__(
        self,
        configs: Sequence[SimConfig] = (),
        *,
        policy: SchedulePolicy | None = None,
        seed: int = 0,
        faults: InjectedFaults | None = None,
    ) -> None:
        super().__init__(policy or RandomPolicy(seed))
        self.faults = faults or InjectedFaults()
        self.enqueued = 0
        self.violations: list[Violation] = []
        self.configs = list(configs)
        self.facts = [config.facts(i) for i, config in enumerate(configs)]
        self.paths: Paths = ConfigPaths(self.configs)
        self.host_peeks = True
        self._places = HostPlaces()
        self._live: dict[Thing, set[int]] = {thing: set() for thing in THINGS}
        self._made = dict.fromkeys(THINGS, 0)

    def index_of(self, facts: DeviceFacts) -> int | None:
        """Return the number of the device with these facts, or None."""
        return next((i for i, known in enumerate(self.facts) if known == facts), None)

    def clock(self) -> float:
        """Return the simulated time of the host, in seconds."""
        return self.host_s

    # --- the host ------------------------------------------------------------------------------

    def host_reads(self, memory: HostMemory) -> None:
        """Declare that the host reads memory before it calls again; for ``explore``."""
        self._host_touches(memory, writes=False)

    def host_writes(self, memory: HostMemory) -> None:
        """Declare that the host writes memory before it calls again; for ``explore``."""
        self._host_touches(memory, writes=True)

    def block(self, tasks: Sequence[Task | None], timeout_s: float, where: str) -> None:
        """Block the host until tasks are done, or until nothing can happen any more.

        A timeout is simulated: it is over when all that can run has run. A timeout of zero lets
        nothing run.

        Raises:
            SyncTimeout: some of them will not end.
        """
        check_timeout(timeout_s, where)
        if timeout_s > 0:
            left = self.wait_for(tasks)
        else:
            left = [task for task in tasks if task is not None and not task.is_done]
        if left:
            self.host_s += max(timeout_s, 0.0)
            raise SyncTimeout(
                f"{left[0].label} is not complete after {timeout_s:g} s",
                where=where,
                why=self._why(left),
                hint="look for a command that hangs, or for a latch that is never released",
            )

    # --- life and death ------------------------------------------------------------------------

    def live(self) -> dict[Thing, int]:
        """Return how many things of each sort have been made and not closed."""
        return {thing: len(numbers) for thing, numbers in self._live.items()}

    def remember(self, thing: Thing, number: int) -> None:
        """Count something that was made."""
        self._live[thing].add(number)

    def forget(self, thing: Thing, number: int) -> None:
        """Count something that was closed."""
        self._live[thing].discard(number)

    def free(self, buffer: SimBuffer) -> None:
        """Take note that a buffer is freed; nobody may be about to use it (BUF-2)."""
        self.forget("buffers", buffer.number)
        if not buffer.is_imported:
            self.touch(buffer.space, buffer.base, buffer.base + buffer.nbytes, writes=True)
        users = sorted(t for t in self.pending if buffer in t.buffers and not t.is_doomed)
        if users:
            names = ", ".join(task.label for task in users)
            what = f"{buffer.space} of {buffer.device.facts.name} is freed before it is used by"
            self.violations.append(Violation("BUF-2", f"{what} {names}"))

    def report_use_after_free(self, buffer: SimBuffer) -> None:
        """Take note that a step uses a buffer that was freed (BUF-2)."""
        by = self.present.label if self.present else "the host"
        what = f"{buffer.space} of {buffer.device.facts.name} was freed and is used by {by}"
        violation = Violation("BUF-2", what)
        if violation not in self.violations:
            self.violations.append(violation)

    def lose(self, device: TaskDevice, at: Task, error: DeviceFault) -> None:
        """Let a device be gone: whatever its streams have not completed fails."""
        device.lost = error
        for stream in device.streams:
            if stream is at.stream:
                continue  # there the command itself has failed
            waiting = sorted(t.position for t in self.pending if t.stream is stream)
            position = next((p for p in waiting if p), stream.position + 1)
            if stream.fault is None or position < stream.fault.position:
                stream.fault = Fault(stream.name, f"device {device.facts.name}", error, position)
            self.touch(("fault", stream.name), 0, 1, writes=True)
        for task in sorted(self.pending):
            if task.stream.device is device:
                self.release(task)

    # --- faults --------------------------------------------------------------------------------

    def count(self, task: Task) -> None:
        """Count a command.

        Raises:
            UsageError: it is to be refused (ERR-1).
        """
        number = self.enqueued
        self.enqueued += 1
        if number in self.faults.refuse:
            raise UsageError(f"{task.label} is refused", where=task.stream.name, why="on purpose")
        for injected_fault in ("fail", "lose", "hang"):
            if number in getattr(self.faults, injected_fault):
                task.injected_fault = injected_fault

    def inject(self, task: Task) -> None:
        """Let a task that is about to be enqueued go wrong, as its injected fault says."""
        device = task.stream.device

        def fail() -> None:
            raise DeviceFault(f"{task.label} fails", where=task.stream.name, why="on purpose")

        def lose() -> None:
            what = f"{device.facts.name} is lost"
            error = DeviceFault(what, where=task.stream.name, why=f"at {task.label}, on purpose")
            self.lose(device, task, error)
            raise error

        if task.injected_fault == "fail":
            task.steps = [*task.steps[:-1], fail]
        elif task.injected_fault == "lose":
            task.steps = [lose, *task.steps[1:]]
        elif task.injected_fault == "hang":
            task.hangs = True

    # --- numbers and names ---------------------------------------------------------------------

    @property
    def allocated(self) -> int:
        """Number of allocations so far, which is the number of the next one."""
        return self._made["buffers"]

    def next_number(self, thing: Thing) -> int:
        """Return the number of the next thing of a sort, and count on."""
        number = self._made[thing]
        self._made[thing] += 1
        return number

    def place_of(self, memory: HostMemory, *, stays: bool = False) -> tuple[str, int]:
        """Return the name of host memory for ``touch`` and its first byte there.

        Without a policy that tracks it has no name, unless it stays longer than the policy.
        """
        return self._places.find(memory) if stays or self.policy.tracks else ("", 0)

    def name_host_memory(self, array: Bytes, name: str) -> None:
        """Let host memory have the name of a buffer whose bytes it is."""
        self._places.add(array, name)

    def _host_touches(self, memory: HostMemory, *, writes: bool) -> None:
        if self.policy.tracks and memory.nbytes:
            space, start = self.place_of(memory)
            self.touch(space, start, start + memory.nbytes, writes=writes)

    def _why(self, left: Sequence[Task]) -> str:
        stuck = [t for t in sorted(self.pending) if t.hangs and not t.after]
        return f"{stuck[0].label} never ends" if stuck else f"it comes after {left[0].label}"


class SimOwner(TaskDevice, Device, Protocol):
    """What streams, events and programs use of their device, a ``SimDevice``."""

    @property
    def world(self) -> WorldState:
        """What it shares with the other devices."""

    @property
    def costs(self) -> Costs:
        """What things cost in simulated time."""

    def check_path(self, src: Device, dst: Device) -> None:
        """Refuse a copy in a direction, or with a world, for which there is no path (CPY-6)."""

    def check_wait(self, event: Event) -> None:
        """Refuse to wait for an event that was not recorded or that there is no path for."""
