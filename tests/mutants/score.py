"""The mutation score: which mutant is rejected by which case."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Final

from ggsched_testing.conformance import Case, CaseResult, ConformanceRunner, all_cases
from ggsched_testing.spread import HERE, Spread
from tests.mutants.baselines import BASELINES, Baseline
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
    mistakes = ("raises AttributeError", "raises NameError")
    return result.reason.startswith(mistakes) or "positional argument" in result.reason


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
    log: Callable[[BlockVerdict], None] | None = None,
    spread: Spread = HERE,
) -> tuple[BlockVerdict, ...]:
    """Assess mutants.

    Args:
        mutants: Which ones.
        elsewhere: Whether to run cases of other rules as well, those that are cheap.
        log: Called with each assessment, in the order of the mutants.
        spread: Who does it.
    """
    cases = {case.name: case for case in all_cases()}

    def results(found: list[tuple[str, str]]) -> tuple[CaseResult, ...]:
        return tuple(CaseResult(cases[name], "fail", reason) for name, reason in found)

    names = [mutant.name for mutant in mutants]
    work = partial(_assess_by_name, elsewhere=elsewhere)
    assessed: list[BlockVerdict] = []
    found = spread.results(work, names, keys=names, work=f"mutants, {elsewhere=}", kind=Names)
    for mutant, (own, others, seconds) in zip(mutants, found, strict=True):
        also = None if others is None else results(others)
        assessed.append(BlockVerdict(mutant, results(own), also, seconds))
        if log is not None:
            log(assessed[-1])
    return tuple(assessed)


def rejected_baselines(
    mutants: Sequence[Mutant], spread: Spread = HERE
) -> list[tuple[str, str, str]]:
    """Return (baseline, case, reason) of what the cases of the mutants' rules reject, wrongly."""
    pairs = list(dict.fromkeys((m.baseline.name, m.rule) for m in mutants))
    keys = [f"{name}: {rule}" for name, rule in pairs]
    kind = list[tuple[str, str]]
    found = spread.results(_baseline_by_name, pairs, keys=keys, work="baselines", kind=kind)
    return [(p[0], *one) for p, some in zip(pairs, found, strict=True) for one in some]


Names = tuple[list[tuple[str, str]], list[tuple[str, str]] | None, float]
"""Cases of the own rule and of others that rejected a mutant, with reasons; and seconds."""


def _assess_by_name(name: str, *, elsewhere: bool) -> Names:
    """Assess a mutant in any process; cases and errors do not travel, names do."""
    from tests.mutants.table import MUTANTS  # it takes time, and only workers need it

    verdict = assess(next(m for m in MUTANTS if m.name == name), elsewhere=elsewhere)
    own = [(r.case.name, r.reason) for r in verdict.killers]
    others = verdict.others
    found = None if others is None else [(r.case.name, r.reason) for r in others]
    return own, found, verdict.seconds


def _baseline_by_name(pair: tuple[str, str]) -> list[tuple[str, str]]:
    name, rule = pair
    baseline = next(b for b in BASELINES if b.name == name)
    return [(r.case.name, r.reason) for r in check_baseline(baseline, {rule})]


def _failures(kit: ConformanceRunner, case: Case) -> list[CaseResult]:
    result = kit.run(case)
    return [result] if result.verdict == "fail" else []
