"""The backend ``cuda`` keeps the contract on the GPU, with streams held by a kernel."""

import pytest

from ggsched.errors import BackendUnavailable
from ggsched_testing.conformance import RULES, ConformanceRunner, Harness, run_conformance
from ggsched_testing.conformance.harness import adapted

pytestmark = pytest.mark.cuda

EXAMPLES = 25


@pytest.fixture(scope="module")
def harness():
    try:
        from ggsched_cuda.harness import CudaHarness

        own = CudaHarness()
    except BackendUnavailable as error:
        pytest.skip(error.one_line())
    return adapted(Harness("cuda", own.open), own)


@pytest.mark.parametrize("rule", RULES)
def test_rule(harness, rule):
    run_conformance(harness, rules=rule, max_examples=EXAMPLES).raise_if_findings()


def test_streams_are_held(harness):
    kit = ConformanceRunner(harness)
    assert not kit.lacks("latch")
    assert not kit.lacks("fault")
    assert not kit.lacks("pair")
    assert not kit.lacks("capture")
    assert not kit.lacks("update")
