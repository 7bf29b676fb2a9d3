"""The facade: devices in, plans out, runs on live devices.

    with Scheduler(["opencl:0", "cpu:0"], weights={"w": w}) as scheduler:
        y = scheduler.run(graph, {"x": x})[graph.outputs[0]]

Everything that was made on the devices is released when the block ends.
"""

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from types import TracebackType
from typing import Final, Self

import numpy as np
from msgspec import structs

from ggsched.backend.free_memory import free_nbytes
from ggsched.backend.lanes import proposed_lanes
from ggsched.backend.probe import probe
from ggsched.backend.protocols import Device
from ggsched.calibrate.cache import load_rates
from ggsched.config import Settings
from ggsched.errors import OutOfDeviceMemory, PlanError, UsageError
from ggsched.interchange.dlpack_import import ArrayLike, WeightsLike, host_arrays, host_weights
from ggsched.ir.graph import Graph
from ggsched.ir.tensor import Role
from ggsched.passes.cost.predict import predict_step
from ggsched.passes.place import Constraints, PlacementPolicy
from ggsched.passes.recognise import recognise_attention
from ggsched.plan.bundle import Plan
from ggsched.plan.placement import PlacementCandidate
from ggsched.planner import KEPT, CacheInfo, PlanKey, Planner
from ggsched.report.debug_output import log_machine, recorder_for
from ggsched.report.predicted_timeline import recorded_run
from ggsched.run.autotune import Measured
from ggsched.run.cache import RecentCache
from ggsched.run.call_guard import CallGuard, guarded
from ggsched.run.expert_ledger import ExpertLedger
from ggsched.run.following import state_streams, takes_turns
from ggsched.run.placement_trial import TriedPlacement, kept_placement, measure_placements
from ggsched.run.protocols import Run
from ggsched.run.release import close_after, close_all
from ggsched.run.run_order import Outputs, RunOrder, StartedRun
from ggsched.run.runtime import names_of, open_runtime, opened
from ggsched.run.store import Progress, WeightSource, report_stage
from ggsched.run.tensor_interop import Exchange
from ggsched.topology.cost import GUESSES, MachineRates
from ggsched.topology.model import Topology
from ggsched.trace.recorder import Recorder

_FREE: Final = Constraints()


@dataclass(frozen=True, slots=True)
class Planned:
    """The graph that is planned in place of the caller's.

    Attributes:
        graph: The graph to which plans refer.
        constraints: The caller's constraints for its nodes.
        tensor_of: Its tensor id for each output of the caller's graph; None if ids are the same.
        before: The graph before nodes were decomposed.
        origin: By node, the node of ``before`` that it is, or is a part of; empty where nothing was
            decomposed.
    """

    graph: Graph
    constraints: Constraints
    tensor_of: Mapping[int, int] | None
    before: Graph
    origin: tuple[int, ...] = ()


