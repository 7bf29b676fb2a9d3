"""What a ``Scheduler`` has instead of a store and executors when its devices are elsewhere."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import count

import numpy as np

from ggsched.errors import GgschedError, UsageError
from ggsched.interchange.dlpack_import import check_array
from ggsched.ir.graph import Graph
from ggsched.ir.tensor import Role
from ggsched.ir.text import print_graph
from ggsched.plan.bundle import Plan
from ggsched.plan.codec import plan_to_json
from ggsched.plan.memory import Arena
from ggsched.plan.parts import Part
from ggsched.run.expert_ledger import ExpertLedger
from ggsched.run.following import StateStreams
from ggsched.run.protocols import Run
from ggsched.run.store import Progress
from ggsched.trace.recorder import Recorder
from ggsched_cluster.check_parts import check_parts
from ggsched_cluster.driver import Driver, Frames
from ggsched_cluster.group import Group
from ggsched_cluster.machines import cut_by_machine
from ggsched_cluster.messages import host_form
from ggsched_cluster.recorded import Recorded, merged


class RemoteStore:
    """Weights and states on other machines. Each machine requests the weights that it holds.

    Args:
        group: The machines.
        weights: Gives a weight by name.
        timeout_s: How long something may go on without progress.
        capture: Whether machines capture plans where their devices offer it.
        checked: Whether devices check their callers.
        is_sanitized: Whether the parts of each plan are checked before they run.
        progress: Called with name and bytes of each weight that is sent.
        recorder: Gets what the machines recorded, when they are left; None to record nothing.
    """

    def __init__(
        self,
        group: Group,
        weights: Callable[[str], np.ndarray],
        *,
        timeout_s: float,
        capture: bool,
        checked: bool,
        is_sanitized: bool,
        progress: Progress | None,
        recorder: Recorder | None = None,
    ) -> None:
        self.group, self._weights = group, weights
        self._is_sanitized = is_sanitized
        self._constants: dict[str, bytes] = {}
        self._kinds: dict[str, str] = {}
        self._dtypes: dict[str, tuple[tuple[int, ...], str]] = {}
        self._keys = count()
        self.ledger = ExpertLedger()
        group.driver.source, group.driver.sent = self._give, progress
        self._recorder = recorder
        if recorder is not None:
            recorder.elsewhere = self.recorded
        self._runs: dict[int, int] = {}
        self._plans: list[Plan] = []
        records = recorder is not None
        driver = group.driver
        driver.configure(timeout_s=timeout_s, capture=capture, checked=checked, records=records)

    @property
    def driver(self) -> Driver:
        """Talks to the machines."""
        return self.group.driver

    @property
    def is_lost(self) -> bool:
        """Whether a machine was lost or the session was closed."""
        return self.driver.is_over

    @property
    def names(self) -> frozenset[str]:
        """Names of the weights and states of all plans so far."""
        return frozenset(self._kinds)

    def bind(self, graph: Graph, plan: Plan) -> "RemoteRun":
        """Let each machine make what its part of a plan needs.

        Raises:
            PlanError: the plan cannot be cut by machines.
            RaceFound: the parts are not in order.
            GgschedError: what a machine says.
        """
        self._constants.update(graph.constants)
        parts = cut_by_machine(plan, self.group.machine_of)
        if self._is_sanitized:
            check_parts(plan, parts, self.group.machine_of).raise_if_findings()
        key = next(self._keys)
        self._dtypes |= {t.name: host_form(t) for t in graph.roots(Role.WEIGHT)}
        text, data = print_graph(graph).encode(), plan_to_json(plan)
        try:
            self.driver.bind(key, graph.digest, text, data, {p.machine: p for p in parts})
        except GgschedError:
            if not self.driver.is_over:
                self.driver.manage("drop", key=key)
            raise
        for arena in plan.memory.arenas:
            if arena.name and arena.kind in ("weight", "state"):
                self._kinds[arena.name] = arena.kind
        return RemoteRun(graph, plan, parts, self, key)

    def holds(self, arenas: Iterable[Arena]) -> bool:
        """Return False: machines fill memory when they bind a part of a plan."""
        return False

    def drain(self) -> list[GgschedError]:
        """Return nothing: a run is over on all machines when it returns."""
        return []

    def require_files(self) -> None:
        """Do nothing: the machines hold copies."""

    def release(self, names: Collection[str]) -> None:
        """Let machines forget weights and states that no plan uses; the next use fills anew."""
        self.driver.manage("release", names=sorted(names))
        for name in names:
            self._kinds.pop(name, None)

    def clear_states(self) -> None:
        """Fill all states with zeros."""
        self.driver.manage("clear")

    def nbytes_by_device(self, kind: str) -> dict[str, int]:
        """Return the resident bytes of a kind by device name."""
        out: dict[str, int] = {}
        for machine, sizes in self.driver.manage("sizes").items():
            where = self.driver.where(machine)
            out |= {f"{where}/{name}": nbytes for name, nbytes in sizes.get(kind, {}).items()}
        return out

    def ran(self, plan: Plan) -> None:
        """Note that a run of a plan is over."""
        if self._recorder is None:
            return
        number = next((i for i, known in enumerate(self._plans) if known is plan), None)
        if number is None:
            number = len(self._plans)
            self._plans.append(plan)
        self._runs[self.driver.last_run] = number

    def recorded(self, name: str = "runs") -> Recorded:
        """Return what all machines recorded of the runs that came to an end, by one clock."""
        offsets, found = self.driver.clock_offsets(), self.driver.recorded()
        names = [self.driver.where(k) for k in range(len(self.group.first))]
        return merged(name, found, names, offsets, self._runs, self._plans)

    def close(self) -> None:
        """Take what was recorded; machines release everything when they are left or join again."""
        if self._recorder is not None:
            is_there = self._runs and not self.driver.is_over
            found = self.recorded() if is_there else None
            self._recorder.elsewhere = None if found is None else lambda: found

    def _give(self, name: str) -> np.ndarray:
        if name in self._constants:
            shape, dtype = self._dtypes[name]
            return np.frombuffer(self._constants[name], dtype).reshape(shape)
        return self._weights(name)


class RemoteRun:
    """A plan bound to machines, to be run as often as wanted.

    Attributes:
        parts: Of each machine.
        is_closed: Whether it was closed.
    """

    # A run is over when ``start`` returns, so none is under way or followed by streams.
    state_streams: StateStreams | None = None
    takes_turns = owes = is_under_way = False
    is_done = True

    def __init__(
        self, graph: Graph, plan: Plan, parts: Sequence[Part], store: RemoteStore, key: int
    ) -> None:
        self.plan = plan
        self.parts = tuple(parts)
        self._graph, self._store, self._key = graph, store, key
        self._slots = {s.name: graph.named(s.name) for s in plan.inputs}
        self._known = {t.name: t for t in graph.roots(Role.INPUT)}
        self._found: Mapping[int, Frames] = {}
        self.alternate: Run | None = None
        self.is_closed = False

    def start(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Run the plan once.

        Raises:
            UsageError: an input is missing, unknown, or of another shape or type.
            DeviceFault: a command failed on a machine, or a machine was lost.
            SyncTimeout: a machine does not get on.
        """
        if self.is_closed:
            raise UsageError("the plan's resources have been released", where=self.plan.name)
        self._check(inputs)
        frames = {
            part.machine: [_data(inputs[name]) for name in part.inputs] for part in self.parts
        }
        self._found = self._store.driver.run(self._key, frames)
        self._store.ran(self.plan)

    def finish(self, *, copy: bool = True) -> dict[int, np.ndarray]:
        """Return the outputs of the run by tensor id."""
        found, self._found = self._found, {}
        outputs: dict[int, np.ndarray] = {}
        for part in self.parts:
            with self._store.driver.reading(part.machine):
                for tid, frame in zip(part.outputs, found[part.machine], strict=True):
                    shape, dtype = host_form(self._graph.tensors[tid])
                    array = np.frombuffer(frame, dtype).reshape(shape)
                    outputs[tid] = array.copy() if copy else array
        return {slot.tensor: outputs[slot.tensor] for slot in self.plan.outputs}

    def close(self) -> None:
        """Release the plan's resources; legal twice and when a machine is lost."""
        if not self.is_closed:
            self.is_closed = True
            if not self._store.driver.is_over:
                self._store.driver.manage("drop", key=self._key)

    def drained(self) -> None:
        """Do nothing: a run is over on all machines when ``start`` returns."""

    follow = give_up = drained

    def _check(self, inputs: Mapping[str, np.ndarray]) -> None:
        for name, value in inputs.items():
            tensor = self._known.get(name)
            if tensor is None:
                hint = f"inputs: {', '.join(self._slots)}"
                raise UsageError(f"no input {name!r}", where=self.plan.name, hint=hint)
            check_array(value, tensor)
        for name in self._slots:
            if name not in inputs:
                raise UsageError(f"no value for input {name!r}", where=self.plan.name)


def _data(array: np.ndarray) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
