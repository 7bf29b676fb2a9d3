"""The facade: devices in, plans out, runs on live devices.

    with Scheduler(["opencl:0", "cpu:0"], weights={"w": w}) as scheduler:
        y = scheduler.run(graph, {"x": x})[graph.outputs[0]]

Everything that was made on the devices is released when the block ends.
"""

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import numpy as np

from ggsched.backend.checked import checked
from ggsched.backend.free_memory import free_nbytes
from ggsched.backend.probe import probe
from ggsched.backend.protocols import Device
from ggsched.backend.registry import open_devices
from ggsched.config import Settings
from ggsched.errors import GgschedError, OutOfDeviceMemory, UsageError
from ggsched.ir.graph import Graph
from ggsched.passes.pipeline import make_plan
from ggsched.passes.place import Constraints
from ggsched.passes.rings import Slots
from ggsched.plan.bundle import Plan
from ggsched.run.cache import RecentCache
from ggsched.run.executor import Executor
from ggsched.run.release import close_all
from ggsched.run.resources import Resources
from ggsched.run.store import Progress, TensorStore, WeightSource
from ggsched.sanitize import check_plan
from ggsched.trace.recorder import Recorder
from ggsched.trace.schema import TracedPlan
from ggsched.trace.tracing import traced

PlanKey = tuple[str, tuple[tuple[str, int], ...], tuple[tuple[int, int], ...], str, Slots | None]

_LOG: Final = logging.getLogger("ggsched")
_FREE: Final = Constraints()


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """How often a plan was found, and how often it had to be made."""

    hits: int
    misses: int


