"""The kit and captures that update graphs, refuse to, or cannot."""

import pytest

from ggsched_testing.conformance import ConformanceRunner, Harness, all_cases, run_conformance
from tests.backends.updating import UpdatingCpu

CASES = [case for case in all_cases() if case.rule == "CAP-4"]


def harness(kind):
    return Harness(kind, lambda count, seed: [UpdatingCpu(kind, i) for i in range(count)])


@pytest.mark.parametrize("kind", ["updates", "refuses"])
def test_to_update_and_to_refuse_are_both_right(kind):
    report = run_conformance(harness(kind), rules="CAP-*")
    report.raise_if_findings()
    assert not [r for r in report.results if r.verdict == "skip"]


def test_captures_without_updates_are_asked_nothing():
    kit = ConformanceRunner(harness("plain"))
    assert {kit.run(case).verdict for case in CASES} == {"skip"}
    assert "update no graph" in kit.run(CASES[0]).reason


def test_an_update_that_fails_is_a_finding():
    kit = ConformanceRunner(harness("breaks"))
    assert "fail" in {kit.run(case).verdict for case in CASES}
