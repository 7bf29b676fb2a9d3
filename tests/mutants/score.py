"""The mutation score: which mutant is rejected by which case."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Final

from ggsched.testing.conformance import Case, CaseResult, ConformanceRunner, all_cases
from tests.mutants.baselines import Twin
from tests.mutants.mutant import Mutant

EXPENSIVE: Final = frozenset(
    {
        "lch1_every_op",
        "lch2_every_op",
        "lch4_same_bytes",
        "lch4_same_bytes_in_company",
        "lch7_mul_mat",
        "lch7_mul_mat_id",
        "lch7_get_rows",
        "lch7_every_pattern",
    }
)
"""Cases that are not asked about mutants of other rules, beside those of LCH-3 and ALL-1."""


@dataclass(frozen=True, slots=True)
class BlockVerdict:
    """What the kit said about a mutant.

    Attributes:
        mutant: The mutant.
        killers: Cases of its own rule that rejected it.
        others: Cases of other rules that rejected it; None if they were not asked.
        seconds: How long that took.
    """

    mutant: Mutant
    killers: tuple[CaseResult, ...]
    others: tuple[CaseResult, ...] | None
    seconds: float

    @property
    def is_killed(self) -> bool:
        """Whether a case of its own rule has rejected it."""
        return bool(self.killers)

    @property
    def other_rules(self) -> tuple[str, ...]:
        """The other rules whose cases have rejected it, in order."""
        return tuple(dict.fromkeys(r.case.rule for r in self.others or ()))


def judge(mutant: Mutant, *, elsewhere: bool = False, until_killed: bool = False) -> BlockVerdict:
    """Run the kit on a mutant.

    Args:
        mutant: The mutant.
        elsewhere: Whether to run cases of other rules as well, those that are cheap.
        until_killed: Whether the first case of its own rule that rejects it is enough.
    """
    start = perf_counter()
    kit = ConformanceRunner(mutant.harness())
    killers: list[CaseResult] = []
    for case in all_cases():
        if case.rule == mutant.rule and not (until_killed and killers):
            killers += _failures(kit, case)
    others: list[CaseResult] | None = None
    if elsewhere:
        kit = ConformanceRunner(replace(mutant.harness(), repeats=1))
        asked = [c for c in all_cases() if c.rule != mutant.rule and is_cheap(c)]
        others = [result for case in asked for result in _failures(kit, case)]
    found = None if others is None else tuple(others)
    return BlockVerdict(mutant, tuple(killers), found, perf_counter() - start)


def is_cheap(case: Case) -> bool:
    """Whether a case is asked about mutants of other rules."""
    return case.rule not in ("LCH-3", "ALL-1") and case.name not in EXPENSIVE


def check_twin(
    twin: Twin, rules: Iterable[str] | None = None, *, repeats: int = 0
) -> tuple[CaseResult, ...]:
    """Return the failures of an unbroken device, of which there should be none.

    Args:
        twin: The device.
        rules: The rules whose cases are run; all if not given.
        repeats: How often, with seeds that follow each other; as its harness says if not given.
    """
    harness = twin.harness()
    kit = ConformanceRunner(replace(harness, repeats=repeats or harness.repeats))
    wanted = None if rules is None else set(rules)
    cases = [c for c in all_cases() if wanted is None or c.rule in wanted]
    return tuple(result for case in cases for result in _failures(kit, case))


def mutation_score(
    mutants: Iterable[Mutant],
    *,
    elsewhere: bool = False,
    tell: Callable[[BlockVerdict], None] | None = None,
) -> tuple[BlockVerdict, ...]:
    """Judge mutants, one after the other.

    Args:
        mutants: Which ones.
        elsewhere: Whether to run cases of other rules as well, those that are cheap.
        tell: Called with each judgement as it comes.
    """
    judged: list[BlockVerdict] = []
    for mutant in mutants:
        judged.append(judge(mutant, elsewhere=elsewhere))
        if tell is not None:
            tell(judged[-1])
    return tuple(judged)


def _failures(kit: ConformanceRunner, case: Case) -> list[CaseResult]:
    result = kit.run(case)
    return [result] if result.verdict == "fail" else []
