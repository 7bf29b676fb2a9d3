"""The contract's page, the conformance cases and the mutants stay in step."""

import re
from dataclasses import fields

import pytest

from ggsched.backend.program import BoundNode, Group, Operand
from ggsched_testing.conformance.page import (
    cases_by_rule,
    filled,
    mutants_by_rule,
    rules_of,
)
from ggsched_testing.conformance.rules import RULES
from ggsched_testing.conformance.suite import all_cases, select
from tests.meta.repository import CODE, ROOT, name_of, python_files

PAGE = ROOT / "docs" / "reference" / "contract.md"
MUTANTS_PER_RULE = 3
RULE = re.compile(r"\b(?:STR|EVT|BUF|CPY|FIL|LCH|COL|CAP|ERR|TRU|INT|ALL)-\d+\b")


def test_the_page_has_a_section_for_each_rule():
    text = PAGE.read_text(encoding="utf-8")
    assert rules_of(text) == list(RULES)
    for section in text.split("\n### ")[1:]:
        body = section.split("<!-- cases")[0]
        for word in ("**Guarantee.**", "**Freedom.**", "**Violation.**"):
            assert body.count(word) == 1, section[:5]


def test_the_page_lists_cases_and_mutants_as_they_are():
    text = PAGE.read_text(encoding="utf-8")
    hint = f"python -m ggsched_testing.conformance.page {name_of(PAGE)}"
    assert text == filled(text), f"run: {hint}"


@pytest.mark.parametrize("kind", [BoundNode, Operand, Group])
def test_the_page_of_bound_nodes_has_each_member(kind):
    text = (ROOT / "docs" / "reference" / "bound-nodes.md").read_text(encoding="utf-8")
    begin = "`Group` has" if kind is Group else f"## `{kind.__name__}`"
    section = text.split(begin, 1)[1].split("\n## ")[0]
    for field in fields(kind):
        assert f"`{field.name}`" in section


def test_every_rule_has_a_case():
    assert not [rule for rule, cases in cases_by_rule().items() if not cases]


def test_names_of_cases_are_unique():
    names = [case.name for case in all_cases()]
    assert len(set(names)) == len(names)
    assert select("evt-*") == select("EVT-*")


def test_every_rule_has_mutants():
    mutants = mutants_by_rule()
    if mutants is None:
        pytest.skip("there is no table of mutants yet")
    few = {rule: names for rule, names in mutants.items() if len(names) < MUTANTS_PER_RULE}
    assert not few, "a rule that no mutant breaks is not yet tested"


def test_the_code_cites_rules_that_exist():
    unknown = {
        f"{name_of(path)}: {rule}"
        for path in python_files(*CODE, "examples")
        for rule in RULE.findall(path.read_text(encoding="utf-8"))
        if rule not in RULES
    }
    assert not unknown


def test_the_protocols_cite_every_rule_of_the_device():
    text = (ROOT / "ggsched" / "backend" / "protocols.py").read_text(encoding="utf-8")
    for first, prefix, last in re.findall(r"((\w{3})-\d+)\.\.(\d+)", text):
        text += "".join(f" {prefix}-{n}" for n in range(int(first[-1]), int(last) + 1))
    cited = set(RULE.findall(text))
    assert {rule for rule in RULES if not rule.startswith("ALL")} <= cited
