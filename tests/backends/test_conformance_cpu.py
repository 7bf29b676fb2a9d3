"""The backend ``cpu`` keeps the contract, with worker threads and without."""

import pytest

from ggsched_cpu.device import CpuDevice, CpuSettings
from ggsched_testing.conformance import RULES, ConformanceRunner, Harness, run_conformance
from ggsched_testing.conformance.suite import select


def harness(*, sync):
    settings = CpuSettings(sync=sync, timeout_s=20.0)
    return Harness("cpu", lambda count, seed: [CpuDevice(i, settings) for i in range(count)])


@pytest.mark.parametrize("sync", [False, True], ids=["threads", "no-threads"])
@pytest.mark.parametrize("rule", RULES)
def test_rule(rule, sync):
    run_conformance(harness(sync=sync), rules=rule).raise_if_findings()


def test_hardly_anything_is_skipped():
    """With worker threads streams are held; what is left are paths that are there."""
    kit = ConformanceRunner(harness(sync=False))
    skipped = {c.rule for c in select() if any(map(kit.lacks, c.needs))}
    kept = [rule for rule in RULES if rule not in skipped]
    assert len(kept) > 20
    assert not kit.lacks("latch")
    assert not kit.lacks("fault")


def test_by_name():
    run_conformance("cpu:3", rules="EVT-4,CPY-6", seed=5).raise_if_findings()
