"""The kit in a plug-in's own tests, a test for each case.

    pytest_plugins = ["ggsched_testing.conformance.pytest_plugin"]

    @pytest.fixture(scope="module")
    def conformance_harness():
        return "mine"                      # or a Harness

    def test_contract(conformance):
        conformance()

What is not met is skipped with its reason, what is waived is an expected failure, and the last
test looks for waivers that are of no use any more.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from ggsched_testing.conformance.case import Case
from ggsched_testing.conformance.harness import Harness
from ggsched_testing.conformance.report import CaseResult, explain
from ggsched_testing.conformance.runner import ConformanceRunner, stale_waivers
from ggsched_testing.conformance.suite import all_cases


@dataclass(slots=True)
class Run:
    """The kit on one harness, and what became of the cases so far."""

    kit: ConformanceRunner
    results: list[CaseResult] = field(default_factory=list)

    def check(self, case: Case) -> None:
        """Run a case, in pytest's terms."""
        result = self.kit.run(case)
        self.results.append(result)
        match result.verdict:
            case "fail":
                pytest.fail("\n".join(explain(result, self.kit.harness.name)), pytrace=False)
            case "skip" | "unsupported":
                pytest.skip(result.reason)
            case "xfail":
                pytest.xfail(result.reason)
            case "pass":
                pass

    def check_waivers(self) -> None:
        """Look for waivers that match nothing, or that a case passed which they excuse."""
        whole = len(self.results) == len(all_cases())
        stale = stale_waivers(self.kit.harness.waivers, self.results, whole=whole)
        if stale:
            pytest.fail("stale waivers:\n" + "\n".join(f"  {s}" for s in stale), pytrace=False)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a test of each case, and one of the waivers."""
    if "conformance_case" in metafunc.fixturenames:
        cases: list[Case | None] = [*all_cases(), None]
        names = [case.name if case is not None else "waivers" for case in cases]
        metafunc.parametrize("conformance_case", cases, ids=names)


@pytest.fixture(scope="module")
def conformance_run(conformance_harness: Harness | str) -> Iterator[Run]:
    """Give the kit on the harness of the module."""
    given = conformance_harness
    yield Run(ConformanceRunner(Harness.named(given) if isinstance(given, str) else given))


@pytest.fixture
def conformance(conformance_run: Run, conformance_case: Case | None) -> Callable[[], None]:
    """Give a function that runs the case of this test."""
    if conformance_case is None:
        return conformance_run.check_waivers
    case = conformance_case
    return lambda: conformance_run.check(case)
