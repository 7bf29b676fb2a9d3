"""Graphs of built-in ops with special elements in their operands; the oracle has the meaning."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ggsched.ir.dtype import F32
from ggsched.ir.graph import Graph
from ggsched.ir.ops import BUILT_IN, op_by_name
from ggsched_testing.conformance.draws import graphs_with
from ggsched_testing.generators.values import DrawnGraph, values_for

Array = npt.NDArray[Any]

ELEMENTS: Final = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -2.0], np.float32)
"""What is drawn into operands."""

KEEPS: Final[Mapping[str, frozenset[str]]] = {
    "attention": frozenset({"q", "mask"}),
    "rope": frozenset({"x"}),
}
"""Operands that special elements are drawn into, where others have no meaning with them."""

LEFT_OUT: Final = frozenset({"linear_attention", "short_conv", "set_rows"})
"""Ops without a meaning for special elements: weights and states are finite."""


def special_graphs(
    rng: np.random.Generator, count: int
) -> Iterator[tuple[str, DrawnGraph, dict[str, Array]]]:
    """Yield op, graph and values: ``count`` graphs of each built-in op, with special elements.

    A graph has nodes of this op only. Some rows are one element throughout, such as -inf.
    """
    for op in BUILT_IN:
        if op in LEFT_OUT:
            continue
        for drawn in graphs_with(op, F32, count, rng):
            names = {drawn.graph.tensors[t].name: n for t, n in _operands(drawn.graph)}
            if {n.op for n in drawn.graph.nodes} == {op}:
                values = values_for(drawn, int(rng.integers(1 << 31)))
                yield (
                    op,
                    drawn,
                    {n: _drawn(op, names.get(n, ""), v, rng) for n, v in values.items()},
                )


def _operands(graph: Graph) -> Iterator[tuple[int, str]]:
    """Yield the storage of each operand, and what the op calls it."""
    for node in graph.nodes:
        op = op_by_name(node.op)
        full = op.full(node.params)
        names = [o.rstrip("?") for o in op.operands if not o.endswith("?") or full[o[:-1]]]
        for tid, name in zip(node.inputs, names, strict=True):
            yield graph.tensors[tid].storage, name


def _drawn(op: str, name: str, value: Array, rng: np.random.Generator) -> Array:
    if value.dtype != np.float32 or (op in KEEPS and name not in KEEPS[op]):
        return value
    # A mask that is NaN or +inf is none; what they do to a row, other operands show.
    elements = ELEMENTS[np.inf > ELEMENTS] if name == "mask" else ELEMENTS
    some = np.where(rng.random(value.shape) < 0.3, rng.choice(elements, value.shape), value)
    if value.ndim:
        rows = rng.random((*value.shape[:-1], 1)) < 0.2
        some = np.where(rows, rng.choice(elements, rows.shape), some)
    return some.astype(np.float32)
