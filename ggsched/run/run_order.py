"""Keeps each run of a scheduler in order with those that are under way.

Hazards between runs are discharged within one plan only. Runs of two plans are ordered by their
streams if that is enough (``ggsched.run.following``), else the host waits in between.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np

from ggsched.errors import GgschedError, UsageError
from ggsched.interchange.dlpack_import import ArrayLike, host_arrays
from ggsched.ir.graph import Graph
from ggsched.ir.tensor import Tensor
from ggsched.run.call_guard import CallGuard, guarded
from ggsched.run.following import StateStreams
from ggsched.run.protocols import Run, Store

# --- what a run returns ---------------------------------------------------------------------------


class Outputs(dict[int, np.ndarray]):
    """Arrays by tensor id, in the order of the graph's outputs.

    ``outputs[y]`` also takes the tensor that a builder returned, or the name that ``build(y=y)``
    gave, or that of the node that made it: ``g.silu(x, name="y")`` and ``outputs["y"]``.
    """

    def __init__(self, graph: Graph, found: Mapping[int, np.ndarray]) -> None:
        super().__init__(found)
        self._graph = graph

    @property
    def named(self) -> dict[str, np.ndarray]:
        """The outputs that have a name of their own, by name."""
        names = [self._graph.tensors[tid].name for tid in self]
        return {
            n: a for n, a in zip(names, self.values(), strict=True) if names.count(n) == 1 and n
        }

    def __getitem__(self, key: int | str | Tensor) -> np.ndarray:
        """Return an output.

        Raises:
            KeyError: a tensor id that is none of an output.
            UsageError: a name or a tensor that is none of an output, or a name of several.
        """
        if isinstance(key, str):
            found = self.named.get(key)
            if found is None:
                known = ", ".join(self.named) or "none has a name of its own"
                raise UsageError(
                    f"no output {key!r}", where=self._graph.name, hint=f"outputs: {known}"
                )
            return found
        if isinstance(key, Tensor):
            own = self._graph.tensors[key.id] if key.id in self else None
            if own is None or own != replace(key, name=own.name):  # ``build`` may have named it
                raise UsageError(f"{key.name!r} is not an output", where=self._graph.name)
            key = key.id
        return super().__getitem__(key)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle with the graph."""
        return Outputs, (self._graph, dict(self))


class StartedRun:
    """A run of ``Scheduler.start``; whoever started it takes its outputs when they are needed.

    Other calls of the scheduler that cannot go on before it has come to an end wait for it. What it
    returned, or the error that it ended in, is kept until ``outputs`` is called.

    Attributes:
        guard: The scheduler's.
    """

    def __init__(
        self, guard: CallGuard, finish: Callable[[], Outputs], is_done: Callable[[], bool]
    ) -> None:
        """Take what ends the run: waits for it, and returns its outputs."""
        self.guard = guard
        self._finish: Callable[[], Outputs] | None = finish
        self._is_done = is_done
        self._found: Outputs | None = None
        self._error: GgschedError | None = None

    @classmethod
    def ended(cls, guard: CallGuard, found: Outputs) -> "StartedRun":
        """Return a run that is over."""
        run = cls(guard, lambda: found, lambda: True)
        run.settle()
        return run

    @property
    def is_done(self) -> bool:
        """Whether ``outputs`` would not wait."""
        return self._finish is None or self._is_done()

    @guarded()
    def outputs(self) -> Outputs:
        """Wait for the run, and return its outputs; legal again.

        Raises:
            DeviceFault: a command failed.
            ModelError: a file whose mapping was read was truncated or written to.
            SyncTimeout: a device did not answer within ``settings.timeout_s``.
        """
        self.settle()
        if self._found is None:
            raise self._error or UsageError(
                "the wait for the run was interrupted", hint="run it again"
            )
        return self._found

    def settle(self) -> None:
        """Wait for the run, inside a call of the scheduler; its error is for ``outputs``."""
        if self._finish is None:
            return
        finish, self._finish, self._is_done = self._finish, None, lambda: True
        try:
            self._found = finish()
        except GgschedError as error:
            self._error = error

    def fail(self, error: GgschedError) -> None:
        """Take note that the run failed, which showed when all streams were drained."""
        self._finish, self._is_done, self._error = None, lambda: True, error


# --- order ----------------------------------------------------------------------------------------


P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class _Request(Generic[P]):
    """What was requested last; while the run, or its alternate, is the last one, all this holds."""

    graph: object
    constraints: object
    planned: P
    run: Run