class Scheduler:
    """Plans graphs over devices and runs them, one call at a time.

    Different threads may make calls one after another. A call during a call of another thread
    raises ``UsageError`` with the names of both threads and changes nothing; so does a call by a
    callback (a source of weights, ``progress``), except for ``plan``, ``free_nbytes`` and exports.
    No call waits for another. Properties, ``draft`` and ``resident_nbytes`` may be used at any time
    on any thread.

    Weights and states are resident once and shared by all graphs that name them. Plans and their
    memory are cached by graph digest and constraints; machine and settings are the same throughout.
    The ``plan_limit`` plans used last are kept, unless a new one needs their memory. With
    ``streams="autotune"`` the first runs of a graph alternate between a plan with one stream per
    device and one with several, and the faster one is kept.

    After an error of a run the streams are drained and other runs may follow, unless a device has
    faulted: then ``reset`` starts again. ``close`` releases everything in any case.

    Examples:
        >>> import numpy as np
        >>> from ggsched import GraphBuilder, Scheduler
        >>> g = GraphBuilder()
        >>> x, w = g.input("x", (1, 2)), g.weight("w", (3, 2))
        >>> graph = g.build(y=g.mul_mat(w, x))
        >>> weights = {"w": np.ones((3, 2), np.float32)}
        >>> with Scheduler(["cpu:0"], weights=weights) as scheduler:
        ...     scheduler.run(graph, {"x": np.ones((1, 2), np.float32)})["y"].tolist()
        [[2.0, 2.0, 2.0]]
    """

    def __init__(
        self,
        devices: Sequence[str] | Sequence[Device] | None = None,
        *,
        weights: WeightsLike | None = None,
        settings: Settings | None = None,
        placement: PlacementPolicy | str = "auto",
        plan_limit: int = 16,
        progress: Progress | None = None,
        recorder: Recorder | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Open devices and probe them.

        Args:
            devices: Names such as ``"opencl:0"`` in order of priority, or open devices, which
                the caller closes. All usable devices where none are given.
            weights: Arrays by name, or a function from a name to an array, as for ``run``.
            settings: From the environment where not given.
            placement: Decides where nodes run, and therefore where weights without a given home
                live: ``"ggml"`` for ggml's rules, ``"cost"`` for the least predicted time, or a
                policy (see ``ggsched.passes.place``). The default, ``"auto"``, is ``"cost"`` for
                graphs without pins and homes on several devices, with the rates that ``ggsched
                calibrate`` measured if there are any; and ggml's rules for others. ``"autotune"``
                also measures each device alone on the inputs of the first run, with weights and
                states of its own, and keeps what is faster; not on devices of other machines,
                nor with a memory budget. Graphs that share a weight or a state need one home for
                it: the default keeps the first, other policies need it in the constraints.
            plan_limit: Number of plans whose memory is kept.
            progress: Called with name and bytes of each weight that has become resident. If it
                has a method ``stage``, that is called with a description of the current step.
            recorder: Records every call on the devices.
            clock: Seconds, for ``streams="autotune"`` and ``placement="autotune"``.

        Raises:
            UsageError: an invalid device name, no devices, a memory budget for a device that is
                not among them, or an invalid ``placement``.
            BackendUnavailable: a device that does not exist.
            BackendBroken: a plug-in that fails or declares wrong facts.
        """
        self.guard = CallGuard()
        self.settings = settings or Settings.from_environment()
        self._names = names_of(devices)
        self._weights: WeightSource = host_weights({} if weights is None else weights)
        self._progress = progress
        self._recorder = recorder_for(self.settings.debug, recorder)
        self._executors: RecentCache[PlanKey, Run] = RecentCache(plan_limit, self._evict)
        self._owned, given = opened(devices, self.settings)
        try:
            self._set_up(given)
            self._planner = Planner(
                self.settings,
                self.topology,
                plan_limit,
                placement,
                partial(proposed_lanes, self._bare),
            )
            log_machine(self.topology, self.settings.debug)
        except BaseException:
            close_all(self._owned)
            raise
        self._planned: RecentCache[tuple[str, str], Planned] = RecentCache(KEPT * plan_limit)
        self._clock = clock
        self._has_room = True
        self._setup_s = 0.0
        self._is_measuring = False
        self._is_closed = False

    @property
    def devices(self) -> tuple[Device, ...]:
        """The open devices in order of priority, without layers that check or record calls."""
        return self._bare

    @property
    def plan_cache(self) -> CacheInfo:
        """Hits and misses of the plan cache so far."""
        return self._planner.cache

    @property
    def setup_s(self) -> float:
        """Seconds that runs have spent on planning, loading weights and compiling so far."""
        return self._setup_s

    @property
    def measured(self) -> tuple[Measured, ...]:
        """What was found about one stream against several, for the graphs run last."""
        return self._planner.measured

    @guarded(may_nest=True)
    def plan(self, graph: Graph, constraints: Constraints | None = None) -> Plan:
        """Return the plan that the next run of a graph uses, from the cache if it was made before.

        A new plan is verified and checked for races first, as the settings say.

        Args:
            constraints: Homes of weights and states, pins of nodes, rates; none by default.

        Raises:
            PlanError: the graph cannot be placed on the devices.
            RaceFound: the sanitizer found a defect in the plan.

        Examples:
            >>> with Scheduler(["cpu:0"]) as scheduler:
            ...     plan = scheduler.plan(graph)
            >>> [device.name for device in plan.devices]
            ['cpu:0']
        """
        planned = self.planned(graph, constraints)
        plans = self._planner.draft if self._is_measuring else self._planner.plan
        return plans(planned.graph, planned.constraints)

    def planned_graph(self, graph: Graph, constraints: Constraints | None = None) -> Graph:
        """Return the graph that is planned in place of this one; node ids of plans refer to it.

        Nodes that compute attention become the op ``attention`` if all devices that could run its
        softmax support the op (``ggsched.passes.recognise``), unless constraints name nodes.
        A node is decomposed into other ops on a device without a kernel for it, if that is
        predicted to be faster than another device (``ggsched.passes.decomposed_plan``).

        Args:
            constraints: Homes of weights and states, pins of nodes, rates; none by default.

        Examples:
            >>> with Scheduler(["cpu:0"]) as scheduler:
            ...     scheduler.planned_graph(graph) is graph  # nothing is decomposed here
            True
        """
        return self.planned(graph, constraints).graph

    @guarded(may_nest=True)
    def planned(
        self,
        graph: Graph,
        constraints: Constraints | None = None,
        inputs: Mapping[str, ArrayLike] | None = None,
    ) -> Planned:
        """Return ``planned_graph`` with the constraints for it, and what its nodes were.

        Args:
            constraints: Homes of weights and states, pins of nodes, rates; none by default.
            inputs: What ``placement="autotune"`` measures with; zeros by default.

        Examples:
            >>> with Scheduler(["cpu:0"]) as scheduler:
            ...     scheduler.planned(graph).graph is graph
            True
        """
        wanted = self._wanted(constraints)
        if self._is_measuring:  # a source of weights asks, before anything is decided
            return self._make_planned(graph, wanted)
        return self._planned.get(
            (graph.digest, wanted.digest),
            lambda: self._measured(self._make_planned(graph, wanted), wanted, inputs),
        )

    def _wanted(self, constraints: Constraints | None) -> Constraints:
        """Return what the caller decided; over several devices, with the measured rates."""
        wanted = constraints or _FREE
        if wanted.rates is None and self._rates is not None:
            return replace(wanted, rates=self._rates)
        return wanted

    def _make_planned(self, graph: Graph, wanted: Constraints) -> Planned:
        made, tensor_of = graph, None
        if not wanted.pins and wanted.slots is None and wanted.placed is None:
            found = recognise_attention(graph, self.topology)
            if found is not None:
                made, tensor_of = found.graph, found.tensor_of
        return self._decomposed(made, wanted, tensor_of)

    def _decomposed(
        self, graph: Graph, wanted: Constraints, tensor_of: Mapping[int, int] | None
    ) -> Planned:
        found = self._planner.decomposed(graph, wanted)
        if found is None:
            return Planned(graph, wanted, tensor_of, graph)
        return Planned(found.graph, found.constraints, tensor_of, graph, found.origin)

    def _measured(
        self, planned: Planned, wanted: Constraints, inputs: Mapping[str, ArrayLike] | None
    ) -> Planned:
        """Return what is fastest by measurement, where the policy of placement asks for it."""
        before = planned.before
        is_possible = self._runtime.tensors is not None and not self.settings.memory_budget
        if not is_possible or not self._planner.is_measured(before, wanted):
            return planned
        self._order.settle()
        choices = {"predicted": planned}
        homes = self._planner.known_homes(before)
        for device, facts in enumerate(self.topology.devices):
            pinned = replace(
                wanted, homes=homes, pins=dict.fromkeys(range(len(before.nodes)), device)
            )
            choices[f"{facts.name} alone"] = self._decomposed(before, pinned, planned.tensor_of)
        ways, kept = list[TriedPlacement](), list[Planned]()
        rates = wanted.rates_on(self.topology)
        for name, choice in choices.items():
            try:
                plan = self._planner.draft(choice.graph, choice.constraints)
            except PlanError:
                continue  # a device that lacks an op
            if not any(_devices(plan) == _devices(way.plan) for way in ways):
                seconds = predict_step(choice.graph, plan, rates).seconds
                ways.append(TriedPlacement(name, choice.graph, plan, seconds))
                kept.append(choice)
        if len(ways) < 2:
            return planned
        given = _zeros(before) if inputs is None else host_arrays(inputs)
        place = partial(open_runtime, self._bare, self._weights, self.settings, None, None)
        self._is_measuring = True
        try:
            times = measure_placements(ways, place, given, self._clock)
        finally:
            self._is_measuring = False
        best = kept_placement(times)
        compared = tuple(
            PlacementCandidate(
                way.name, way.seconds, 0, i == best, measured_s=times[i] if times[i] < inf else None
            )
            for i, way in enumerate(ways)
        )
        choice, placement = kept[best], ways[best].plan.placement
        placement = structs.replace(placement, candidates=compared)
        constraints = replace(choice.constraints, pins={}, placed=placement)
        self._planner.plan(choice.graph, constraints)  # its weights and states have homes from here
        return replace(choice, constraints=constraints)

    def draft(self, graph: Graph, constraints: Constraints | None = None) -> Plan:
        """Return the plan that ``plan`` would, neither checked nor kept, and without measurements.

        Args:
            constraints: Homes of weights and states, pins of nodes, rates; none by default.

        Raises:
            PlanError: the graph cannot be placed on the devices.

        Examples:
            >>> with Scheduler(["cpu:0"]) as scheduler:
            ...     draft = scheduler.draft(graph)
            >>> len(draft.placement.choices)
            1
        """
        planned = self._make_planned(graph, self._wanted(constraints))
        return self._planner.draft(planned.graph, planned.constraints)

    @guarded()
    def run(
        self,
        graph: Graph,
        inputs: Mapping[str, ArrayLike],
        constraints: Constraints | None = None,
        *,
        copy: bool = True,
    ) -> Outputs:
        """Run a graph once and return its outputs by tensor id, by tensor or by name.

        Inputs are borrowed until this returns: arrays of numpy, or of any library that has
        ``__dlpack__`` or ``__array_interface__``, in host memory.

        Args:
            inputs: By name.
            constraints: Homes and pins.
            copy: False for read-only views of the plan's host memory instead of copies. The next
                run overwrites them. This saves a copy of large outputs, such as logits.

        Raises:
            UsageError: inputs that do not fit the graph, a weight without data or of another shape
                or type, or another thread is in a call.
            PlanError: the graph cannot be placed on the devices.
            OutOfDeviceMemory: weights, states or arenas do not fit.
            DeviceFault: a command failed.
            ModelError: a file whose mapping is read was truncated or written to.
            SyncTimeout: a device did not answer within ``settings.timeout_s``.

        Examples:
            >>> x = np.ones((1, 2), np.float32)
            >>> with Scheduler(["cpu:0"], weights=weights) as scheduler:
            ...     results = scheduler.run(graph, {"x": x})
            >>> results["y"].shape
            (1, 3)
        """
        self._order.settle()
        planned, executor, is_tried = self._chosen(graph, constraints, inputs)
        return _outputs(graph, planned, self._run(executor, planned, inputs, is_tried, copy))

    @guarded()
    def start(
        self,
        graph: Graph,
        inputs: Mapping[str, ArrayLike],
        constraints: Constraints | None = None,
    ) -> StartedRun:
        """Begin a run as ``run`` does, and return before it has come to its end, if possible.

        So a run can be enqueued before the outputs of the one before it are known, where it takes
        what that one leaves in a state: devices go on from one to the next while the host is busy.
        Runs take effect in the order of their starts, those of ``run`` among them. Two runs of one
        graph are under way at most, the second in memory of its own; a third waits for the first.

        Inputs are copied before this returns. Where ``overlaps`` is False, the run is over then.

        Args:
            inputs: By name.
            constraints: Homes and pins.

        Raises:
            UsageError: as for ``run``, which names other errors of what is enqueued as well.

        Examples:
            >>> x = np.ones((1, 2), np.float32)
            >>> with Scheduler(["cpu:0"], weights=weights) as scheduler:
            ...     runs = [scheduler.start(graph, {"x": k * x}) for k in range(3)]
            ...     [float(run.outputs()["y"][0, 0]) for run in runs]
            [0.0, 2.0, 4.0]
        """
        planned, executor, is_tried = self._chosen(graph, constraints, inputs)
        if not self.overlaps:
            made = self._run(executor, planned, inputs, is_tried, copy=True)
            return StartedRun.ended(self.guard, _outputs(graph, planned, made))
        executor = self._idle(planned.graph, executor)
        return self._order.start(executor, inputs, self.guard, partial(_outputs, graph, planned))

    @property
    def overlaps(self) -> bool:
        """Whether a run that was started goes on while the caller does.

        Not where calls are recorded, where plans are tried (``streams="autotune"``), on devices of
        other machines, and with a memory budget, as a second run takes memory of its own.
        """
        is_tried = self.settings.streams == "autotune" or self._recorder is not None
        is_local = self._runtime.tensors is not None
        return is_local and not is_tried and not self.settings.memory_budget

    def _chosen(
        self, graph: Graph, constraints: Constraints | None, inputs: Mapping[str, ArrayLike]
    ) -> tuple[Planned, Run, bool]:
        """Return what was planned for a graph, what runs it, and whether that is a trial."""
        repeated = self._order.repeated(graph, constraints)
        if repeated is not None:
            return *repeated, False
        planned = self.planned(graph, constraints, inputs)
        executor = self._executor(planned.graph, planned.constraints)
        if self.settings.streams == "autotune":
            is_tried = self._planner.is_tried(planned.graph, planned.constraints)
            return planned, executor, is_tried
        self._order.remember(graph, constraints, planned, executor)
        return planned, executor, False

    def _run(
        self,
        executor: Run,
        planned: Planned,
        inputs: Mapping[str, ArrayLike],
        is_tried: bool,
        copy: bool,
    ) -> dict[int, np.ndarray]:
        graph, wanted = planned.graph, planned.constraints
        executor = self._in_turn(graph, executor)
        self._order.enter(executor, None if is_tried else executor.state_streams)
        began = self._clock()
        # Of runs on other machines the recorder gets what these have recorded.
        recorder = None if self._runtime.tensors is None else self._recorder
        with (
            recorded_run(recorder, graph, executor.plan, self.topology, wanted.rates)
            if recorder is not None
            else nullcontext()
        ):
            self._order.begin(executor, inputs)
            outputs = self._order.finish(executor, executor, copy=copy)
        if is_tried:
            self._order.drain()
            loser = self._planner.note_run(graph, wanted, self._clock() - began)
            if loser is not None:
                self._executors.drop(loser)
        return outputs

    def _idle(self, graph: Graph, executor: Run) -> Run:
        """Return the executor or its alternate, whichever has no run under way."""
        if not executor.is_under_way:
            return executor
        other = executor.alternate
        if other is None and executor.state_streams is not None:
            other = self._alternate(graph, executor)
        if other is None or other.is_under_way:
            self._order.settle()
            return executor
        return other

    def _in_turn(self, graph: Graph, executor: Run) -> Run:
        """Return the executor, or its alternate where the plan's last run would hold up this one.

        An alternate is made if there is memory for it.
        """
        owes = executor is self._order.last and executor.owes and executor.takes_turns
        return (self._alternate(graph, executor) if owes else None) or executor

    def _alternate(self, graph: Graph, executor: Run) -> Run | None:
        """Return the plan once more, with memory of its own, if there is any."""
        if executor.alternate is None and self._has_room and not self.settings.memory_budget:
            began = time.perf_counter()
            try:
                executor.alternate = self._bound(graph, executor.plan)
            except OutOfDeviceMemory:
                self._has_room = False
                return None
            finally:
                self._setup_s += time.perf_counter() - began
        return executor.alternate if self._has_room else None

    def takes_turns(self, plan: Plan, *, started: bool = False) -> bool:
        """Whether runs of a plan follow each other without a wait, if there is memory for two.

        Args:
            plan: Of this scheduler.
            started: Whether one is started (``start``) before the one in front of it is over.

        Examples:
            >>> with Scheduler(["cpu:0"]) as scheduler:
            ...     scheduler.takes_turns(scheduler.plan(graph))  # the host waits for its output
            False
        """
        if self._runtime.tensors is None or self.settings.memory_budget:
            return False
        return takes_turns(plan) or (started and self.overlaps and state_streams(plan) is not None)

    @guarded()
    def prepare(self, graph: Graph, constraints: Constraints | None = None) -> None:
        """Do all that the first ``run`` does before it enqueues anything; raise what it would.

        Args:
            constraints: Homes of weights and states, pins of nodes, rates; none by default.

        Examples:
            >>> with Scheduler(["cpu:0"], weights=weights) as scheduler:
            ...     scheduler.prepare(graph)
            ...     scheduler.plan_cache.misses
            1
        """
        planned = self.planned(graph, constraints)
        self._executor(planned.graph, planned.constraints)

    @property
    def is_lost(self) -> bool:
        """Whether a machine of its devices was lost: only ``reset`` and ``close`` are legal."""
        return self._store.is_lost

    def resident_nbytes(self, kind: str) -> dict[str, int]:
        """Return the bytes of resident weights, states or caches of experts by device name.

        Args:
            kind: ``"weight"``, ``"state"`` or ``"cache"``.

        Examples:
            >>> with Scheduler(["cpu:0"], weights=weights) as scheduler:
            ...     scheduler.prepare(graph)
            ...     scheduler.resident_nbytes("weight")["cpu:0"]
            24
        """
        return self._store.nbytes_by_device(kind)

    @property
    def exchange(self) -> Exchange:
        """Gives resident tensors to other libraries, and takes states from them."""
        tensors = self._runtime.tensors
        if tensors is None:
            raise UsageError(
                "tensors of other machines cannot be exchanged",
                where=self._bare[0].facts.name,
                hint="make them outputs of the graph",
            )
        return Exchange(tensors, self._order.drain, self.guard)

    @guarded(may_nest=True)
    def free_nbytes(self) -> tuple[int, ...]:
        """Return the bytes of memory that are free on each device, as far as is known.

        Examples:
            >>> with Scheduler(["cpu:0"]) as scheduler:
            ...     [nbytes is None or nbytes > 0 for nbytes in scheduler.free_nbytes()]
            [True]
        """
        return tuple(free_nbytes(device) for device in self._bare)

    @property
    def expert_ledger(self) -> ExpertLedger:
        """What was copied of experts that are computed away from their weights, so far."""
        return self._store.ledger

    @guarded()
    def reload_weights(self, names: Collection[str]) -> None:
        """Read weights anew from their source when they are used next; names must be resident.

        All plans' memory is released. What caches hold of the old bytes does not count any more.

        Args:
            names: Of weights.

        Raises:
            UsageError: a name that is not resident.

        Examples:
            >>> with Scheduler(["cpu:0"], weights=lambda name: weights[name]) as scheduler:
            ...     results = scheduler.run(graph, {"x": np.ones((1, 2), np.float32)})
            ...     weights["w"] = np.zeros((3, 2), np.float32)
            ...     scheduler.reload_weights(["w"])
            ...     scheduler.run(graph, {"x": np.ones((1, 2), np.float32)})["y"].tolist()
            [[0.0, 0.0, 0.0]]
        """
        unknown = sorted(set(names) - self._store.names)
        if unknown:
            raise UsageError(f"{unknown[0]!r} is not resident", where="reload_weights")
        self._release_plans()
        self._store.release(names)

    @guarded()
    def forget(self, graph: Graph) -> None:
        """Release what the plans of a graph take, whatever their constraints, and forget them.

        Weights and states stay resident. The next run of the graph plans again.

        Examples:
            >>> with Scheduler(["cpu:0"], weights=weights) as scheduler:
            ...     scheduler.prepare(graph)
            ...     scheduler.forget(graph)
        """
        digests = {graph.digest}
        for known in (k for k in self._planned if k[0] == graph.digest):
            found = self._planned.drop(known)
            assert found is not None
            digests.add(found.graph.digest)
        for digest in digests:
            for key in (k for k in self._executors if k.graph == digest):
                self._executors.drop(key)
            self._planner.forget(digest)

    @guarded()
    def keep_plans(self, limit: int) -> None:
        """Keep the memory of that many plans from now on.

        Args:
            limit: At least one.

        Examples:
            >>> with Scheduler(["cpu:0"]) as scheduler:
            ...     scheduler.keep_plans(2)
        """
        self._executors.keep(limit)

    @guarded()
    def clear_states(self) -> None:
        """Fill every state with zeros, after all work is done.

        Examples:
            >>> g = GraphBuilder()
            >>> total = g.state("total", (1, 2))
            >>> count = g.build(y=g.add(total, g.input("x", (1, 2)), inplace=True))
            >>> x = np.ones((1, 2), np.float32)
            >>> with Scheduler(["cpu:0"]) as scheduler:
            ...     results = [scheduler.run(count, {"x": x})["y"][0, 0] for _ in range(2)]
            ...     scheduler.clear_states()
            ...     print(*results, *scheduler.run(count, {"x": x})["y"][0])
            1.0 2.0 1.0 1.0
        """
        self._order.drain()
        self._store.clear_states()

    @guarded()
    def reset(self, devices: Sequence[Device] | None = None) -> None:
        """Start again, after a fault for instance.

        Releases everything that was made on the devices, the resident tensors among it: weights
        are loaded again when they are needed, states are zeros. Devices that were named are opened
        again; others are taken as they are, unless new ones are given in their place.

        Args:
            devices: Open devices that take the place of those that were given.

        Raises:
            UsageError: devices are given in place of names, or another number of them.
            BackendUnavailable: a device is not there any more.

        Examples:
            >>> with Scheduler(["cpu:0"], weights=weights) as scheduler:
            ...     scheduler.prepare(graph)
            ...     scheduler.reset()
            ...     scheduler.resident_nbytes("weight")
            {}
        """
        if self._is_closed:
            raise UsageError("the scheduler is closed")
        if devices is not None and (self._owned or len(devices) != len(self._bare)):
            raise UsageError(
                f"{len(devices)} open devices given",
                where="Scheduler.reset",
                why="it opens the devices by their names"
                if self._owned
                else f"there were {len(self._bare)}",
            )
        self._release()
        given: Sequence[Device] = self._bare if devices is None else devices
        if self._owned:
            self._owned, given = opened(self._names, self.settings)
        self._set_up(given)
        self._planner.move_to(self.topology)
        self._planned.take_all()

    def close(self) -> None:
        """Drain the streams and release everything; legal twice and after a fault.

        In a process that was forked nothing is released: it all belongs to the other one.

        Raises:
            UsageError: another thread is in a call. Nothing is released; close again afterwards.

        Examples:
            >>> scheduler = Scheduler(["cpu:0"])
            >>> scheduler.close()
            >>> scheduler.close()
        """
        if os.getpid() == self.guard.process:
            self._close()

    @guarded(name="Scheduler.close")
    def _close(self) -> None:
        self._is_closed = True
        if self._is_open:
            self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        close_after(error, self)

    def _set_up(self, devices: Sequence[Device]) -> None:
        """Probe open devices, and begin with nothing on them."""
        self._bare = tuple(devices)
        self.topology = probe(devices)
        self._rates = _measured_rates(self.topology, self.settings)
        self._is_open = True
        self._runtime = open_runtime(
            devices, self._weights, self.settings, self._progress, self._recorder
        )
        self._store = self._runtime.store
        self._order: RunOrder[Planned] = RunOrder(self._store, self._executors.values)

    def _release(self) -> None:
        """Drain the streams and release everything."""
        self._order.forget()
        self._has_room = True
        # Whatever fails while draining has been reported before, or nothing waits for it any more.
        self._order.drained()
        close_all([*self._executors.values(), self._store, *self._owned], self._released)

    def _released(self) -> None:
        self._executors.take_all()
        self._is_open = False

    def _release_plans(self) -> None:
        self._order.drain()
        self._order.forget()
        close_all(self._executors.values(), self._executors.take_all)

    def _bind(self, graph: Graph, constraints: Constraints) -> Run:
        """Return a plan with its resources; plans that are merely kept give way to it."""
        report_stage(self._progress, "planning")
        plan = self._planner.plan(graph, constraints)
        if not self._store.holds(plan.memory.arenas):
            self._order.drain()  # filling weights must not overtake work that is under way
        try:
            return self._bound(graph, plan)
        except OutOfDeviceMemory:
            if not len(self._executors):
                raise
        if any(e.alternate for e in self._executors.values()):
            self._has_room = False
        self._release_plans()
        self._planner.settle("there is no memory for two plans")
        return self._bound(graph, plan)

    def _bound(self, graph: Graph, plan: Plan) -> Run:
        made = self._runtime.bind(graph, plan)
        report_stage(self._progress, "running")
        return made

    def _executor(self, graph: Graph, constraints: Constraints) -> Run:
        if self._is_closed:
            raise UsageError("the scheduler is closed")
        key = self._planner.next_key(graph, constraints)
        known = self._executors.get(key, lambda: self._timed_bind(graph, constraints))
        if known.is_closed:  # its eviction was interrupted
            self._executors.drop(key)
            known = self._executors.get(key, lambda: self._timed_bind(graph, constraints))
        return known

    def _timed_bind(self, graph: Graph, constraints: Constraints) -> Run:
        began = time.perf_counter()
        try:
            return self._bind(graph, constraints)
        finally:
            self._setup_s += time.perf_counter() - began

    def _evict(self, executor: Run) -> None:
        self._order.drain()
        if self._order.last in (executor, executor.alternate):
            self._order.forget()
        executor.close()


def _outputs(graph: Graph, planned: Planned, made: dict[int, np.ndarray]) -> Outputs:
    """Return outputs by the tensors of the caller's graph."""
    if planned.tensor_of is None:
        return Outputs(graph, made)
    return Outputs(graph, {tid: made[new] for tid, new in planned.tensor_of.items()})


def _devices(plan: Plan) -> list[int]:
    return [choice.device for choice in plan.placement.choices]


def _zeros(graph: Graph) -> dict[str, np.ndarray]:
    """Return inputs of a graph."""
    inputs = [t for t in graph.tensors if t.role is Role.INPUT and not t.is_view]
    found = {}
    for t in inputs:
        packed = (*t.shape[:-1], t.dtype.row_nbytes(t.shape[-1])) if t.dtype.is_quantized else ()
        found[t.name] = np.zeros(packed or t.shape, t.dtype.host)
    return found


def _measured_rates(topology: Topology, settings: Settings) -> MachineRates | None:
    """Return rates of several devices if any were measured; one device leaves nothing to choose."""
    if len(topology.devices) == 1:
        return None
    rates = load_rates(topology, settings.rates)
    return None if rates.source == GUESSES else rates
