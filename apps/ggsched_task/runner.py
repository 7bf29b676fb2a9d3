"""Runs task graphs on workers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Self

import numpy as np

from ggsched.config import Settings
from ggsched.errors import TaskCancelled, TaskFailed, UsageError
from ggsched.ir.graph import Graph, Node
from ggsched.ops.tasks import OPERATIONS_PER_SECOND, SLOT_BITS
from ggsched.passes.place import Constraints
from ggsched.passes.placement.cost import CostBased
from ggsched.plan.bundle import Plan
from ggsched.run.release import close_all
from ggsched.scheduler import Scheduler
from ggsched.topology.cost import HOST, Link, MachineRates, Rates
from ggsched.trace.recorder import Recorder
from ggsched_task.board import Board, Run
from ggsched_task.device import TaskDevice
from ggsched_task.graph import KIND, RUN, TaskGraph, Value

TIMEOUT_S: Final = 1e6
"""A task may take as long as it likes."""
_GENERATIONS: Final = 1 << 30
_TASK_S: Final = 2e-6
_HAND_OVER_S: Final = 3e-5
"""From the end of a task to the start of one on another worker that waits for it."""


class TaskRunner:
    """Workers for tasks, and the plans of task graphs on them.

    One run at a time; ``cancel`` may be called on any thread. Graphs of one structure share a plan.

    Examples:
        >>> from ggsched_task import TaskGraph, TaskRunner
        >>> g = TaskGraph()
        >>> parts = [g.add(pow, g.input(name), 2) for name in "ab"]
        >>> total = g.add(lambda *squares: sum(squares), *parts)
        >>> with TaskRunner({"cpu": 2}) as runner:
        ...     runner.run(g, {"a": 3, "b": 4}, [total])
        [25]
    """

    def __init__(
        self,
        workers: Mapping[str, int] | None = None,
        *,
        speeds: Mapping[str, float] | None = None,
        settings: Settings | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        """Start the workers.

        Args:
            workers: Number of workers by kind; one of kind ``cpu`` by default. A single worker
                is the caller's thread, several have threads of their own.
            speeds: By kind, how many times as fast as ``cost`` says its workers are. Default: 1.
            settings: From the environment where not given, apart from the timeout: tasks may take
                as long as they like.
            recorder: Records every call on the workers, for timelines.

        Raises:
            UsageError: no workers, or kinds or speeds that make no sense.
        """
        counts = dict(workers or {"cpu": 1})
        paces = dict(speeds or {})
        for kind, count in counts.items():
            if not KIND.fullmatch(kind) or count < 1:
                raise UsageError(f"{count} workers of kind {kind!r}", where="TaskRunner")
        for kind, speed in paces.items():
            if kind not in counts or not speed > 0:
                raise UsageError(f"speed {speed!r} of kind {kind!r}", where="TaskRunner")
        names = [(kind, i) for kind, count in counts.items() for i in range(count)]
        self._board = Board()
        self._generation = 0
        self._current: Run | None = None
        self._constraints = Constraints(rates=_rates([paces.get(kind, 1.0) for kind, _ in names]))
        self._devices = [
            TaskDevice(kind, i, self._board, is_async=len(names) > 1) for kind, i in names
        ]
        known = settings or replace(Settings.from_environment(), timeout_s=TIMEOUT_S)
        try:
            self._scheduler = Scheduler(
                self._devices, settings=known, placement=CostBased(), recorder=recorder
            )
        except BaseException:
            close_all(self._devices)
            raise

    def run(
        self, graph: TaskGraph, inputs: Mapping[str, Any], outputs: Sequence[Value]
    ) -> list[Any]:
        """Run the tasks that some values need, and return these values.

        All other objects have been released when this returns or raises.

        Args:
            inputs: Objects by the names of the graph's inputs, those that are needed.
            outputs: Results of tasks of the graph.

        Raises:
            TaskFailed: a task raised; what it raised is the cause. Tasks that had not begun were
                left out. What is no ``Exception``, such as ``SystemExit``, is raised as it is.
            TaskCancelled: ``cancel`` was called.
            GraphError: values that are not outputs of the graph.
            PlanError: no worker is of the kind of a task.
            UsageError: inputs that are missing or unknown, or another thread is in a run.

        Examples:
            >>> with TaskRunner() as runner:
            ...     runner.run(g, {"a": 1, "b": 2}, [total, parts[1]])
            [5, 4]
        """
        with self._scheduler.guard.hold("TaskRunner.run", is_open=True):
            return self._run(graph, inputs, outputs)

    def _run(
        self, graph: TaskGraph, inputs: Mapping[str, Any], outputs: Sequence[Value]
    ) -> list[Any]:
        lowered, kept = graph.lowered(outputs), [value.slot for value in outputs]
        generation = self._generation = self._generation % _GENERATIONS + 1
        run = Run(graph, generation, [_slot(node) for node in lowered.nodes], kept)
        handles = _handles(graph, lowered, inputs, run)
        self._board.runs[generation] = self._current = run
        try:
            found = self._scheduler.run(lowered, handles, self._constraints)
            if run.failure is None and not run.is_stopped:
                return [run.take(int(found[t][0])) for t in _ids(lowered, kept)]
        except BaseException:
            run.stop()
            self._scheduler.clear_states()  # waits for the tasks that have begun
            raise
        finally:
            self._current = None
            self._board.runs.pop(generation, None)
            run.clear()
        raise _error(graph, run)

    def cancel(self) -> None:
        """Leave out the tasks of the current run that have not begun; it raises at its end.

        Examples:
            >>> with TaskRunner() as runner:
            ...     runner.cancel()  # nothing runs: no effect
        """
        run = self._current
        if run is not None:
            run.stop()

    def plan(self, graph: TaskGraph, outputs: Sequence[Value]) -> Plan:
        """Return the plan that ``run`` uses: for the checker, printing, and predictions.

        Args:
            outputs: Results of tasks of the graph.

        Raises:
            GraphError, PlanError: as ``run``.

        Examples:
            >>> with TaskRunner({"cpu": 2}) as runner:
            ...     len(runner.plan(g, [total]).placement.choices)
            3
        """
        return self._scheduler.plan(graph.lowered(outputs), self._constraints)

    def close(self) -> None:
        """End the workers; legal twice.

        Examples:
            >>> runner = TaskRunner()
            >>> runner.close()
        """
        self._scheduler.close()
        close_all(self._devices)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()


def _slot(node: Node) -> int:
    slot = node.params.get("slot", 0)
    assert isinstance(slot, int)
    return slot


def _error(graph: TaskGraph, run: Run) -> BaseException:
    """Return what a run that was stopped raises."""
    if run.failure is None:
        return TaskCancelled("the run was cancelled", where=graph.name)
    task, cause = run.failure
    if not isinstance(cause, Exception):
        return cause
    error = TaskFailed(
        f"task {task.name!r} failed", where=graph.name, why=f"{type(cause).__name__}: {cause}"
    )
    error.__cause__ = cause
    return error


def _handles(
    graph: TaskGraph, lowered: Graph, inputs: Mapping[str, Any], run: Run
) -> dict[str, np.ndarray]:
    """Put inputs into the table of a run; return the handles that the graph needs.

    Raises:
        UsageError: an input is missing or unknown.
    """
    for name in inputs:
        if name not in graph.inputs:
            known = ", ".join(graph.inputs) or "none"
            raise UsageError(f"no input {name!r}", where=graph.name, hint=f"inputs: {known}")
    base = run.generation << SLOT_BITS
    handles = {}
    if RUN in lowered:
        handles[RUN] = np.array([base], np.int64)
    for name, value in graph.inputs.items():
        if name in lowered:
            if name not in inputs:
                raise UsageError(f"no object for input {name!r}", where=graph.name)
            run.put(value.slot, inputs[name])
            handles[name] = np.array([base | value.slot], np.int64)
    return handles


def _ids(lowered: Graph, kept: Sequence[int]) -> list[int]:
    """Return the tensors of the outputs, which are each once in the graph."""
    of = dict(zip(dict.fromkeys(kept), lowered.outputs, strict=True))
    return [of[slot] for slot in kept]


def _rates(speeds: Sequence[float]) -> MachineRates:
    """Return rates by which a task takes its cost, and handles next to nothing but the wait."""
    devices = tuple(
        Rates(s * OPERATIONS_PER_SECOND, 1e12, 1e12, 1, _TASK_S, _HAND_OVER_S, _TASK_S)
        for s in speeds
    )
    ends = range(HOST, len(speeds))
    links = {(a, b): Link(_TASK_S, 1e10) for a in ends for b in ends if a != b}
    return MachineRates(devices, links, _TASK_S, "costs of tasks")
