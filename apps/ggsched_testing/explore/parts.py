"""Parts of a plan in every order: the executors of several machines on simulated devices.

    program = PartsProgram(graph, plan, parts, machine_of, [values], topology=topology)
    found = explore(program)

All devices are in one simulated world; each machine has host memory and an executor of its own. Of
the hosts one runs at a time, until it needs a message that has not been sent. That leaves out no
result: what hosts of different machines do between two messages touches no common memory, so its
order does not matter, and the steps of all devices are chosen from as in any exploration. Messages
may arrive in any order (NET-4), which makes no difference here either: they are matched by tags.
"""

from collections.abc import Callable, Mapping, Sequence
from threading import Condition, Thread
from typing import Any

from ggsched.backend.offline_device import OfflineDevice
from ggsched.backend.protocols import Device, HostMemory
from ggsched.errors import DeviceFault, GgschedError
from ggsched.ir.graph import Graph
from ggsched.plan.bundle import Plan
from ggsched.plan.parts import Part, local_plan
from ggsched.run.executor import Executor
from ggsched.run.resources import Resources
from ggsched.run.store import TensorStore
from ggsched.topology.model import Topology
from ggsched_testing.explore.outcome import Observation
from ggsched_testing.explore.plans import (
    TIMEOUT_S,
    PlanProgram,
    Values,
    in_event_order,
    output_name,
)
from ggsched_testing.schedule_policy import EagerPolicy, SchedulePolicy
from ggsched_testing.sim.world import SimWorld


class PartsProgram(PlanProgram):
    """Parts of a plan as a program for ``explore`` and ``replay``.

    Args:
        graph: The graph of the plan.
        parts: Its parts, sound or broken.
        machine_of: The machine of each device.
        values: As for ``PlanProgram``.
        topology: Paths between the devices.
    """

    def __init__(
        self,
        graph: Graph,
        plan: Plan,
        parts: Sequence[Part],
        machine_of: Sequence[int],
        values: Sequence[Values],
        *,
        topology: Topology,
    ) -> None:
        super().__init__(graph, plan, values, topology=topology)
        self._parts, self._machine_of, self._all = parts, machine_of, topology

    def __call__(self, policy: SchedulePolicy) -> Observation:
        """Run all parts as often as there are values; return what is observed."""
        world = self.world = self._make_world()
        devices = world.open_all()
        hosts = [_Host(self, part, devices, world) for part in self._parts]
        world.let_choose(policy)
        world.host_peeks = False
        seen: dict[str, Any] = {}
        try:
            for number, values in enumerate(self._values):
                turns, found = _Turns([host.part.machine for host in hosts]), dict[str, Any]()
                turns.run([host.run_of(turns, values, number, found) for host in hosts])
                names = [output_name(number, slot.tensor) for slot in self._plan.outputs]
                seen |= {name: found[name] for name in names}
            states: dict[str, Any] = {}
            for host in hosts:
                self._drain(host.store)
                states |= {name: buffer.array for name, buffer in host.states()}
            for arena in self._plan.memory.arenas:
                if arena.name in states:
                    seen[f"state {arena.name}"] = states[arena.name]
        except GgschedError as error:
            if world.refusal is not None:
                raise world.refusal from None
            seen["error"] = f"{type(error).__name__}: {error.what}"
        world.let_choose(EagerPolicy())
        return Observation.of(seen)

    def host_parts(
        self, part: Part, devices: Sequence[Device]
    ) -> tuple[Graph, Plan, list[Device], Mapping[str, Any]]:
        """Return the graph, the plan of a machine, devices as it sees them, and the weights."""
        own = [
            device if self._machine_of[d] == part.machine else OfflineDevice(self._all, d)
            for d, device in enumerate(devices)
        ]
        plan = in_event_order(local_plan(self._plan, part, self._plan.devices))
        return self._graph, plan, own, self._values[0]


