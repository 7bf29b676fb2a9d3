"""The mutation score: which mutant is rejected by which case."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from time import perf_counter
from typing import Final

from ggsched.testing.conformance import Case, CaseResult, ConformanceRunner, all_cases
from tests.mutants.baselines import Baseline
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
        "lch7_group_constants",
        "lch6_every_pattern",
        "lch6_result_on_a_result",
        "lch6_result_on_an_operand",
        "str1_deep_queue",
        "str2_deep_queue",
        "str5_deep_queue",
        "buf1_many_buffers",
        "buf2_freed_in_any_use",
        "cpy2_any_length_and_offset",
        "fil1_any_length_and_offset",
    }
)
"""Cases that are not asked about mutants of other rules, beside those of LCH-3 and ALL-1."""


@dataclass(frozen=True, slots=True)
class BlockVerdict:
    """What the kit said about a mutant.

    Attributes:
        mutant: The mutant.
        killers: Cases of its own rule that rejected it for what it does.
        others: For each other rule the first case that rejected it; None if they were not asked.
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


def assess(mutant: Mutant, *, elsewhere: bool = False, until_killed: bool = False) -> BlockVerdict:
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
            killers += [r for r in _failures(kit, case) if not is_defective(r)]
    others: list[CaseResult] | None = None
    if elsewhere:
        kit = ConformanceRunner(replace(mutant.harness(), repeats=1))
        others = []
        for case in all_cases():
            is_asked = case.rule != mutant.rule and is_cheap(case)
            if is_asked and all(r.case.rule != case.rule for r in others):
                others += _failures(kit, case)
    found = None if others is None else tuple(others)
    return BlockVerdict(mutant, tuple(killers), found, perf_counter() - start)


def is_defective(result: CaseResult) -> bool:
    """Whether a mutant was rejected for a mistake in the mutant itself, which says nothing."""
    return result.reason.startswith(("raises AttributeError", "raises NameError"))


def is_cheap(case: Case) -> bool:
    """Whether a case is asked about mutants of other rules."""
    return case.rule not in ("LCH-3", "ALL-1") and case.name not in EXPENSIVE


def check_baseline(
    baseline: Baseline, rules: Iterable[str] | None = None, *, repeats: int = 0
) -> tuple[CaseResult, ...]:
    """Return the failures of an unbroken device, of which there should be none.

    Args:
        baseline: The device.
        rules: The rules whose cases are run; all if not given.
        repeats: How often, with seeds that follow each other; as its harness says if not given.
    """
    harness = baseline.harness()
    kit = ConformanceRunner(replace(harness, repeats=repeats or harness.repeats))
    wanted = None if rules is None else set(rules)
    cases = [c for c in all_cases() if wanted is None or c.rule in wanted]
    return tuple(result for case in cases for result in _failures(kit, case))


def mutation_score(
    mutants: Sequence[Mutant],
    *,
    elsewhere: bool = False,
    tell: Callable[[BlockVerdict], None] | None = None,
    jobs: int = 1,
) -> tuple[BlockVerdict, ...]:
    """Assess mutants.

    Args:
        mutants: Which ones.
        elsewhere: Whether to run cases of other rules as well, those that are cheap.
        tell: Called with each assessment as it comes.
        jobs: Processes; each assesses one mutant at a time.
    """
    assessed: list[BlockVerdict] = []
    for verdict in _assessed(mutants, elsewhere, jobs):
        assessed.append(verdict)
        if tell is not None:
            tell(verdict)
    return tuple(assessed)


Names = tuple[list[tuple[str, str]], list[tuple[str, str]] | None, float]
"""Cases of the own rule and of others that rejected a mutant, with reasons; and seconds."""


def _assessed(mutants: Sequence[Mutant], elsewhere: bool, jobs: int) -> Iterator[BlockVerdict]:
    if jobs == 1:
        yield from (assess(mutant, elsewhere=elsewhere) for mutant in mutants)
        return
    cases = {case.name: case for case in all_cases()}

    def results(found: list[tuple[str, str]]) -> tuple[CaseResult, ...]:
        return tuple(CaseResult(cases[name], "fail", reason) for name, reason in found)

    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        work = partial(_assess_by_name, elsewhere=elsewhere)
        names = pool.map(work, [mutant.name for mutant in mutants])
        for mutant, (own, others, seconds) in zip(mutants, names, strict=True):
            found = None if others is None else results(others)
            yield BlockVerdict(mutant, results(own), found, seconds)


def _assess_by_name(name: str, *, elsewhere: bool) -> Names:
    """Assess a mutant in a process of its own; cases and errors do not travel, names do."""
    from tests.mutants.table import MUTANTS  # it takes time, and only workers need it

    verdict = assess(next(m for m in MUTANTS if m.name == name), elsewhere=elsewhere)
    own = [(r.case.name, r.reason) for r in verdict.killers]
    others = verdict.others
    found = None if others is None else [(r.case.name, r.reason) for r in others]
    return own, found, verdict.seconds


def _failures(kit: ConformanceRunner, case: Case) -> list[CaseResult]:
    result = kit.run(case)
    return [result] if result.verdict == "fail" else []
