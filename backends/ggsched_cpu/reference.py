"""Nodes that have no compiled kernel: kernels of user-defined ops, else the reference arithmetic.

The reference arithmetic is the one that defines each op (``ggsched.ops``): numpy, in
float64, rounded once to the type of the result. It is exact and slow, so nodes that run by it are
counted and reported (``Program.by_reference``). Ops of the library ``nd`` define themselves by a
function in numpy, which computes in the type of the operands.
"""

from collections.abc import Callable, Iterator
from functools import partial
from math import prod
from typing import Final

import numpy as np

from ggsched.backend.arrays import Array
from ggsched.backend.elements import computed, decoded, encode, set_rows
from ggsched.backend.user_kernels import user_kernel
from ggsched.ir.ops import BUILT_IN, LIBRARY_KEYS, OPS, OpDef
from ggsched.ops.rows import check_ids
from ggsched.topology.caps import offers
from ggsched_cpu.lowering.context import Node

PART_ELEMENTS: Final = 1 << 24
"""Elements of a weight that are decoded at once: 128 MB in float64."""


def is_reference(op: str) -> bool:
    """Whether nodes of an op without compiled kernel run by the definition of the op.

    Those of other ops run by a kernel that the caller registered.
    """
    return op in BUILT_IN or offers(LIBRARY_KEYS, op, "")


def call_of(node: Node) -> Callable[[], None]:
    """Return what computes a node."""
    if node.bound.op in BUILT_IN:
        return partial(_compute, OPS[node.bound.op], node)
    operands = tuple(array.view() for array in node.inputs)
    for array in operands:
        array.flags.writeable = False
    return partial(_call, user_kernel(node.bound.op, "cpu"), operands, node)


def _call(kernel: Callable[..., object], operands: tuple[Array, ...], node: Node) -> None:
    with np.errstate(all="ignore"):
        kernel(*operands, out=node.out, **node.bound.params)


def _compute(op: OpDef, node: Node) -> None:
    dtypes, dtype = [o.dtype for o in node.bound.inputs], node.bound.output.dtype
    with np.errstate(all="ignore"):
        for inputs, out in _parts(op, node):
            operands = [
                decoded(array, dtypes[i]) for i, array in enumerate(inputs) if i != op.through
            ]
            if op.name == "set_rows":
                source, ids = operands
                set_rows(out, source, ids, dtype)
            else:
                out[...] = encode(computed(op, operands, node.bound.params), dtype)


def _parts(op: OpDef, node: Node) -> Iterator[tuple[list[Array], Array]]:
    """Yield operands and result of a node so that little of a large weight is decoded at once."""
    inputs = list(node.inputs)
    if op.name == "mul_mat":
        w, x = inputs
        columns = node.bound.inputs[0].shape[-1]
        step = max(1, PART_ELEMENTS // max(1, columns * prod(w.shape[:-2])))
        for first in range(0, w.shape[-2], step):
            some = slice(first, first + step)
            yield [w[..., some, :], x], node.out[..., some]
        return
    if op.rows is not None and (op.name != "get_rows" or inputs[0].ndim == 2):
        table, ids = op.rows
        check_ids(inputs[ids], len(inputs[table]))
        used, places = np.unique(inputs[ids], return_inverse=True)
        inputs[table], inputs[ids] = inputs[table][used], places.reshape(inputs[ids].shape)
    yield inputs, node.out