class _Host:
    """A machine: its store and its executor."""

    def __init__(
        self, program: PartsProgram, part: Part, devices: Sequence[Device], world: SimWorld
    ) -> None:
        self.part, self._program, self._world = part, program, world
        graph, self._plan, own, weights = program.host_parts(part, devices)
        self.store = TensorStore(own, weights, timeout_s=TIMEOUT_S)
        self._resources = Resources(graph, self._plan, self.store)
        self._turns: _Turns | None = None
        self._executor = Executor(
            graph,
            self._plan,
            self._resources,
            timeout_s=TIMEOUT_S,
            watch=world.host_reads,
            network=self,
        )

    def run_of(
        self, turns: "_Turns", values: Values, number: int, seen: dict[str, Any]
    ) -> Callable[[], None]:
        """Return what runs the part once."""

        def run() -> None:
            self._turns = turns
            world, resources, plan = self._world, self._resources, self._plan
            self._program.run_plan(world, resources, self._executor, plan, values, number, seen)

        return run

    def states(self) -> Any:
        """Yield the states that live on the machine."""
        used = {r.arena for c in self._plan.commands for r in _regions(c)}
        arenas = [a for a in self._plan.memory.arenas if a.id in used]
        return self._program.state_buffers(self.store, arenas)

    def send(self, machine: int, tag: int, source: HostMemory) -> None:
        """See ``Network``."""
        assert self._turns is not None
        self._world.step_of_host()
        self._world.host_reads(source)
        self._turns.messages.setdefault((machine, tag), bytes(source))

    def receive(self, machine: int, tag: int, target: HostMemory) -> None:
        """See ``Network``; another host goes on until the message is there."""
        assert self._turns is not None
        content = self._turns.take(self.part.machine, tag)
        self._world.step_of_host()
        self._world.host_writes(target)
        target[:] = content


def _regions(command: Any) -> list[Any]:
    effects = command.effects
    return [*effects.reads, *effects.writes, *(r for s in effects.steps for r in s.operands)]


class _Turns:
    """Lets one of several hosts run at a time, always in the same order.

    Attributes:
        messages: What was sent, by receiver and tag.
    """

    def __init__(self, machines: Sequence[int]) -> None:
        self.messages: dict[tuple[int, int], bytes] = {}
        self._machines = list(machines)
        self._wants: dict[int, int] = {}
        self._left = list(machines)
        self._now = self._left[0]
        self._is_stuck = False
        self._changed = Condition()

    def run(self, jobs: Sequence[Callable[[], None]]) -> None:
        """Run a job for each machine; raise the first error."""
        errors: dict[int, BaseException] = {}

        def work(machine: int, job: Callable[[], None]) -> None:
            with self._changed:
                self._changed.wait_for(lambda: self._now == machine)
            try:
                job()
            except BaseException as error:  # raised by the caller's thread
                errors.setdefault(machine, error)
            finally:
                with self._changed:
                    self._left.remove(machine)
                    self._pass_on()

        pairs = zip(self._machines, jobs, strict=True)
        threads = [Thread(target=work, args=pair, daemon=True) for pair in pairs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise next(iter(errors.values()))

    def take(self, machine: int, tag: int) -> bytes:
        """Return a message, once another host has sent it."""
        with self._changed:
            while (machine, tag) not in self.messages:
                if self._is_stuck:
                    raise DeviceFault(f"message #{tag} never came", where=f"machine {machine}")
                self._wants[machine] = tag
                self._pass_on()
                self._changed.wait_for(lambda: self._now == machine)
            self._wants.pop(machine, None)
            return self.messages[machine, tag]

    def _pass_on(self) -> None:
        """Let the next host run that can; if there is none, the next one finds itself stuck."""
        ready = [m for m in self._left if m not in self._wants or self._is_there(m)]
        self._is_stuck = self._is_stuck or not ready
        for m in (ready or self._left)[:1]:
            self._now = m
        self._changed.notify_all()

    def _is_there(self, machine: int) -> bool:
        return (machine, self._wants[machine]) in self.messages
