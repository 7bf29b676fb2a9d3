"""Trial: which of two ways to run the same graph is faster, found on runs that are wanted anyway.

Nothing is run twice: a graph may have states, and a run changes them. The ways take turns, so that
both see the same machine; the first run of each warms it up and does not count, and of the others
the fastest does, because whatever else the machine does only ever adds time.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from ggsched.errors import InternalError, UsageError
from ggsched.run.cache import RecentCache

ROUNDS: Final = 5
"""Timed runs of each way."""

W = TypeVar("W")
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Measured:
    """What a trial has found so far; seconds of the fastest run, None before there is one.

    Attributes:
        graph: Name of the graph.
        sequential_s: With one stream per device.
        streams_s: With several.
        runs: Runs that were part of the trial, warming up included.
        kept: What is run from now on; None while the trial goes on.
        reason: Why, where it was not decided by time.
    """

    graph: str
    sequential_s: float | None
    streams_s: float | None
    runs: int
    kept: str | None
    reason: str = ""


class Trial(Generic[W]):
    """A trial of two ways to run a graph. The second is kept if it is faster, else the first."""

    def __init__(self, graph: str, ways: tuple[W, W], rounds: int = ROUNDS) -> None:
        """Begin.

        Args:
            graph: Name of the graph.
            ways: One stream per device, and several.
            rounds: Timed runs of each way.
        """
        if rounds < 1:
            raise UsageError(f"a trial of {rounds} rounds", why="it needs at least one")
        self._graph = graph
        self._ways = ways
        self._rounds = rounds
        self._times: tuple[list[float], list[float]] = ([], [])
        self._winner: int | None = None
        self._reason = ""

    @property
    def is_open(self) -> bool:
        """Whether the ways still take turns."""
        return self._winner is None

    @property
    def way(self) -> W:
        """The way to run next."""
        return self._ways[self._turn]

    @property
    def other(self) -> W:
        """The way that is not run next."""
        return self._ways[1 - self._turn]

    @property
    def _turn(self) -> int:
        if self._winner is not None:
            return self._winner
        first, second = self._times
        return int(len(second) < len(first))

    def note(self, seconds: float) -> bool:
        """Note how long a run of the present way took; return whether that decides the trial."""
        if not self.is_open:
            return False
        self._times[self._turn].append(seconds)
        if len(self._times[1]) > self._rounds:
            first, second = (min(times[1:]) for times in self._times)
            self._winner = int(second < first)
        return not self.is_open

    def settle(self, way: int, reason: str) -> None:
        """Keep way 0 or 1 without a comparison."""
        if self.is_open:
            self._winner, self._reason = way, reason

    @property
    def measured(self) -> Measured:
        """What has been found so far."""
        first, second = (min(times[1:], default=None) for times in self._times)
        kept = None if self._winner is None else ("sequential", "streams")[self._winner]
        return Measured(self._graph, first, second, sum(map(len, self._times)), kept, self._reason)


class Trials(Generic[K, W]):
    """The trials that were used last, by what plans depend on but for the way."""

    def __init__(self, limit: int) -> None:
        self._trials: RecentCache[K, Trial[W]] = RecentCache(limit)

    @property
    def measured(self) -> tuple[Measured, ...]:
        """What all of them have found so far."""
        return tuple(trial.measured for trial in self._trials.values())

    def way(self, key: K, begin: Callable[[], Trial[W]]) -> W:
        """Return the way to run next; a trial is begun on first use."""
        return self._trials.get(key, begin).way

    def is_open(self, key: K) -> bool:
        """Whether the time of the next run counts."""
        return self._known(key).is_open

    def note(self, key: K, seconds: float) -> W | None:
        """Note how long a run took; return the way that lost, if that decides the trial."""
        trial = self._known(key)
        return trial.other if trial.note(seconds) else None

    def settle(self, reason: str) -> None:
        """End all of them: the first way it is."""
        for trial in self._trials.values():
            trial.settle(0, reason)

    def forget(self, is_meant: Callable[[K], bool] = lambda key: True) -> None:
        """Forget trials, all or those whose key is meant."""
        for key in filter(is_meant, self._trials):
            self._trials.drop(key)

    def _known(self, key: K) -> Trial[W]:
        def missing() -> Trial[W]:
            raise InternalError("a run was not part of the trial that chose it")

        return self._trials.get(key, missing)
