"""Make an order simpler and keep what is observed: fewer departures from the usual order.

An order is taken as blocks: who acts, and how often in a row. Blocks are left out, many at a time
first (A. Zeller and R. Hildebrandt, *delta debugging*, 2002), and what the order does not
prescribe happens as usual.
"""

from collections.abc import Callable, Sequence

from ggsched_testing.explore.outcome import Observation, Outcome, Run
from ggsched_testing.explore.token import token_of
from ggsched_testing.explore.trace import ExplorationRecorder, Moment, blocks, steps_of
from ggsched_testing.schedule_policy import Option

Block = tuple[str, int]


def outcome_of(observation: Observation, moments: Sequence[Moment]) -> Outcome:
    """Return the outcome of an execution."""
    return Outcome(observation, token_of(moments), _deviations(moments), steps_of(moments))


def shrink(
    run: Run,
    moments: Sequence[Moment],
    keep: Callable[[Observation], bool],
    *,
    limit: int = 200,
) -> Outcome:
    """Return the outcome of a simpler order.

    Args:
        run: Executes the program.
        moments: An order that has been found.
        keep: Whether an observation will do.
        limit: How many executions it may take.
    """
    return _Shrinker(run, keep, limit).shrink(list(blocks(moments)))


class _Shrinker:
    def __init__(self, run: Run, keep: Callable[[Observation], bool], limit: int) -> None:
        self._run = run
        self._keep = keep
        self._left = limit
        self._best: tuple[tuple[int, int], list[Block], Outcome] | None = None

    def shrink(self, start: list[Block]) -> Outcome:
        self._try(start)
        assert self._best is not None  # the order was found with this observation
        size = max(len(start) // 2, 1)
        while self._left > 0:
            if not self._pass(size):
                if size == 1:
                    break
                size //= 2
        return self._best[2]

    def _pass(self, size: int) -> bool:
        """Leave out each ``size`` blocks in turn; return whether anything became simpler."""
        better, at = False, 0
        while self._best and at < len(self._best[1]) and self._left > 0:
            now = self._best[1]
            if self._try(now[:at] + now[at + size :]):
                better = True
            else:
                at += size
        return better

    def _try(self, wanted: list[Block]) -> bool:
        """Execute; return whether the observation will do and the order is simpler."""
        self._left -= 1
        policy = _Blocks(wanted)
        observation = self._run(policy)
        if not self._keep(observation):
            return False
        moments = policy.moments
        cost = (_deviations(moments), len(wanted))
        if self._best is not None and cost >= self._best[0]:
            return False
        self._best = cost, wanted, outcome_of(observation, moments)
        return True


class _Blocks(ExplorationRecorder):
    """Lets actors act as often as prescribed, where they can; then the usual order."""

    def __init__(self, wanted: Sequence[Block]) -> None:
        super().__init__()
        self._wanted = list(reversed(wanted))

    def pick(self, options: Sequence[Option], usual: int) -> int:
        while self._wanted:
            actor, count = self._wanted.pop()
            at = next((i for i, option in enumerate(options) if option.actor == actor), None)
            if at is not None:
                if count > 1:
                    self._wanted.append((actor, count - 1))
                return at
        return usual


def _deviations(moments: Sequence[Moment]) -> int:
    return sum(m.at != m.usual for m in moments)
