"""Mutants by operators: what is drawn, what is changed, and which cases reject a sample."""

import pytest

from ggsched_testing.conformance import ConformanceRunner, select
from tests.mutants.baselines import CPU, SIM
from tests.mutants.operator_score import COUNT, HEADING, SEED, main, section
from tests.mutants.operators import OPERATORS, TRIGGERS, OperatorMutant, operator_mutants
from tests.mutants.page import with_section
from tests.mutants.proof import is_distinguished, run_program

REJECTED = [
    (OperatorMutant(SIM, "copy", "is cut short", "size", 1 << 21), "str1_drawn_transfers"),
    (OperatorMutant(CPU, "upload", "is shifted", "unaligned", 16), "str1_drawn_transfers"),
    (OperatorMutant(CPU, "fill", "is dropped", "stream", 1), "str4_drawn_transfers"),
    (OperatorMutant(SIM, "wait", "is dropped", "waits", 20), "evt2_drawn_exchanges"),
    (OperatorMutant(SIM, "copy", "is exchanged with the next", "count", 20), "str1_drawn_*"),
    (OperatorMutant(CPU, "replay", "is dropped", "count", 30), "cap1_drawn_graphs"),
    (OperatorMutant(CPU, "launch", "is dropped", "always", 0), "all1_drawn_*"),
]


@pytest.mark.parametrize(("mutant", "cases"), REJECTED, ids=lambda x: getattr(x, "name", x))
def test_drawn_cases_reject_what_they_have_room_for(mutant, cases):
    kit = ConformanceRunner(mutant.harness())
    assert any(kit.run(case).verdict == "fail" for case in select(cases))


@pytest.mark.parametrize("baseline", [CPU, SIM], ids=lambda b: b.name)
def test_drawn_mutants_are_different_and_of_every_condition(baseline):
    mutants = operator_mutants(baseline, COUNT, SEED)
    assert len({m.name for m in mutants}) == len(mutants) == COUNT
    assert {m.trigger for m in mutants} == set(TRIGGERS)
    assert all(m.method in OPERATORS[m.operator] for m in mutants)
    assert mutants[:9] == operator_mutants(baseline, 9, SEED)


@pytest.mark.parametrize("method", sorted({m for ms in OPERATORS.values() for m in ms}))
def test_a_mutant_whose_condition_is_never_met_passes(method):
    """What is laid over streams changes nothing by itself, nor do refused calls."""
    operator = next(o for o, methods in OPERATORS.items() if method in methods)
    mutant = OperatorMutant(CPU, method, operator, "depth", 1 << 30)
    kit = ConformanceRunner(mutant.harness())
    for case in select("str1_copies*,evt3_*,cpy3_*,err1_*"):
        result = kit.run(case)
        assert result.verdict in ("pass", "skip"), f"{case.name}: {result.reason}"


METHODS = [(o, m) for o, methods in OPERATORS.items() for m in methods]


@pytest.mark.parametrize("baseline", [CPU, SIM], ids=lambda b: b.name)
def test_programs_distinguish_mutants_and_not_baselines(baseline):
    for operator, method in METHODS:
        trigger, bound = ("count", 1) if "." in method else ("waits", 2)
        mutant = OperatorMutant(baseline, method, operator, trigger, bound)
        is_there = method != "replay" or baseline is CPU
        assert is_distinguished(mutant) == is_there, mutant.name
        assert run_program(mutant, baseline.harness(), 0) is None, mutant.name


def test_the_section_is_replaced_and_the_rest_is_kept():
    mutant = REJECTED[0][0]
    verdicts = (True, "", "str1_drawn_transfers"), (True, "", ""), (False, "", "")
    text = section([(SIM, mutant, verdict) for verdict in verdicts], SEED)
    assert "| sim | size | 3 | 2 | 0% | 50% |" in text
    page = "# Page\n\n## Backends\n\nx\n\n## Plans\n\ny\n"
    once = with_section(page, HEADING, text)
    assert with_section(once, HEADING, text) == once
    assert once.index("## Backends\n") < once.index(HEADING) < once.index("## Plans")
    assert with_section(once, HEADING, "") == page


def test_a_part_of_the_sample_is_not_published(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["--count", "3", "-o", str(tmp_path / "page.md")])
    assert "-o publishes the whole sample" in capsys.readouterr().err
