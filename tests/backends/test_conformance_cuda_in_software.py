"""The backend ``cuda`` keeps the contract on a GPU in software, where there is no GPU.

Checked is what it does itself: order, events, captures, transfers, faults, memory. Kernels of
single ops have tests of their own (``tests/kernels``), and models another one
(``tests/models/test_cuda_in_software.py``).
"""

from types import SimpleNamespace

import pytest

pytest.importorskip("cuda.bindings", reason="cuda-bindings are in the extra 'nvrtc'")

from benchmarks.gpu.mutants import MUTANTS, mutated
from ggsched_testing.conformance import RULES, ConformanceRunner, Harness, all_cases
from ggsched_testing.conformance.harness import adapted
from ggsched_testing.conformance.latch import hold_by_event
from ggsched_testing.conformance.suite import select
from tests.backends.software_kernels import in_software
from tests.kernels.test_fibers import NEEDS, Runner

pytestmark = NEEDS

EXAMPLES = 10
MUTANT_EXAMPLES = 50
TRIES = 3
ARITHMETIC = (
    "lch1_every_op", "lch2_every_op", "lch2_drawn_in_place", "lch3_", "lch4_same_bytes",
    "lch5_scratch_is_apart", "lch5_drawn_products",
    "lch6_", "lch7_mul_mat", "lch7_every_pattern", "lch7_group_constants",
)  # fmt: skip
"""Cases that take hundreds of kernels, or one of the helpers that are not done in software."""

PATIENCE_S = 60.0
"""A kernel is compiled for the host when it first runs, while somebody waits for it."""

ON_A_CARD_ONLY = {"shared scratch", "missing grid dependency"}
"""Mutants that need programmatic dependent launch, or cuBLAS."""


SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))]


@pytest.fixture(scope="module", params=SEEDS)
def driver(request, compiled_kernels):
    with in_software(Runner(compiled_kernels), request.param) as made:
        yield made


@pytest.fixture(scope="module")
def kit(driver):
    from ggsched_cuda.harness import CudaHarness

    own = CudaHarness()
    harness = adapted(Harness("cuda", own.open, timeout_s=PATIENCE_S), own)
    return ConformanceRunner(harness, max_examples=EXAMPLES)


CASES = [case for case in all_cases() if not case.name.startswith(ARITHMETIC)]


@pytest.mark.parametrize("rule", [rule for rule in RULES if any(c.rule == rule for c in CASES)])
def test_rule(kit, rule):
    for case in CASES:
        if case.rule == rule:
            result = kit.run(case)
            assert result.verdict in ("pass", "skip"), f"{case.name}: {result.reason}"


@pytest.mark.parametrize("rule", [r for r in RULES if r[:3] not in ("TRU", "INT")])
def test_rule_behind_a_foreign_event(driver, rule):
    """Streams are held by an event of another backend, so commands wait in the backlog."""
    from ggsched_cuda.harness import CudaHarness

    harness = Harness("cuda", CudaHarness().open, latch=hold_by_event, timeout_s=PATIENCE_S)
    kit = ConformanceRunner(harness, max_examples=EXAMPLES)
    for case in CASES:
        if case.rule == rule:
            result = kit.run(case)
            assert result.verdict in ("pass", "skip"), f"{case.name}: {result.reason}"


@pytest.mark.parametrize(
    "mutant", [m for m in MUTANTS if m.name not in ON_A_CARD_ONLY], ids=lambda m: m.name
)
def test_mutants_are_rejected(driver, monkeypatch, mutant):
    monkeypatch.setattr("ggsched_cuda.driver.cu", SimpleNamespace(cuStreamSynchronize=driver.drain))
    kit = ConformanceRunner(mutated(mutant.mutate), max_examples=MUTANT_EXAMPLES)
    # Some are wrong only while the host is faster than a copy, which a busy machine may prevent.
    cases = [*select(mutant.rules)] * TRIES
    assert any(kit.run(case).verdict == "fail" for case in cases)


def test_streams_are_held(kit):
    for need in ("latch", "fault", "pair", "capture", "update", "launch"):
        assert not kit.lacks(need), need


ROUNDED = ("lch3_attention", "lch3_mul_mat", "lch6_", "lch7_mul_mat", "lch7_every_pattern")


@pytest.mark.slow
@pytest.mark.parametrize("arch", [80, 90])
def test_arithmetic_with_rounded_activations(compiled_kernels, monkeypatch, arch):
    """Products, attention and groups keep LCH-3, LCH-6 and LCH-7 where activations are rounded."""
    from ggsched_cuda.harness import CudaHarness

    monkeypatch.setenv("GGSCHED_ACTIVATIONS", "auto")
    with in_software(Runner(compiled_kernels), arch, arch=arch):
        own = CudaHarness()
        harness = adapted(Harness("cuda", own.open, timeout_s=2 * PATIENCE_S), own)
        kit = ConformanceRunner(harness, max_examples=EXAMPLES)
        for case in all_cases():
            if case.name.startswith(ROUNDED):
                assert (result := kit.run(case)).verdict == "pass", f"{case.name}: {result.reason}"
