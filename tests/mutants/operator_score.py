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
from tests.mutants.proof import is_distinguished
from tests.mutants.score import is_defective

BASELINES: Final = (CPU, SIM)
COUNT: Final = 54
SEED: Final = 38
DRAWN: Final = "*_drawn_*"
"""Cases whose sizes, streams and commands are drawn."""

_ORDER: Final = "STR-*,EVT-*,CPY-*,FIL-*,BUF-*,ALL-1"
RULES: Final = {
    "launch": "STR-*,EVT-*,LCH-1,LCH-2,ALL-1",
    "replay": "CAP-*",
    "event": "STR-6,EVT-*,ALL-1",
    "buffer": "BUF-1,BUF-2,ERR-3",
    "device": "STR-*,EVT-*,BUF-*,LCH-1,ALL-1",
}
"""By method or its owner, the rules whose cases run; those on order and bytes for all others."""

HEADING: Final = "## Backends by operators"
_TEXT: Final = """\
{heading}

Mutants of the table above were written by hand, many of them together with the case that rejects
them, so the share of 100 % says that no case has lost its effect. It does not say which share of
faults the kit finds. That is estimated here: mutants are drawn from seed {seed}. An *operator*
(drop, cut short, shift, exchange, put off, run elsewhere, complete early, return the object before)
changes one method of a stream, an event, a buffer or the device, for calls that meet a *condition*
with a drawn bound (a size or an offset from 256 B to 4 MiB, 1 to 600 calls, 1 to 64 waits, one of
several streams). No case was written for one of them. Some change nothing that a caller can see.
Those that do are *distinguished* by a program (`tests.mutants.proof`) that is aimed at the mutant:
it makes the condition true, calls the method, and compares what it sees. The kit does not know the
condition. *Rejected* is its share of the mutants that are distinguished, and *without drawn cases*
the share that cases with fixed examples and the small random programs reject. The section is
written by `python -m tests.mutants.operator_score -o docs/reference/mutation-score.md`.
"""

Verdict = tuple[bool, str, str]
"""Whether a program distinguishes it; the first case with fixed examples, and the first drawn one,
that rejects, or empty texts."""


def assess(mutant: OperatorMutant) -> Verdict:
    """Run the cases about a mutant's method, those that are drawn only if no other rejects it.

    None run for a mutant that no program distinguishes.
    """
    if not is_distinguished(mutant):
        return False, "", ""
    kit = ConformanceRunner(mutant.harness())
    cases = select(RULES.get(mutant.method.partition(".")[0], _ORDER))
    drawn = select(DRAWN, among=cases) if any("_drawn_" in c.name for c in cases) else ()
    plain = _first(kit, [c for c in cases if c not in drawn])
    return True, plain, "" if plain else _first(kit, drawn)


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
    lines.append(
        "| device | condition | mutants | distinguished | without drawn cases | rejected |"
    )
    lines.append("| --- | --- | ---: | ---: | ---: | ---: |")
    for baseline in BASELINES:
        for trigger in (*TRIGGERS, "all"):
            mine = [v for b, m, v in found if b is baseline and trigger in (m.trigger, "all")]
            told = [v for v in mine if v[0]]
            plain, both = (sum(any(v[1:end]) for v in told) for end in (2, 3))
            if mine:
                shares = " | ".join(f"{n / max(1, len(told)):.0%}" for n in (plain, both))
                row = (baseline.name, trigger, str(len(mine)), str(len(told)), shares)
                lines.append(f"| {' | '.join(row)} |")
    for what, some in (
        ("Distinguished, and not rejected", [f for f in found if f[2][0] and not any(f[2][1:])]),
        ("Not distinguished", [f for f in found if not f[2][0]]),
    ):
        names = "; ".join(f"{m.name} ({b.name})" for b, m, _ in some)
        lines += ["", f"{what}: {names or 'none'}."]
    lines.append("")
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
        by = verdict[1] or verdict[2] or ("SURVIVES" if verdict[0] else "not distinguished")
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
