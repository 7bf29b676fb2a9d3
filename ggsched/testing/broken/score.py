"""The mutation score: which mutant is rejected by which case."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import perf_counter

from ggsched.testing.broken.mutant import Mutant
from ggsched.testing.broken.twins import Twin
from ggsched.testing.conformance import CaseResult, Kit, all_cases


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the kit said about a mutant.

    Attributes:
        mutant: The mutant.
        killers: Cases of its own rule that rejected it.
        others: Cases of other rules that rejected it, if they were asked.
        seconds: How long that took.
    """

    mutant: Mutant
    killers: tuple[CaseResult, ...]
    others: tuple[CaseResult, ...]
    seconds: float

    @property
    def is_killed(self) -> bool:
        """Whether a case of its own rule has rejected it."""
        return bool(self.killers)


def judge(
    mutant: Mutant, *, elsewhere: bool = False, until_killed: bool = False, max_examples: int = 50
) -> Judgement:
    """Run the kit on a mutant.

    Args:
        mutant: The mutant.
        elsewhere: Whether to run the cases of other rules as well.
        until_killed: Whether the first case of its own rule that rejects it is enough.
        max_examples: Random programs that are tried.
    """
    start = perf_counter()
    kit = Kit(mutant.harness(), max_examples=max_examples)
    killers: list[CaseResult] = []
    others: list[CaseResult] = []
    for case in all_cases():
        own = case.rule == mutant.rule
        if not (own or elsewhere) or (own and until_killed and killers):
            continue
        result = kit.run(case)
        if result.verdict == "fail":
            (killers if own else others).append(result)
    return Judgement(mutant, tuple(killers), tuple(others), perf_counter() - start)


def check_twin(twin: Twin, rules: Iterable[str] | None = None) -> tuple[CaseResult, ...]:
    """Return the cases that reject an unbroken device, which should be none."""
    kit, wanted = Kit(twin.harness()), None if rules is None else set(rules)
    results = [kit.run(c) for c in all_cases() if wanted is None or c.rule in wanted]
    return tuple(r for r in results if r.verdict == "fail")


def mutation_score(
    mutants: Iterable[Mutant],
    *,
    elsewhere: bool = False,
    tell: Callable[[Judgement], None] | None = None,
) -> tuple[Judgement, ...]:
    """Judge mutants, one after the other.

    Args:
        mutants: Which ones.
        elsewhere: Whether to run the cases of other rules as well.
        tell: Called with each judgement as it comes.
    """
    judged: list[Judgement] = []
    for mutant in mutants:
        judged.append(judge(mutant, elsewhere=elsewhere))
        if tell is not None:
            tell(judged[-1])
    return tuple(judged)
