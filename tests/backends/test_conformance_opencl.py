"""The backend ``opencl`` keeps the contract on every platform that there is."""

import pytest

from ggsched.errors import BackendUnavailable
from ggsched.testing.conformance import RULES, ConformanceRunner, Harness, run_conformance

pytestmark = pytest.mark.opencl

EXAMPLES = 25


@pytest.fixture(scope="module")
def harness():
    pytest.importorskip("pyopencl", reason="pyopencl is in the extra 'opencl'")
    made = Harness.named("opencl:0")
    try:
        devices = made.open(1, 0)
    except BackendUnavailable as error:
        pytest.skip(error.one_line())
    for device in devices:
        device.close()
    return made


@pytest.mark.parametrize("rule", RULES)
def test_rule(harness, rule):
    run_conformance(harness, rules=rule, max_examples=EXAMPLES).raise_if_findings()


def test_streams_are_held(harness):
    kit = ConformanceRunner(harness)
    assert not kit.lacks("latch")
    assert not kit.lacks("fault")
