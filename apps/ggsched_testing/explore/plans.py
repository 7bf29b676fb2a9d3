"""Plans in every order: the real executor on simulated devices.

    program = PlanProgram(graph, plan, [values_of_run_0, values_of_run_1])
    found = explore(program)

What is observed are the outputs of each run and the states after the last, to the bit. Setting up
(buffers, weights, states) is not part of the exploration. Give each run inputs of its own, or what
is left over from the run before cannot be distinguished from what should be there.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from ggsched.backend.packed import dequantize
from ggsched.errors import GgschedError, UsageError
from ggsched.ids import show
from ggsched.ir.graph import Graph
from ggsched.ir.tensor import Role, Tensor
from ggsched.plan.bundle import Plan
from ggsched.plan.command import Command
from ggsched.plan.memory import Arena
from ggsched.run.executor import Executor
from ggsched.run.resources import Resources
from ggsched.run.store import TensorStore
from ggsched.topology.model import Topology
from ggsched_testing.explore.outcome import Exploration, Observation
from ggsched_testing.explore.search import explore
from ggsched_testing.oracle.interpreter import run_oracle
from ggsched_testing.schedule_policy import EagerPolicy, SchedulePolicy
from ggsched_testing.sim.config import SimConfig
from ggsched_testing.sim.memory import SimBuffer
from ggsched_testing.sim.world import SimWorld

Array = npt.NDArray[Any]
Values = Mapping[str, Array]

TIMEOUT_S = 30.0  # simulated


def explore_plan(
    graph: Graph,
    plan: Plan,
    values: Sequence[Values],
    *,
    topology: Topology | None = None,
    states: Values | None = None,
    **how: Any,
) -> Exploration:
    """Run a plan in many orders.

    Args:
        graph: The graph of the plan.
        plan: The plan, sound or broken.
        values: Inputs and weights by name for each run, as ``run_oracle`` takes them; the weights
            are those of the first.
        topology: Paths between the devices; every path if not given.
        states: What states hold at first, by name; zeros where not given.
        **how: As for ``explore``.

    Raises:
        UsageError: the plan waits for an event that was not recorded before, or was made for
            another graph or topology.
    """
    return explore(PlanProgram(graph, plan, values, topology=topology, states=states), **how)


class PlanProgram:
    """A plan as a program for ``explore`` and ``replay``.

    Attributes:
        world: The world of the last execution, for its violations and its timeline.
    """

    def __init__(
        self,
        graph: Graph,
        plan: Plan,
        values: Sequence[Values],
        *,
        topology: Topology | None = None,
        states: Values | None = None,
    ) -> None:
        if topology is not None and topology.digest != plan.topology:
            raise UsageError("the plan was made for another topology", where=plan.name)
        self.world: SimWorld | None = None
        self._graph = graph
        self._plan = in_event_order(plan)
        self._values = values
        self._topology = topology
        self._states = {} if states is None else states

    def __call__(self, policy: SchedulePolicy) -> Observation:
        """Run the plan as often as there are values; return what is observed."""
        graph, plan = self._graph, self._plan
        world = self.world = self._make_world()
        store = TensorStore(world.open_all(), self._values[0], timeout_s=TIMEOUT_S)
        resources = Resources(graph, plan, store)
        watch = world.host_reads
        executor = Executor(graph, plan, resources, timeout_s=TIMEOUT_S, watch=watch)
        for name, buffer in self.state_buffers(store, plan.memory.arenas):
            if name in self._states:
                buffer.array[:] = np.frombuffer(self._states[name].tobytes(), np.uint8)
        world.let_choose(policy)
        world.host_peeks = False  # the executor checks which events it may close
        seen: dict[str, Any] = {}
        try:
            for number, values in enumerate(self._values):
                self.run_plan(world, resources, executor, plan, values, number, seen)
            self._drain(store)
            for name, buffer in self.state_buffers(store, plan.memory.arenas):
                seen[f"state {name}"] = buffer.array
        except GgschedError as error:
            if world.refusal is not None:
                raise world.refusal from None
            seen["error"] = f"{type(error).__name__}: {error.what}"
        world.let_choose(EagerPolicy())
        return Observation.of(seen)

    def expected(self) -> Observation:
        """Return what should be observed: the nodes one after another."""
        graph, seen = self._graph, dict[str, Any]()
        states: dict[str, Array] = {name: array.copy() for name, array in self._states.items()}
        weights = {t.name for t in graph.roots(Role.WEIGHT)}
        constant = {n: v for n, v in self._values[0].items() if n in weights}
        for number, values in enumerate(self._values):
            for t in self._plan.splits.transfers:
                if t.pattern is not None:  # which is zeros
                    states.pop(self._plan.splits.values[t.dst].bound, None)
            outputs = run_oracle(graph, {**values, **constant}, states=states)
            for tid in dict.fromkeys(slot.tensor for slot in self._plan.outputs):
                seen[output_name(number, tid)] = outputs[tid]
        for arena in self._plan.memory.arenas:
            if arena.kind == "state":
                seen[f"state {arena.name}"] = states[arena.name]
        return Observation.of(seen)

    def _make_world(self) -> SimWorld:
        if self._topology is not None:
            return SimWorld.of_topology(self._topology, policy=EagerPolicy())
        configs = [SimConfig.of_facts(facts) for facts in self._plan.devices]
        world = SimWorld(configs, policy=EagerPolicy())
        world.facts = list(self._plan.devices)
        return world

    def run_plan(
        self,
        world: SimWorld,
        resources: Resources,
        executor: Executor,
        plan: Plan,
        values: Values,
        number: int,
        seen: dict[str, Any],
    ) -> None:
        """Run a plan once; the host's own accesses are declared to the world."""
        world.step_of_host()
        for slot in plan.inputs:
            world.host_writes(resources.host_bytes(plan.memory.regions[slot.value]))
        inputs = {slot.name: values[slot.name] for slot in plan.inputs}
        outputs = executor.run(inputs)
        for slot in plan.outputs:
            world.host_reads(resources.host_bytes(plan.memory.regions[slot.value]))
        for tid, array in outputs.items():
            seen[output_name(number, tid)] = _plain(self._graph.tensors[tid], array)

    def _drain(self, store: TensorStore) -> None:
        failures = store.drain()
        if failures:
            raise failures[0]

    def state_buffers(
        self, store: TensorStore, arenas: Iterable[Arena]
    ) -> Iterator[tuple[str, SimBuffer]]:
        """Yield the states among arenas, with their names."""
        for arena in arenas:
            if arena.kind == "state":
                buffer = store.tensor(arena, self._graph.named(arena.name))
                assert isinstance(buffer, SimBuffer)
                yield arena.name, buffer


def output_name(run: int, tid: int) -> str:
    """Return what an output of a run is called in an observation."""
    return f"run {run} {show('tensor', tid)}"


def _plain(t: Tensor, array: Array) -> Array:
    """Return an output as the oracle does: bf16 and quantised types as float32."""
    if t.dtype.name in ("f32", "f16", "i32"):
        return array
    return dequantize(np.ascontiguousarray(array).view(np.uint8), t.dtype, t.shape)


def in_event_order(plan: Plan) -> Plan:
    """Return the plan with events numbered as they are recorded, which the executor relies on."""
    number: dict[int, int] = {}
    commands: list[Command] = []
    for command in plan.commands:
        effects = command.effects
        for event in effects.records:
            number.setdefault(event, len(number))
        for event in (*effects.records, *effects.waits):
            if event not in number:
                raise UsageError(
                    f"{show('event', event)} is not recorded before",
                    where=show("command", command.id),
                    why="EVT-3",
                )
            command = msgspec.structs.replace(command, event=number[event])
        commands.append(command)
    return msgspec.structs.replace(plan, commands=tuple(commands))
