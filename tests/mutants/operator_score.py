"""``python -m tests.mutants.operator_score``: which share of drawn mutants the kit rejects.

The kit rejects a mutant of ``tests.mutants.operators`` if any case about its method fails. Cases
that draw sizes, numbers of streams and commands are counted apart from the others.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from ggsched_testing.conformance import ConformanceRunner, select
from ggsched_testing.conformance.case import Case
from ggsched_testing.spread import Spread
from tests.mutants.baselines import CPU, SIM, Baseline
from tests.mutants.operators import TRIGGERS, OperatorMutant, operator_mutants
from tests.mutants.page import with_section
from tests.mutants.score import is_defective

BASELINES: Final = (CPU, SIM)
COUNT: Final = 54
SEED: Final = 38
DRAWN: Final = "*_drawn_*"
"""Cases whose sizes, streams and commands are drawn."""

_ORDER: Final = "STR-*,EVT-*,CPY-*,FIL-*,BUF-*,ALL-1"
RULES: Final = {"launch": "STR-*,EVT-*,LCH-1,LCH-2,ALL-1", "replay": "CAP-*"}
"""By method, the rules whose cases run; those on order and bytes for all others."""

HEADING: Final = "## Backends by operators"
_TEXT: Final = """\
{heading}

Mutants of the table above were written by hand, many of them together with the case that rejects
them, so the share of 100 % says that no case has lost its effect. It does not say which share of
faults the kit finds. That is estimated here: mutants are drawn from seed {seed}. An *operator*
(drop, cut short, shift, exchange, put off, run elsewhere, complete early) changes one method of a
stream, for calls that meet a *condition* with a drawn bound (a size or an offset from 256 B to
4 MiB, 1 to 600 calls, 1 to 64 waits, one of several streams). No case was written for one of
them. Some change nothing that a program can see, such as a wait that is dropped where the order is
given anyway, so 100 % cannot be reached. *Without drawn cases* is the share that cases with fixed
examples and the small random programs reject. The section is written by
`python -m tests.mutants.operator_score -o docs/reference/mutation-score.md`.
"""

Verdict = tuple[str, str]
"""The first case with fixed examples, and the first drawn one, that rejects; or empty texts."""


def assess(mutant: OperatorMutant) -> Verdict:
    """Run the cases about a mutant's method, those that are drawn only if no other rejects it."""
    kit = ConformanceRunner(mutant.harness())
    cases = select(RULES.get(mutant.method, _ORDER))
    drawn = select(DRAWN, among=cases) if any("_drawn_" in c.name for c in cases) else ()
    plain = _first(kit, [c for c in cases if c not in drawn])
    return plain, "" if plain else _first(kit, drawn)


def _first(kit: ConformanceRunner, cases: Sequence[Case]) -> str:
    for case in cases:
        result = kit.run(case)
        if result.verdict == "fail" and not is_defective(result):
            return case.name
    return ""


def _assess_by_number(at: tuple[int, int], *, count: int, seed: int) -> Verdict:
    baseline, number = at
    return assess(operator_mutants(BASELINES[baseline], count, seed)[number])


def scores(
    count: int, seed: int, spread: Spread
) -> Iterator[tuple[Baseline, OperatorMutant, Verdict]]:
    """Yield the verdict on each mutant of each baseline."""
    mutants = [operator_mutants(b, count, seed) for b in BASELINES]
    items = [(b, i) for b, some in enumerate(mutants) for i in range(len(some))]
    keys = [f"{BASELINES[b].name}: {mutants[b][i].name}" for b, i in items]
    work = partial(_assess_by_number, count=count, seed=seed)
    found = spread.results(work, items, keys=keys, work=f"operators, {seed=}", kind=Verdict)
    for (b, i), verdict in zip(items, found, strict=True):
        yield BASELINES[b], mutants[b][i], verdict


def section(found: Sequence[tuple[Baseline, OperatorMutant, Verdict]], seed: int) -> str:
    """Return the section of the page."""
    lines = [_TEXT.format(heading=HEADING, seed=seed)]
    lines.append("| device | condition | mutants | without drawn cases | rejected |")
    lines.append("| --- | --- | ---: | ---: | ---: |")
    for baseline in BASELINES:
        for trigger in (*TRIGGERS, "all"):
            mine = [v for b, m, v in found if b is baseline and trigger in (m.trigger, "all")]
            plain, both = sum(bool(v[0]) for v in mine), sum(any(v) for v in mine)
            if mine:
                shares = f"{plain / len(mine):.0%} | {both / len(mine):.0%}"
                lines.append(f"| {baseline.name} | {trigger} | {len(mine)} | {shares} |")
    survivors = [f"{m.name} ({b.name})" for b, m, v in found if not any(v)]
    lines += ["", f"Not rejected: {'; '.join(survivors) or 'none'}.", ""]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and write the section."""
    parser = argparse.ArgumentParser("python -m tests.mutants.operator_score", description=__doc__)
    parser.add_argument("--count", type=int, default=COUNT, help="mutants of each device")
    parser.add_argument("--seed", type=int, default=SEED, help="of the draw")
    parser.add_argument("--jobs", type=int, default=1, help="processes; 1 by default")
    parser.add_argument("--journal", type=Path, metavar="FILE", help="keep results, and go on")
    parser.add_argument("-o", "--output", type=Path, help="page whose section is replaced")
    options = parser.parse_args(arguments)
    if options.output is not None and (options.count, options.seed) != (COUNT, SEED):
        parser.error("-o publishes the whole sample: leave out --count and --seed")
    found = []
    for one in scores(options.count, options.seed, Spread(options.jobs, None, options.journal)):
        baseline, mutant, verdict = one
        found.append(one)
        by = verdict[0] or verdict[1] or "SURVIVES"
        sys.stderr.write(f"{baseline.name}: {mutant.name}: {by}\n")
    text = section(found, options.seed)
    if options.output is None:
        sys.stdout.write(text)
    else:
        page = options.output.read_text(encoding="utf-8")
        options.output.write_text(with_section(page, HEADING, text), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
