"""The backend ``ggml`` keeps the contract over a library that does, and shows one that does not."""

import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from ggsched.errors import BackendUnavailable
from ggsched_ggml.driver import find_library
from ggsched_testing.conformance import RULES, ConformanceRunner, Harness, all_cases
from ggsched_testing.conformance.suite import select
from tests.backends.fake_ggml import FAULTS, harness

RULES_OF = dict.fromkeys(FAULTS, "CPY-*,STR-1") | dict.fromkeys(
    (
        "waits are never submitted",
        "only the next command waits",
        "records are signalled at once",
    ),
    "EVT-1,EVT-2",
)
LEFT_OUT = ("lch1_every_op", "lch2_every_op", "lch2_drawn_in_place", "lch3_", "lch4_", "lch6_",
              "lch7_every_pattern", "lch8_", "all1_drawn", "cpy2_far_offsets", "fil1_far_offsets",
              "lch1_far_operands")  # fmt: skip
"""Cases of single ops, which the reference arithmetic computes here, and of gigabytes."""
CASES = [case for case in all_cases() if not case.name.startswith(LEFT_OUT)]


@pytest.fixture(scope="module")
def fake():
    return ConformanceRunner(harness(), max_examples=5)


def check(kit, cases, rule):
    for case in cases:
        if case.rule == rule:
            result = kit.run(case)
            assert result.verdict in ("pass", "skip"), (case.name, result.reason, *result.program)


@pytest.mark.parametrize("rule", [rule for rule in RULES if any(c.rule == rule for c in CASES)])
def test_rule_over_an_asynchronous_library(fake, rule):
    check(fake, CASES, rule)


def test_published_faults_are_found():
    """In a process of its own each: memory that a fault reads or writes too late may be gone."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as processes:
        codes = processes.submit(exit_codes).result(240)
    assert not {fault: (codes[fault], FAULTS[fault]) for fault in FAULTS if codes[fault] > 0}


def exit_codes():
    """Return one for each fault: positive where it was missed, negative where it ended the process.

    The processes are forks of one that has imported the kit, which takes seconds, and not run it.
    """
    codes = {}
    for fault in FAULTS:
        process = get_context("fork").Process(target=find, args=(fault,))
        process.start()
        process.join(120)
        code = process.exitcode
        process.kill()  # where the fault has stopped it for good, which is no finding
        codes[fault] = 1 if code is None else code
    return codes


def find(fault):
    kit = ConformanceRunner(harness(fault, timeout_s=2.0), max_examples=10)
    sys.exit(all(kit.run(case).verdict != "fail" for case in select(RULES_OF[fault])))


@pytest.fixture(scope="module")
def real(monkeypatch_module):
    try:
        find_library()
    except BackendUnavailable as error:
        pytest.skip(f"needs a library of ggml: {error.what}")
    monkeypatch_module.setenv("GGSCHED_THREADS", "1")  # its threads spin
    return ConformanceRunner(Harness.named("ggml:CPU"), max_examples=10)


@pytest.fixture(scope="module")
def monkeypatch_module():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.mark.parametrize("rule", RULES)
def test_rule_on_ggmls_cpu(real, rule):
    check(real, all_cases(), rule)
