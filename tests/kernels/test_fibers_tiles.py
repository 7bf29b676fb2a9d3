"""Tile products on tensor cores, on the host; see ``test_fibers_warp_specialized``.

The host's unit takes its factors apart as the machine-independent code says that lanes hold them.
"""

import numpy as np
import pytest

from ggsched.ir.dtype import dtype_by_name
from ggsched_testing.oracle.interpreter import run_oracle
from tests.kernels.test_fibers import NEEDS
from tests.kernels.test_fibers_experts import FORMS_OF_EXPERTS, Chosen, run_experts
from tests.kernels.test_fibers_warp_specialized import SEEDS, Case, check, results, run_rows

pytestmark = NEEDS


TILED = {"mxfp4": (512, 736, 1504, 2048, 2880), "q4_0": (736, 2880, 3008)}
"""Extents in tiles: several to a stage, an odd number of blocks, rows at two banks, long ones."""

ROWS = [
    Case("gated", "mxfp4", 736, rows=100, units=2, inside=True),
    Case("normed_three", "q4_0", 736, rows=70, units=2, inside=True),
]
SLOW_ROWS = [
    *(Case(form, kind, k, rows=rows, inside=rows % 2 == 1)
      for kind, extents in TILED.items() for k in extents for form, rows in
      (("plain", 151), ("gated", 70), ("normed_gated", 33), ("twice_in_place", 48))),
    *(Case("plain", "mxfp4", k, rows=40, inside=True) for k in (2912, 4832)),
]  # fmt: skip
CHOSEN = [Chosen("swiglu_oai", "mxfp4", 736, tokens=2, used=2, rows=50)]
SLOW_CHOSEN = [
    Chosen(form, kind, k, tokens, 2, each=form == "scaled", units=8, rows=41)
    for form in FORMS_OF_EXPERTS
    for kind, k in (("mxfp4", 736), ("mxfp4", 2880), ("q4_0", 2880))
    for tokens in (1, 2)
]


def some(fast, slow):
    return [*fast, *(pytest.param(c, marks=pytest.mark.slow) for c in slow)]


@pytest.mark.parametrize("case", some(ROWS, SLOW_ROWS), ids=str)
def test_rows(runner, case):
    for runner.seed in SEEDS:
        graph, memory, wanted, call = run_rows(runner, case)
        assert dict(call.defines)["TILES"] == "1"
        check(graph, memory, wanted)


@pytest.mark.parametrize("case", some(CHOSEN, SLOW_CHOSEN), ids=str)
def test_experts(runner, case):
    for runner.seed in SEEDS:
        graph, memory, values = run_experts(runner, case)
        assert not runner.fault.any()
        check(graph, memory, run_oracle(graph, values))


NUMBERS_OF = {
    "q4_0": np.arange(16) - 8.0,
    "mxfp4": np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6]) * np.array([[1.0], [-1.0]]),
}


@pytest.mark.parametrize("k", [64, 736, 2880])
@pytest.mark.parametrize("kind", ["q4_0", "mxfp4"])
def test_sums_that_floats_hold_are_exact(runner, kind, k):
    """Random nibbles times integers: nothing is rounded, so nothing may differ."""
    case, dtype = Case("plain", kind, k, rows=32, units=1), dtype_by_name(kind)
    rng = np.random.default_rng(8)
    blocks = rng.integers(0, 256, (32, k // 32, dtype.block_nbytes)).astype(np.uint8)
    head = dtype.block_nbytes - 16
    blocks[..., :head] = np.array([1.0], np.float16).view(np.uint8) if kind == "q4_0" else 127
    x = rng.integers(-127, 128, (1, k)).astype(np.float32)
    packed = blocks[..., head:].astype(int)
    nibbles = np.concatenate([packed & 15, packed >> 4], -1).reshape(32, k)
    values = {"w": blocks.reshape(32, -1), "x": x}
    graph, memory, _, call = run_rows(runner, case, values)
    (got,) = results(graph, memory).values()
    np.testing.assert_array_equal(got[0], NUMBERS_OF[kind].reshape(-1)[nibbles] @ x[0])
    assert dict(call.defines)["TILES"] == str(int(k in TILED[kind]))


@pytest.mark.parametrize("k", [320, 736])
def test_scales_at_the_ends(runner, k):
    """The least and the largest exponents of mxfp4, in rows of their own."""
    case = Case("plain", "mxfp4", k, rows=32, units=1)
    rng = np.random.default_rng(9)
    blocks = rng.integers(0, 256, (32, k // 32, 17)).astype(np.uint8)
    for row, exponents in enumerate([(0,), (1,), (0, 1, 2), (254,), (255,), (253, 255)]):
        blocks[row::6, :, 0] = rng.choice(exponents, blocks[row::6, :, 0].shape)
    for size, rows in ((2.0**100, [0, 1, 2]), (2.0**-60, [3, 4, 5])):
        x = (rng.uniform(-1, 1, (1, k)) * size).astype(np.float32)
        values = {"w": blocks.reshape(32, -1), "x": x}
        graph, memory, wanted, _ = run_rows(runner, case, values)
        (got,), (wanted,) = results(graph, memory).values(), wanted.values()
        for row in rows:
            these, those = got[0, row::6], wanted[0, row::6]
            assert those.any()
            largest = float(np.max(np.abs(those)))
            np.testing.assert_allclose(these, those, 2e-5, 2e-6 * largest)


def test_an_infinite_scale(runner):
    """It costs its own row, whose first block stands in for the one that a warp has not."""
    case = Case("plain", "q4_0", 736, rows=21, units=1)
    blocks = np.random.default_rng(10).integers(0, 256, (21, 23, 18)).astype(np.uint8)
    blocks[..., :2] = np.array([0.25], np.float16).view(np.uint8)
    blocks[3, 0, :2] = np.array([np.inf], np.float16).view(np.uint8)
    blocks[3, 0, 2:] = 0xFF
    x = np.ones((1, 736), np.float32)
    graph, memory, wanted, _ = run_rows(runner, case, {"w": blocks.reshape(21, -1), "x": x})
    (got,), (wanted,) = results(graph, memory).values(), wanted.values()
    assert not np.isfinite(got[0, 3])
    others = np.arange(21) != 3
    np.testing.assert_array_equal(got[0, others], wanted[0, others])
