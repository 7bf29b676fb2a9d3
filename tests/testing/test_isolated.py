"""Cases of the kit in processes of their own."""

import pytest

from ggsched.errors import UsageError
from ggsched_testing.conformance.isolated import ABORTS, Child, KitRun, isolated
from ggsched_testing.conformance.report import DEVICE_LOST
from ggsched_testing.conformance.suite import select
from tests.testing.aborting import AbortingRun, LostRun


def test_a_backend_that_ends_the_process_costs_one_case():
    """What is around it runs, and the program ends with the call that did it."""
    child = Child(AbortingRun("mine:0", None, 0, 5, None))
    names = "cpy2_within_a_buffer", "fil1_changes_nothing_else", "buf1_lengths"
    before, lost, after = map(child.run, names)
    child.close()
    assert (before.verdict, after.verdict) == ("pass", "pass"), (before, after)
    assert lost.verdict == "fail"
    assert lost.reason.startswith(f"{ABORTS} (SIGABRT)")
    assert "ASSERT(nbytes == 0) failed" in lost.reason
    assert "fill" in lost.program[-1]


def test_a_device_that_is_gone_is_no_failure():
    results = list(isolated(LostRun("mine:0", None, 0, 5, None), select("CPY-3")))
    assert {r.verdict for r in results} == {"skip"}
    assert results[0].reason.startswith(DEVICE_LOST)
    assert "the device is gone" in results[-1].reason


def test_a_backend_without_programs_in_c_says_so(tmp_path):
    with pytest.raises(UsageError, match="the backend writes no programs in C"):
        KitRun("cpu:0", None, 0, 5, None, str(tmp_path)).harness()
