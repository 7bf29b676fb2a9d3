"""Nodes of built-in ops by the arithmetic that defines them, for devices that lack a kernel.

It is exact and slow: numpy, in float64, rounded once to the type of the result. Devices count and
report nodes that run by it (``Program.by_reference``).
"""

from collections.abc import Iterator, Sequence
from math import prod
from typing import Final

import numpy as np

from ggsched.backend.arrays import Array
from ggsched.backend.elements import computed, decoded, encode, set_rows
from ggsched.backend.program import BoundNode
from ggsched.ir.ops import OPS
from ggsched.ops.rows import check_ids

PART_ELEMENTS: Final = 1 << 24
"""Elements of a weight that are decoded at once: 128 MB in float64."""


def compute(node: BoundNode, out: Array, inputs: Sequence[Array]) -> None:
    """Compute a node of a built-in op.

    Args:
        out: The result, as ``ggsched.backend.arrays.bind`` makes it.
        inputs: The operands.

    Raises:
        UsageError: an id is out of range.
    """
    op, dtypes, dtype = OPS[node.op], [o.dtype for o in node.inputs], node.output.dtype
    with np.errstate(all="ignore"):
        for some, part in _parts(node, out, inputs):
            operands = [decoded(a, dtypes[i]) for i, a in enumerate(some) if i != op.through]
            if op.name == "set_rows":
                source, ids = operands
                set_rows(part, source, ids, dtype)
            else:
                part[...] = encode(computed(op, operands, node.params), dtype)


def _parts(
    node: BoundNode, out: Array, inputs: Sequence[Array]
) -> Iterator[tuple[list[Array], Array]]:
    """Yield operands and result of a node so that little of a large weight is decoded at once."""
    inputs, op = list(inputs), OPS[node.op]
    if op.name == "mul_mat":
        w, x = inputs
        columns = node.inputs[0].shape[-1]
        step = max(1, PART_ELEMENTS // max(1, columns * prod(w.shape[:-2])))
        for first in range(0, w.shape[-2], step):
            some = slice(first, first + step)
            yield [w[..., some, :], x], out[..., some]
        return
    is_whole = op.name != "get_rows" or inputs[0].ndim == 2
    if op.rows is not None and is_whole and not node.params.get("of"):
        table, ids = op.rows
        check_ids(inputs[ids], len(inputs[table]))
        used, places = np.unique(inputs[ids], return_inverse=True)
        inputs[table], inputs[ids] = inputs[table][used], places.reshape(inputs[ids].shape)
    yield inputs, out
