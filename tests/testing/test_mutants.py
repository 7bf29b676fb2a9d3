"""Every rule has mutants, and the kit rejects each by a case of that very rule."""

import re

import pytest

from ggsched.backend.base import BaseStream
from ggsched_testing.conformance import RULES, ConformanceRunner, all_cases
from tests.meta.repository import ROOT
from tests.mutants.__main__ import main
from tests.mutants.baselines import BASELINES, CPU, SIM
from tests.mutants.mutant import Mutant
from tests.mutants.page import page
from tests.mutants.plan_score import OPERATORS, drawn_plans, plan_scores
from tests.mutants.score import assess, check_baseline
from tests.mutants.table import MUTANTS

PAGE = ROOT / "docs" / "reference" / "mutation-score.md"
BY_RULE = {rule: [m for m in MUTANTS if m.rule == rule] for rule in RULES}
CHEAP = {"LCH-3": "declared_op_is_refused"}
"""Samples that one of the first cases of their rule rejects, where the rule has long ones."""
SAMPLE = [
    next((m for m in found if m.name == CHEAP.get(rule)), found[-1])
    for rule, found in BY_RULE.items()
    if found
]
LONG = {"LCH-3", "ALL-1"}


def rules_of(baseline):
    return {m.rule for m in MUTANTS if m.baseline is baseline}


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_has_three_mutants(rule):
    assert len(BY_RULE[rule]) >= 3, "a rule that no mutant breaks is not yet tested"


def test_mutants_are_described():
    assert len({m.name for m in MUTANTS}) == len(MUTANTS)
    assert len({m.what for m in MUTANTS}) == len(MUTANTS)
    assert all(m.what.endswith(".") and m.what.count("\n") == 0 for m in MUTANTS)
    assert {m.baseline for m in MUTANTS} == set(BASELINES)


@pytest.mark.parametrize("mutant", SAMPLE, ids=lambda m: f"{m.rule}-{m.name}")
def test_sample_is_rejected(mutant):
    assessed = assess(mutant, until_killed=True)
    assert assessed.is_killed, mutant.what
    assert assessed.killers[0].reason


WHOLE = (CPU, SIM)
"""Baselines that tests of backends run the whole kit on."""


@pytest.mark.parametrize(
    "baseline",
    [pytest.param(b, marks=pytest.mark.slow if b in WHOLE else ()) for b in BASELINES],
    ids=lambda t: t.name,
)
def test_baselines_pass(baseline):
    found = check_baseline(baseline, rules_of(baseline) - LONG, repeats=1)
    assert not found, [(r.case.name, r.reason) for r in found]


def test_a_mutant_does_not_change_the_next_device():
    mutant = next(m for m in MUTANTS if m.name == "always_done")
    assert assess(mutant).is_killed
    baseline = ConformanceRunner(mutant.baseline.harness())
    assert all(baseline.run(c).verdict == "pass" for c in all_cases() if c.rule == mutant.rule)


def test_no_plan_mutant_is_missed():
    scores = list(plan_scores(drawn_plans(count=40)))
    assert [s.operator for s in scores] == list(OPERATORS)
    assert not [s for s in scores if s.missed]
    assert sum(s.counts["found"] for s in scores) > 300


def test_a_mistake_in_a_mutant_is_no_rejection():
    class Mistaken(BaseStream):
        def upload(self, source, buffer, offset):
            self.no_such_attribute += 1

    mutant = Mutant("mistaken", "STR-1", "Nothing.", CPU, Mistaken)
    assert not assess(mutant).is_killed


def test_page_is_of_these_mutants():
    text = PAGE.read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| [A-Z]{3}-\d \| `(\w+)` \| .*? \| (.*?) \| `(?:.*)$", text, re.M))
    assert rows == {m.name: m.what for m in MUTANTS}, "run: make mutation"
    assert f"**{len(MUTANTS)} of {len(MUTANTS)} mutants" in text
    assert "**nobody**" not in text
    known = {case.name for case in all_cases()}
    named = set(re.findall(r"`([a-z]{3}\d_\w+)`", text))
    assert named <= known, "run: make mutation"


@pytest.mark.parametrize("part", [["--quick"], ["--rules", "EVT-*"], ["--plans", "3"]])
def test_a_part_of_a_run_is_not_published(part, tmp_path, capsys):
    page_file = tmp_path / "page.md"
    with pytest.raises(SystemExit):
        main([*part, "-o", str(page_file)])
    assert "-o publishes a whole run" in capsys.readouterr().err
    assert not page_file.exists()


def test_no_column_of_the_page_is_empty():
    for table in re.findall(r"(?:^\|.*\n)+", PAGE.read_text(encoding="utf-8"), re.M):
        rows = [line.strip("| \n").split(" | ") for line in table.splitlines()]
        assert len({len(row) for row in rows}) == 1, rows[0]
        for name, *cells in zip(*(rows[:1] + rows[2:]), strict=True):
            assert set(cells) - {"", "-"}, name


def test_page_of_nothing():
    assert "0 of 0 mutants" in page([], [])


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_mutant_is_rejected(capsys):
    assert main(["--quick"]) == 0, capsys.readouterr().err
