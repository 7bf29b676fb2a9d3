"""Placement trial: which of several placements of a graph is the fastest, measured apart.

Each placement is bound with weights and states of its own, so nothing that the caller keeps
changes. The placements take turns, so that all see the same machine; the first run of each warms it
up and does not count.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from math import inf
from typing import Final

import numpy as np

from ggsched.errors import GgschedError, UsageError
from ggsched.ir.graph import Graph
from ggsched.plan.bundle import Plan
from ggsched.run.autotune import ROUNDS
from ggsched.run.protocols import Runtime

WRONG: Final = 1.5
"""How far a prediction may be from what is measured; it is believed as far as that."""
_SLOWER: Final = 2.0
"""A placement whose first counted run takes so many times as long is not run again."""
_ENOUGH_S: Final = 0.1
_MOST_ROUNDS: Final = 30
"""Short runs are repeated more often, for about that long."""
_BURST: Final = 4
"""Runs behind each other in a turn: threads that wait for work sleep after a while."""
_SHORT_S: Final = 0.02
_BATCHES: Final = 3
"""So often another placement than the predicted one has to be faster."""
_BETTER: Final = 0.95
"""Another placement than the one that was predicted to be the fastest is kept below this."""


Turn = Callable[[], float]
"""Runs a placement once and returns the seconds that it took."""


@dataclass(frozen=True, slots=True)
class TriedPlacement:
    """A placement that may be run.

    Attributes:
        name: For people.
        graph: What is run.
        plan: Of the graph.
        seconds: Predicted, of a run.
    """

    name: str
    graph: Graph
    plan: Plan
    seconds: float


def measure_placements(
    ways: Sequence[TriedPlacement],
    open_runtime: Callable[[], Runtime],
    inputs: Mapping[str, np.ndarray],
    clock: Callable[[], float],
) -> list[float]:
    """Return the seconds of the fastest run of each placement; infinity where it was not run.

    The first one is run in any case. Where its prediction holds, others are run only if they could
    be faster for all that predictions are wrong.

    Args:
        ways: The placement that is predicted to be the fastest, then others.
        open_runtime: Returns a place to run plans in, with nothing on it.
        inputs: Of the graphs.
        clock: Seconds.

    Raises:
        UsageError: the inputs do not fit the graphs.
    """
    with ExitStack() as stack:

        def bind(way: TriedPlacement) -> Turn:
            return stack.enter_context(_bound(way, open_runtime, inputs, clock))

        trial = _Trial(ways, bind)
        found = trial.found
        trial.enter(0)
        holds = ways[0].seconds / WRONG <= found[0] <= ways[0].seconds * WRONG
        for number in range(1, len(ways)):
            if not holds or ways[number].seconds < ways[0].seconds * WRONG**2:
                trial.enter(number)
        best = min(found)
        near = [number for number in trial.turns if found[number] <= _SLOWER * best]
        rounds = max(ROUNDS, min(_MOST_ROUNDS, round(_ENOUGH_S / max(best, 1e-6)))) - 1
        for _ in range(_BATCHES if len(near) > 1 else 0):
            for number in near * -(-rounds // _BURST):
                trial.run(number, _BURST)
            if kept_placement(found) == 0:
                break  # another one has to be faster again and again
    return found


class _Trial:
    """The placements that take turns, and the seconds of the fastest run of each."""

    def __init__(
        self, ways: Sequence[TriedPlacement], bind: Callable[[TriedPlacement], Turn]
    ) -> None:
        self.found = [inf for _ in ways]
        self.turns: dict[int, Turn] = {}
        self._ways = ways
        self._bind = bind

    def enter(self, number: int) -> None:
        """Bind a placement, warm it up and run it; one without memory takes no turns."""
        try:
            self.turns[number] = self._bind(self._ways[number])
        except GgschedError:
            return
        self.run(number, 1)
        if number in self.turns:
            self.found[number] = inf
            self.run(number, 1)
        if self.found[number] < _SHORT_S:
            # Threads that have slept take some milliseconds to be as fast as they are in a row.
            enough = round(_SHORT_S / max(self.found[number], 1e-6))
            self.run(number, max(_BURST - 1, min(enough, _MOST_ROUNDS)))

    def run(self, number: int, count: int) -> None:
        """Run a placement, unless it has failed before: the run of the caller says why."""
        try:
            for _ in range(count if number in self.turns else 0):
                self.found[number] = min(self.turns[number](), self.found[number])
        except UsageError:
            raise  # inputs that do not fit: nothing is known of those that do
        except GgschedError:
            self.found[number] = inf
            del self.turns[number]


def kept_placement(found: Sequence[float]) -> int:
    """Return which placement is kept: the first, unless another one is clearly faster."""
    best = min(range(len(found)), key=found.__getitem__)
    return best if found[best] < _BETTER * found[0] else 0


@contextmanager
def _bound(
    way: TriedPlacement,
    open_runtime: Callable[[], Runtime],
    inputs: Mapping[str, np.ndarray],
    clock: Callable[[], float],
) -> Iterator[Turn]:
    """Give a function that runs a placement and returns how long that took."""
    runtime = open_runtime()
    with ExitStack() as stack:
        stack.callback(runtime.store.close)
        run = stack.enter_context(closing(runtime.bind(way.graph, way.plan)))
        stack.callback(runtime.store.drain)

        def turn() -> float:
            began = clock()
            run.start(inputs)
            run.finish(copy=False)
            return clock() - began

        yield turn
