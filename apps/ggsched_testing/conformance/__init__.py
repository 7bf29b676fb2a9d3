"""The conformance kit: the contract as cases that anybody's backend can be put to.

    report = run_conformance(Harness.named("opencl:0"), rules="EVT-*")

``ggsched conform NAME`` does it from the command line, ``pytest_plugin`` from a plug-in's tests.
"""

from ggsched_testing.conformance.case import Case
from ggsched_testing.conformance.harness import Harness, Waiver
from ggsched_testing.conformance.report import CaseResult, ConformanceReport, ContractBroken
from ggsched_testing.conformance.rules import RULES, BrokenRule
from ggsched_testing.conformance.runner import ConformanceRunner, run_conformance
from ggsched_testing.conformance.suite import all_cases, select

__all__ = [
    "RULES",
    "BrokenRule",
    "Case",
    "CaseResult",
    "ConformanceReport",
    "ConformanceRunner",
    "ContractBroken",
    "Harness",
    "Waiver",
    "all_cases",
    "run_conformance",
    "select",
]