class RunOrder(Generic[P]):
    """The runs on one store.

    Attributes:
        last: The run that was started last; None where the next one has to drain first.
    """

    def __init__(self, store: Store, runs: Callable[[], Iterable[Run]]) -> None:
        """Begin with nothing under way.

        Args:
            runs: Returns all bound plans.
        """
        self._store, self._runs = store, runs
        self.last: Run | None = None
        self._request: _Request[P] | None = None
        self._under_way: dict[str, tuple[int, int]] | None = {}
        self._started: list[tuple[Run, StartedRun]] = []

    def repeated(self, graph: object, constraints: object) -> tuple[P, Run] | None:
        """Return what was remembered, if the last run was of these."""
        known, last = self._request, self.last
        if (
            known is not None
            and last is not None
            and last in (known.run, known.run.alternate)
            and known.graph is graph
            and known.constraints is constraints
        ):
            return known.planned, known.run
        return None

    def remember(self, graph: object, constraints: object, planned: P, run: Run) -> None:
        """Keep what the next run may repeat."""
        self._request = _Request(graph, constraints, planned, run)

    def forget(self) -> None:
        """Let the next run neither repeat nor follow the last one."""
        self.last = self._request = None

    def enter(self, run: Run, streams: StateStreams | None) -> None:
        """Order a run behind all that is under way: by streams if that is enough, or by the host.

        Until a run has begun, or came to its end, no other may follow it: if it is cut short, the
        next one drains.

        Args:
            run: To be started.
            streams: Its ``state_streams``; None to let the host order what comes next.
        """
        last = self.last
        follows = run is not last and self._follows(streams)
        self.last = None
        if follows:
            run.follow()
        elif run is not last:
            self.drain()
            self._under_way = {}
        if streams is None or self._under_way is None:
            self._under_way = None
        elif run is not last:
            self._under_way.update(streams)

    def _follows(self, streams: StateStreams | None) -> bool:
        """Whether streams keep a run in order with all that is under way."""
        if self.last is None or streams is None or self._under_way is None:
            return False
        return all(self._under_way.get(name, s) == s for name, s in streams.items())

    def begin(self, run: Run, inputs: Mapping[str, ArrayLike]) -> None:
        """Start a run that is in order with all that is under way; the next one may not follow."""
        self._store.require_files()
        run.start(host_arrays(inputs))

    def finish(self, run: Run, last: Run | None, *, copy: bool = True) -> dict[int, np.ndarray]:
        """Wait for the first run that is under way, and return its outputs.

        Args:
            last: The one that was started last.
            copy: Whether outputs are copies.
        """
        self.last = None  # a run that is cut short leaves work behind
        del self._started[:1]
        outputs = run.finish(copy=copy)
        self._store.require_files()  # what was read of a file that was cut short does not count
        self.last = last
        return outputs

    def start(
        self,
        run: Run,
        inputs: Mapping[str, ArrayLike],
        guard: CallGuard,
        outputs_of: Callable[[dict[int, np.ndarray]], Outputs],
    ) -> StartedRun:
        """Begin a run that whoever takes its outputs waits for."""
        self.enter(run, run.state_streams)

        def finish() -> Outputs:
            self.settle(run)
            return outputs_of(self.finish(run, self.last))

        started = StartedRun(guard, finish, lambda: run.is_done)
        self.begin(run, inputs)
        self._started.append((run, started))
        self.last = run
        return started

    def settle(self, before: Run | None = None) -> None:
        """Wait for runs that were started, all or those that were started before one.

        Their errors are for those who take the outputs.
        """
        while self._started and self._started[0][0] is not before:
            started = self._started[0]
            started[1].settle()
            if self._started[:1] == [started]:  # the wait was cut short: who is next drains
                self.last = None
                del self._started[0]

    def drain(self) -> None:
        """Wait for all work; nothing is under way afterwards.

        Raises:
            GgschedError: the first failure.
        """
        last, self.last = self.last, None  # until all have taken note
        failures = self.drained()
        if failures:
            raise failures[0]
        for run in self._runs():
            run.drained()
        self.last = last

    def drained(self) -> Sequence[GgschedError]:
        """Drain the store, let all started runs take note of their end, and return failures."""
        failures = self._store.drain()
        while self._started and failures:
            run, started = self._started[0]
            started.fail(failures[0])
            run.give_up()
            del self._started[0]
        self.settle()
        return failures