class Scheduler:
    """Plans graphs over devices and runs them. Not thread safe.

    Weights and states are resident once and shared by all graphs that name them. Plans and their
    memory are cached by graph digest and constraints; the machine is the same throughout. The
    ``plan_limit`` plans used last are kept, unless a new one needs their memory.

    After an error of a run the streams have been drained and other runs may follow, unless a
    device has faulted; ``close`` releases everything in any case.
    """

    def __init__(
        self,
        devices: Sequence[str] | Sequence[Device] | None = None,
        *,
        weights: WeightSource | None = None,
        settings: Settings | None = None,
        plan_limit: int = 16,
        progress: Progress | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        """Open devices and probe them.

        Args:
            devices: Names such as ``"opencl:0"`` in order of priority, or open devices, which
                the caller closes. All usable devices where none are given.
            weights: Arrays by name, or a function from a name to an array.
            settings: From the environment where not given.
            plan_limit: Number of plans whose memory is kept.
            progress: Called with name and bytes of each weight that has become resident.
            recorder: Writes down all that the devices are told.

        Raises:
            UsageError: a device name that makes no sense, or no devices.
            BackendUnavailable: a device that is not there.
            BackendBroken: a plug-in that fails or lies about itself.
        """
        self.settings = settings or Settings.from_environment()
        self._owned, self._devices = _opened(devices, self.settings)
        try:
            self.topology = probe(self._devices)
            self._bare = tuple(self._devices)
            if self.settings.checked:
                self._devices = checked(self._devices)
            self._recorder = recorder
            if recorder is not None:
                self._devices = traced(self._devices, recorder)
            self._store = TensorStore(
                self._devices,
                {} if weights is None else weights,
                timeout_s=self.settings.timeout_s,
                progress=progress,
            )
        except BaseException:
            close_all(self._owned)
            raise
        self._plans: RecentCache[PlanKey, Plan] = RecentCache(4 * plan_limit)
        self._executors: RecentCache[PlanKey, Executor] = RecentCache(plan_limit, self._evict)
        self._keys: RecentCache[tuple[str, str], PlanKey] = RecentCache(4 * plan_limit)
        self._last: Executor | None = None
        self._is_closed = False

    @property
    def plan_cache(self) -> CacheInfo:
        """Hits and misses of the plan cache so far."""
        return CacheInfo(self._plans.hits, self._plans.misses)

    def plan(self, graph: Graph, constraints: Constraints | None = None) -> Plan:
        """Return the plan of a graph, from the cache if one was made before.

        A new plan is verified and checked for races first, as the settings say.

        Raises:
            PlanError: the graph cannot be placed on the devices.
            RaceFound: the sanitizer found a defect in the plan.
        """
        wanted = constraints or _FREE
        return self._plans.get(self._key(graph, wanted), lambda: self._make_plan(graph, wanted))

    def run(
        self,
        graph: Graph,
        inputs: Mapping[str, np.ndarray],
        constraints: Constraints | None = None,
    ) -> dict[int, np.ndarray]:
        """Run a graph once and return its outputs by tensor id.

        Raises:
            UsageError: inputs that do not fit the graph, a weight without data.
            PlanError: the graph cannot be placed on the devices.
            OutOfDeviceMemory: weights, states or arenas do not fit.
            DeviceFault: a command failed.
            SyncTimeout: a device did not answer within ``settings.timeout_s``.
        """
        wanted = constraints or _FREE
        executor = self._executor(graph, wanted)
        if executor is not self._last:
            # Hazards between runs are discharged within one plan only, so two plans, which may
            # share states, are kept apart by the host.
            self._drain()
        self._last = None  # a run that is cut short leaves work behind, so the next one drains
        with self._recorded(executor.plan):
            outputs = executor.run(inputs)
        self._last = executor
        return outputs

    def prepare(self, graph: Graph, constraints: Constraints | None = None) -> None:
        """Do all that the first ``run`` would do before it enqueues anything.

        Raises:
            As ``run``.
        """
        self._executor(graph, constraints or _FREE)

    def resident_nbytes(self, kind: str) -> dict[str, int]:
        """Return the bytes of resident ``"weight"`` or ``"state"`` tensors by device name."""
        return self._store.nbytes_by_device(kind)

    def free_nbytes(self) -> tuple[int, ...]:
        """Return the bytes of memory that are free on each device, as far as can be told."""
        return tuple(free_nbytes(device) for device in self._bare)

    def clear_states(self) -> None:
        """Fill every state with zeros, after all work is done."""
        self._drain()
        self._store.clear_states()

    def close(self) -> None:
        """Drain the streams and release everything; legal twice and after a fault."""
        if self._is_closed:
            return
        self._is_closed = True
        self._last = None
        # Whatever fails while draining has been told before, or nobody waits for it any more.
        self._store.drain()
        close_all([*self._executors.take_all(), self._store, *self._owned])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()

    def _recorded(self, plan: Plan) -> AbstractContextManager[None]:
        return nullcontext() if self._recorder is None else self._recorder.run_of(plan, TracedPlan)

    def _make_plan(self, graph: Graph, constraints: Constraints) -> Plan:
        plan = make_plan(graph, self.topology, constraints, verify=self.settings.verify)
        if self.settings.sanitize == "plan":
            check_plan(plan).raise_if_findings()
        return plan

    def _bind(self, graph: Graph, constraints: Constraints) -> Executor:
        """Return a plan with its resources; plans that are merely kept give way to it."""
        plan = self.plan(graph, constraints)
        self._drain()  # filling weights must not overtake work that is under way
        try:
            return self._bound(graph, plan)
        except OutOfDeviceMemory:
            if not len(self._executors):
                raise
        self._last = None
        close_all(self._executors.take_all())
        return self._bound(graph, plan)

    def _bound(self, graph: Graph, plan: Plan) -> Executor:
        resources = Resources(graph, plan, self._store)
        timeout_s, recorder = self.settings.timeout_s, self._recorder
        return Executor(graph, plan, resources, timeout_s=timeout_s, recorder=recorder)

    def _executor(self, graph: Graph, constraints: Constraints) -> Executor:
        if self._is_closed:
            raise UsageError("the scheduler is closed")
        key = self._key(graph, constraints)
        return self._executors.get(key, lambda: self._bind(graph, constraints))

    def _key(self, graph: Graph, constraints: Constraints) -> PlanKey:
        """Return the key of a plan: all that it depends on, and no more.

        Constraints name every tensor of a model while a graph has some of them, so the key keeps
        those only. That takes a while, hence the shortcut by digests.
        """

        def key() -> PlanKey:
            homes = tuple(sorted((n, d) for n, d in constraints.homes.items() if n in graph))
            rates = constraints.rates.digest if constraints.rates else ""
            pins = tuple(sorted(constraints.pins.items()))
            return graph.digest, homes, pins, rates, constraints.slots

        return self._keys.get((graph.digest, constraints.digest), key)

    def _evict(self, executor: Executor) -> None:
        self._drain()
        if self._last is executor:
            self._last = None
        executor.close()

    def _drain(self) -> None:
        failures = self._store.drain()
        if failures:
            raise failures[0]


def _say(skipped: GgschedError) -> None:
    """Say which backend is left out where all usable devices were asked for."""
    _LOG.warning("left out: %s", skipped.one_line())


def _opened(
    devices: Sequence[str] | Sequence[Device] | None, settings: Settings
) -> tuple[list[Device], list[Device]]:
    """Return the devices to close in the end, and all devices."""
    if devices is None or all(isinstance(d, str) for d in devices):
        names = None if devices is None else [d for d in devices if isinstance(d, str)]
        opened = list(open_devices(names, allow=settings.backends, on_skip=_say))
        return opened, opened
    return [], [d for d in devices if not isinstance(d, str)]
