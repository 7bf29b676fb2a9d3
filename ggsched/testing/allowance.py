"""How far results may be off where products are rounded (LCH-3)."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ggsched.backend.precision import rounding_of
from ggsched.ir.graph import Graph
from ggsched.ir.tensor import Role
from ggsched.testing.generators.values import ATOL, RTOL
from ggsched.testing.oracle.interpreter import run_oracle

Array = npt.NDArray[Any]

TRIALS: Final = 4
MARGIN: Final = 2.0
"""Of what trials show, for results that other ops compute from rounded products."""


def rounding_allowances(
    graph: Graph, values: Mapping[str, Array], expected: Mapping[int, Array]
) -> dict[int, Array]:
    """Return by how much each element of each output may be off because products are rounded.

    For an output that is such a product of what is given: the entry of ``ROUNDING`` times
    ``sum |w| |x|``. Behind other ops: what the results move by when each element of each product is
    that much off, with random signs, at most of a few trials and with a margin. Nothing where the
    graph has states, whose content the trials do not know.
    """
    rounded = [n for n in graph.nodes if _entry(graph, n) > 0]
    moved = {tid: np.zeros(array.shape) for tid, array in expected.items()}
    if not rounded or any(graph.roots(Role.STATE)):
        return moved
    rng = np.random.default_rng(0)
    for _ in range(TRIALS):
        for tid, array in run_oracle(graph, values, rounding=rng).items():
            with np.errstate(all="ignore"):
                by = np.abs(array.astype(np.float64) - expected[tid])
            moved[tid] = np.maximum(moved[tid], np.nan_to_num(by, nan=0.0, posinf=0.0))
    direct = {n.output for n in rounded} if len(graph.nodes) == len(rounded) == 1 else set()
    return {tid: by * (1.0 if tid in direct else MARGIN) for tid, by in moved.items()}


def is_within(seen: Array, wanted: Array, allowance: Array | float = 0.0) -> bool:
    """Whether results agree within ``ATOL``, ``RTOL`` of the value, and an allowance."""
    seen, wanted = seen.astype(np.float64), wanted.astype(np.float64)
    close = np.isclose(seen, wanted, RTOL, ATOL, equal_nan=True)
    with np.errstate(all="ignore"):
        near = np.abs(seen - wanted) <= ATOL + RTOL * np.abs(wanted) + allowance
    return bool((close | near).all())


def _entry(graph: Graph, node: Any) -> float:
    is_product = node.op in ("mul_mat", "mul_mat_id")
    return rounding_of(graph.tensors[node.inputs[0]].dtype.name) if is_product else 0.0
