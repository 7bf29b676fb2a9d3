"""The backend ``cpu`` keeps the contract, with worker threads, a team and other kernels."""

import pytest

from ggsched_cpu.device import CpuDevice, CpuSettings
from ggsched_testing.conformance import RULES, ConformanceRunner, Harness, run_conformance
from ggsched_testing.conformance.suite import select
from tests.backends.test_conformance_sim import QUEUES

SETTINGS = {
    "threads": ({}, "*"),
    "no-threads": ({"sync": True}, QUEUES),
    "team-rounded": ({"threads": 2, "activations": "auto"}, "LCH-*,ALL-1"),
    "numpy": ({"kernels": "numpy"}, "LCH-*"),
}
"""With the rules that they can break which devices with worker threads keep: all in slow tests."""

CASES = [
    pytest.param(rule, name, marks=() if rule in asked else pytest.mark.slow)
    for name, (_, rules) in SETTINGS.items()
    for asked in [{case.rule for case in select(rules)}]
    for rule in RULES
]


def harness(**settings):
    chosen = CpuSettings(timeout_s=20.0, **settings)
    return Harness("cpu", lambda count, seed: [CpuDevice(i, chosen) for i in range(count)])


@pytest.mark.parametrize(("rule", "name"), CASES)
def test_rule(rule, name):
    run_conformance(harness(**SETTINGS[name][0]), rules=rule).raise_if_findings()


def test_hardly_anything_is_skipped():
    """With worker threads streams are held; what is left are paths that are there."""
    kit = ConformanceRunner(harness())
    skipped = {c.rule for c in select() if any(map(kit.lacks, c.needs))}
    kept = [rule for rule in RULES if rule not in skipped]
    assert len(kept) > 20
    assert not kit.lacks("latch")
    assert not kit.lacks("fault")


def test_by_name():
    run_conformance("cpu:3", rules="EVT-4,CPY-6", seed=5).raise_if_findings()
