"""``python -m tests.mutants``: measure the mutation score and write it down."""

import argparse
import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from ggsched_testing.spread import Spread
from tests.mutants.page import page
from tests.mutants.plan_score import PLANS, drawn_plans, plan_scores
from tests.mutants.score import BlockVerdict, mutation_score, rejected_baselines
from tests.mutants.table import MUTANTS


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; return 1 if a mutant survives, a baseline is rejected, or a plan mutant missed."""
    parser = argparse.ArgumentParser("python -m tests.mutants", description=__doc__)
    parser.add_argument("--rules", default="*", help="pattern of rules or mutants: EVT-*")
    parser.add_argument("--quick", action="store_true", help="cases of the mutants' own rules only")
    parser.add_argument("--jobs", type=int, default=1, help="processes; 1 by default")
    parser.add_argument("--ray", metavar="ADDRESS", help="run on the nodes of a Ray cluster")
    parser.add_argument("--journal", type=Path, metavar="FOLDER", help="keep results, and go on")
    parser.add_argument("--plans", type=int, default=PLANS, help="plans to break")
    parser.add_argument("-o", "--output", type=Path, help="write the page of a whole run")
    options = parser.parse_args(arguments)
    is_whole = not options.quick and options.rules == "*" and options.plans == PLANS
    if options.output is not None and not is_whole:
        parser.error("-o publishes a whole run: leave out --quick, --rules and --plans")
    if options.journal is not None:
        options.journal.mkdir(parents=True, exist_ok=True)
    spread = Spread(options.jobs, options.ray, options.journal, _progress)
    mutants = [m for m in MUTANTS if any(fnmatchcase(t, options.rules) for t in (m.rule, m.name))]
    rejected = rejected_baselines(mutants, spread)
    for name, case, reason in rejected:
        _say(f"baseline {name} REJECTED by {case}: {reason}")
    assessed = mutation_score(mutants, elsewhere=not options.quick, log=_log, spread=spread)
    scores = list(plan_scores(drawn_plans(options.plans), spread)) if options.plans else []
    survivors = sum(not j.is_killed for j in assessed)
    missed = sum(len(s.missed) for s in scores)
    _say(f"{len(assessed)} mutants, {survivors} survive; {len(rejected)} rejections of baselines")
    _say(f"{sum(sum(s.counts.values()) for s in scores)} mutants of plans, {missed} missed")
    if options.output is not None:
        options.output.write_text(page(assessed, scores), encoding="utf-8")
    return 1 if survivors or rejected or missed else 0


def _progress(there: int, of: int) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{there} of {of} \r")


def _log(j: BlockVerdict) -> None:
    verdict = f"rejected by {len(j.killers)}" if j.is_killed else "SURVIVES"
    also = f", also {' '.join(j.other_rules)}" if j.other_rules else ""
    _say(f"{j.mutant.rule} {j.mutant.name}: {verdict}{also} ({j.seconds:.1f} s)")


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())
