"""``docs/reference/mutation-score.md``, written from what was measured."""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from ggsched_testing.conformance import RULES
from tests.mutants.plan_score import PLANS, SEED, PlanScore
from tests.mutants.score import BlockVerdict

_TOP: Final = """\
# Mutation score

What the tools of this project notice, measured by breaking things on purpose. The page is
written by `make mutation`.

## Backends

Each *mutant* is a good device, its *baseline*, with one behaviour changed. The conformance kit has
to reject it by a case of the very rule that it breaks, and to pass the baseline. The last column
has the other rules whose cases reject it, too (cases of single ops, random programs and the
longest cases run for mutants of their own rules only); *own* means that there is none, so the rule
is not covered by accident.
"""

_PLANS: Final = """\
## Plans

{plans} random plans, from seed {seed}, are broken by each operator of
`ggsched_testing.plan_mutants`, and by moving records behind later work, which does no harm. A
mutant is *found* if the sanitizer has a finding. If it has none, the explorer executes the plan
in every order: *unchanged* means that all orders give the bytes that the graph's nodes give one
after another, and anything else would be *missed*.
"""


def page(assessed: Sequence[BlockVerdict], plans: Sequence[PlanScore]) -> str:
    """Return the page."""
    killed = sum(j.is_killed for j in assessed)
    rules = len({j.mutant.rule for j in assessed})
    lines = [_TOP, f"**{killed} of {len(assessed)} mutants of {rules} rules are rejected.**", ""]
    lines += [*_rules(assessed), "", *_mutants(assessed), "", *_plan_lines(plans)]
    return "\n".join(lines).rstrip() + "\n"


def _rules(assessed: Sequence[BlockVerdict]) -> Iterator[str]:
    yield "| rule | mutants | rejected | by its own cases only |"
    yield "| --- | ---: | ---: | --- |"
    for rule in RULES:
        mine = [j for j in assessed if j.mutant.rule == rule]
        own = [f"`{j.mutant.name}`" for j in mine if j.is_killed and j.others == ()]
        count = sum(j.is_killed for j in mine)
        yield f"| {rule} | {len(mine)} | {count} | {', '.join(own) or 'none'} |"


def _mutants(assessed: Sequence[BlockVerdict]) -> Iterator[str]:
    yield "| rule | mutant | baseline | what is wrong with it | rejected by | and by |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for j in assessed:
        cases = ", ".join(f"`{r.case.name}`" for r in j.killers) or "**nobody**"
        others = ", ".join(j.other_rules) or "*own*"
        m = j.mutant
        yield f"| {m.rule} | `{m.name}` | {m.baseline.name} | {m.what} | {cases} | {others} |"


def _plan_lines(plans: Sequence[PlanScore]) -> Iterator[str]:
    yield _PLANS.format(plans=PLANS, seed=SEED)
    yield "| operator | mutants | found | unchanged | missed |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    for score in plans:
        counts = [score.counts[verdict] for verdict in ("found", "unchanged", "missed")]
        numbers = " | ".join(str(n) for n in (sum(counts), *counts))
        yield f"| `{score.operator}` | {numbers} |"
    total = [sum(s.counts[v] for s in plans) for v in ("found", "unchanged", "missed")]
    yield f"| all | {' | '.join(str(n) for n in (sum(total), *total))} |"


def with_section(text: str, heading: str, section: str) -> str:
    """Return a page with a section replaced, or put in front of the one on plans."""
    parts = re.split(r"^(?=## )", text, flags=re.M)
    kept = [p for p in parts if not p.startswith(heading + "\n")]
    at = next((i for i, p in enumerate(kept) if p.startswith("## Plans")), len(kept))
    return "".join([*kept[:at], f"{section.rstrip()}\n\n" if section else "", *kept[at:]])
