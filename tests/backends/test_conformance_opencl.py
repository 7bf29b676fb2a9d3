"""The backend ``opencl`` keeps the contract on every platform that there is."""

import os
from dataclasses import replace

import pytest

from ggsched.errors import BackendUnavailable
from ggsched_testing.conformance import RULES, ConformanceRunner, Harness, run_conformance
from ggsched_testing.conformance.latch import hold_by_event

pytestmark = pytest.mark.opencl

EXAMPLES = 100 if os.environ.get("HYPOTHESIS_PROFILE") == "nightly" else 10
"""Nearly each has a program of its own, which takes a quarter of a second to compile."""


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


BACKLOG = [r for r in RULES if r[:3] in ("STR", "EVT", "BUF", "CPY", "ERR", "ALL")]


@pytest.mark.parametrize("rule", [*BACKLOG, "LCH-1", "LCH-5"])
def test_rule_behind_a_foreign_event(harness, rule):
    """Streams are held by an event of another backend, so commands wait in the backlog."""
    held = replace(harness, latch=hold_by_event)
    run_conformance(held, rules=rule, max_examples=EXAMPLES).raise_if_findings()


@pytest.mark.parametrize("end", [0, 64])
def test_fills_that_end_too_far_are_made_by_a_kernel(harness, end, monkeypatch):
    """The command of NVIDIA's OpenCL fails beyond 2 GiB, and the context is lost with it."""
    from ggsched_opencl import driver, queue

    ends, own = [], driver.enqueue_fill

    def enqueue_fill(handle, buffer, offset, nbytes, pattern):
        ends.append(offset + nbytes)
        return own(handle, buffer, offset, nbytes, pattern)

    monkeypatch.setattr(queue, "FILL_END", end)
    monkeypatch.setattr(driver, "enqueue_fill", enqueue_fill)
    run_conformance(harness, rules="FIL-*").raise_if_findings()
    assert all(e <= end for e in ends)
    assert bool(ends) == (end > 0)


def test_streams_are_held(harness):
    assert harness.latch is not None, "the queue itself is held, and not the backlog"
    kit = ConformanceRunner(harness)
    assert not kit.lacks("latch")
    assert not kit.lacks("fault")
