"""Some orders of a program that has too many: few preemptions first, or at random with a bound.

``Preemptions`` tries all orders with no preemption, then with one, and so on (M. Musuvathi and
S. Qadeer, PLDI 2007): a preemption lets somebody else act while whoever acted last could go on.
Most bugs need one or two. ``Priorities`` gives each actor a random priority and lowers it at a few
random moments, which finds a bug of depth d with a probability that is bounded from below
(S. Burckhardt, P. Kothari, M. Musuvathi and S. Nagarakatte, ASPLOS 2010).
"""

import random
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Final, Protocol

from ggsched_testing.explore.outcome import Observation
from ggsched_testing.explore.trace import ExplorationRecorder
from ggsched_testing.schedule_policy import (
    HOST,
    EagerPolicy,
    LaziestPolicy,
    Option,
    RandomPolicy,
    SchedulePolicy,
)

Prefix = tuple[int, ...]


class Sampler(Protocol):
    """Gives policies one after the other."""

    @property
    def is_over(self) -> bool:
        """Whether there is none left."""

    def policy(self) -> ExplorationRecorder:
        """Return a policy for the next execution."""

    def learn(self, recorder: ExplorationRecorder, observation: Observation) -> None:
        """Look at an execution."""


class Preemptions:
    """Orders with few preemptions.

    Args:
        bound: The largest number of preemptions.
    """

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._queue: list[tuple[int, int, Prefix]] = [(0, 0, ())]
        self._count = 0
        self._present: tuple[int, Prefix] = (0, ())

    @property
    def is_over(self) -> bool:
        """Whether all orders within the bound have been tried."""
        return not self._queue

    def policy(self) -> ExplorationRecorder:
        """Return the order with the fewest preemptions that was not tried."""
        cost, _, prefix = heappop(self._queue)
        self._present = cost, prefix
        return _Prefixed(prefix)

    def learn(self, recorder: ExplorationRecorder, observation: Observation) -> None:
        """Note the orders that depart from this one after what was prescribed."""
        cost, prefix = self._present
        taken = tuple(m.at for m in recorder.moments)
        last = HOST if not prefix else recorder.moments[len(prefix) - 1].actor
        for i in range(len(prefix), len(taken)):
            moment = recorder.moments[i]
            price = cost + (last in moment.actors)
            for other in range(len(moment.actors)):
                if other != moment.at and price <= self._bound:
                    self._count += 1
                    heappush(self._queue, (price, self._count, (*taken[:i], other)))
            last = moment.actor


class Priorities:
    """Orders by random priorities with a few random changes.

    Args:
        seed: Decides all of them.
        depth: How many orderings a bug needs; one less than that is the number of changes.
    """

    is_over: Final = False

    def __init__(self, seed: int, depth: int) -> None:
        self._random = random.Random(seed)
        self._depth = depth
        self._length = 1
        self._is_first = True

    def policy(self) -> ExplorationRecorder:
        """Return the usual order first, to learn how long it is, then random ones."""
        if self._is_first:
            return ExplorationRecorder()
        drops = [self._random.randrange(self._length) for _ in range(self._depth - 1)]
        return _Prioritised(self._random.randrange(2**32), drops)

    def learn(self, recorder: ExplorationRecorder, observation: Observation) -> None:
        """Note how many moments there are."""
        self._is_first = False
        self._length = max(self._length, len(recorder.moments))


class Tempers:
    """Orders by other policies: an eager device, a lazy one, then random ones.

    Args:
        seed: Seed of the random ones.
        count: How many orders.
    """

    def __init__(self, seed: int, count: int) -> None:
        self._random = random.Random(seed)
        self._left = count
        self._first: list[SchedulePolicy] = [LaziestPolicy(), EagerPolicy()]

    @property
    def is_over(self) -> bool:
        """Whether there have been enough."""
        return self._left <= 0

    def policy(self) -> ExplorationRecorder:
        """Return the next."""
        self._left -= 1
        inner = self._first.pop() if self._first else RandomPolicy(self._random.randrange(2**32))
        return _Led(inner)

    def learn(self, recorder: ExplorationRecorder, observation: Observation) -> None:
        """Learn nothing."""


class _Led(ExplorationRecorder):
    """Does what another policy says."""

    def __init__(self, inner: SchedulePolicy) -> None:
        super().__init__()
        self._inner = inner

    def pick(self, options: Sequence[Option], usual: int) -> int:
        return self._inner.choose(options)


class _Prefixed(ExplorationRecorder):
    """Begins as prescribed and goes on as usual."""

    def __init__(self, prefix: Prefix) -> None:
        super().__init__()
        self._prefix = prefix

    def pick(self, options: Sequence[Option], usual: int) -> int:
        at = len(self.moments)
        return self._prefix[at] if at < len(self._prefix) else usual


class _Prioritised(ExplorationRecorder):
    """The actor with the highest priority acts; at some moments it becomes the lowest."""

    def __init__(self, seed: int, drops: Sequence[int]) -> None:
        super().__init__()
        self._random = random.Random(seed)
        self._drops = set(drops)
        self._priority: dict[str, float] = {}

    def pick(self, options: Sequence[Option], usual: int) -> int:
        for option in options:
            if option.actor not in self._priority:
                self._priority[option.actor] = self._random.random()
        number = len(self.moments)
        best = self._best(options)
        if number in self._drops:
            self._priority[options[best].actor] = -float(number + 1)
            best = self._best(options)
        return best

    def _best(self, options: Sequence[Option]) -> int:
        return max(range(len(options)), key=lambda i: self._priority[options[i].actor])
