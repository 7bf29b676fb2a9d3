"""LCH-3: infinities and NaN are values, not faults."""

import warnings
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ggsched.ir.dtype import F32
from ggsched.ir.ops import OPS
from ggsched.topology.caps import op_key
from ggsched_testing.conformance.case import case
from ggsched_testing.conformance.cases_ops import MOVES
from ggsched_testing.conformance.context import TestContext
from ggsched_testing.conformance.draws import graphs_with, is_declared
from ggsched_testing.conformance.oprun import run
from ggsched_testing.generators.values import DrawnGraph, values_for
from ggsched_testing.oracle.interpreter import run_oracle

Array = npt.NDArray[Any]

EXTREMES: Final = np.array(
    [np.finfo(np.float32).max, -np.finfo(np.float32).max, np.inf, -np.inf, np.nan, 0.0, 1.0],
    np.float32,
)

COMPARED: Final = frozenset({"add", "sub", "mul"})
"""Ops whose results IEEE 754 leaves no choice about, also for these values."""


@case("LCH-3", "Infinities and NaN fail no launch.")
def lch3_values_are_no_fault(w: TestContext) -> None:
    # Undefined bytes are such values now and then, so a device that fails by them fails seldom.
    # Numpy's default is to warn, and a warning may be an error: `python -W error`, pytest.
    with warnings.catch_warnings(), np.errstate(all="warn"):
        warnings.simplefilter("error", RuntimeWarning)
        for op in [op for op in OPS if op not in MOVES and op_key(op, "f32") in w.device.facts.ops]:
            for drawn in graphs_with(op, F32, 1, w.rng):
                if is_declared(drawn.graph, w.device.facts):
                    _run(w, op, drawn)


def _run(w: TestContext, op: str, drawn: DrawnGraph) -> None:
    q = w.stream()
    w.program.append(f"graph: {op} of infinities and NaN, seed {w.seed}")
    values = _extreme(values_for(drawn, w.seed), w.rng)
    prepared, after = run(w, q, drawn.graph, values)
    if op in COMPARED:
        for tid, wanted in run_oracle(drawn.graph, values).items():
            same = np.array_equal(prepared.output(after, tid), wanted, equal_nan=True)
            w.require(same, f"{op} of infinities differs from IEEE 754")
    w.program.clear()
    w.close(q)


def _extreme(values: Mapping[str, Array], rng: np.random.Generator) -> dict[str, Array]:
    """Return values with extremes for numbers; one element at least of each array is infinite."""
    return {name: _drawn(v, rng) if v.dtype == np.float32 else v for name, v in values.items()}


def _drawn(value: Array, rng: np.random.Generator) -> Array:
    drawn: Array = rng.choice(EXTREMES, value.shape)
    if drawn.size:
        drawn.flat[rng.integers(drawn.size)] = np.inf
    return drawn
