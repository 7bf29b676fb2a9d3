"""The search for observations, in one of three ways."""

from collections.abc import Sequence
from typing import Literal

from ggsched.errors import UsageError
from ggsched_testing.explore.dpor import Follower, Search
from ggsched_testing.explore.outcome import Exploration, Observation, Outcome, Run
from ggsched_testing.explore.sampling import Preemptions, Priorities, Sampler, Tempers
from ggsched_testing.explore.shrink import outcome_of, shrink
from ggsched_testing.explore.trace import ExplorationRecorder, Moment

Mode = Literal["all", "bounded", "pct"]


def explore(
    run: Run,
    *,
    mode: Mode = "all",
    limit: int = 1000,
    samples: int = 4,
    stop_at: int = 0,
    bound: int = 2,
    depth: int = 3,
    seed: int = 0,
    shrinks: bool = True,
) -> Exploration:
    """Execute a program in many orders and return what was observed.

    Args:
        run: Executes the program once under a policy.
        mode: ``all`` orders, one of each class that gives the same result; ``bounded``: all
            orders with few preemptions; ``pct``: random priorities.
        limit: Largest number of executions, without those that make a witness simpler.
        samples: For ``all`` the number of executions by other means, early on: an eager device, a
            lazy one, random ones. They find what a systematic search would come to late, and
            they show whether the steps declare all that they touch.
        stop_at: Number of distinct observations that is enough; 0 for no such number.
        bound: For ``bounded`` the largest number of preemptions.
        depth: For ``pct`` how many orderings a bug may need.
        seed: For ``pct``, and for the samples.
        shrinks: Whether to make the order of each unusual observation simpler.

    Returns:
        The distinct observations, that of the usual order first, each with an order that leads
        to it. They are complete only in mode ``all`` and within the limit.

    Raises:
        UsageError: the program does something else when it is executed in the same order, or its
            steps touch more than they declare.
    """
    if limit < 1:
        raise UsageError(f"a limit of {limit} executions", hint="at least one")
    sampler = _sampler(mode, samples, bound, depth, seed)
    found: dict[Observation, Sequence[Moment]] = {}
    schedules = 0
    while not sampler.is_over and schedules < limit:
        policy = sampler.policy()
        observation = run(policy)
        schedules += 1
        found.setdefault(observation, policy.moments)
        sampler.learn(policy, observation)
        if stop_at and len(found) >= stop_at:
            break
    outcomes = tuple(
        _outcome(run, observation, moments, shrinks=shrinks and i > 0)
        for i, (observation, moments) in enumerate(found.items())
    )
    return Exploration(outcomes, schedules, mode == "all" and sampler.is_over)


def _sampler(mode: Mode, samples: int, bound: int, depth: int, seed: int) -> Sampler:
    match mode:
        case "all":
            return _All(samples, seed)
        case "bounded":
            return Preemptions(bound)
        case "pct":
            return Priorities(seed, depth)
        case _:
            raise UsageError(f"mode {mode!r}", hint="all, bounded or pct")


def _outcome(
    run: Run, observation: Observation, moments: Sequence[Moment], *, shrinks: bool
) -> Outcome:
    if shrinks:
        return shrink(run, moments, lambda other: other == observation)
    return outcome_of(observation, moments)


class _All:
    """The search of ``dpor`` among the samplers, and some samples after its first execution."""

    def __init__(self, samples: int, seed: int) -> None:
        self._search = Search()
        self._tempers = Tempers(seed, samples)
        self._is_first = True
        self._seen: set[Observation] = set()
        self._sampled: set[Observation] = set()

    @property
    def is_over(self) -> bool:
        return self._search.is_over and self._tempers.is_over

    def policy(self) -> ExplorationRecorder:
        if self._is_first or self._tempers.is_over:
            return self._search.policy()
        return self._tempers.policy()

    def learn(self, recorder: ExplorationRecorder, observation: Observation) -> None:
        if isinstance(recorder, Follower):
            self._is_first = False
            self._seen.add(observation)
            self._search.learn(recorder)
        else:
            self._sampled.add(observation)
        if self.is_over and not self._sampled <= self._seen:
            raise UsageError(
                "a result that no order of the declared accesses can give",
                why="some step touches more than it declares, or is not the same each time",
                hint="let every step declare its causes and what it touches",
            )
