"""Nodes that have no compiled kernel: kernels of user-defined ops, else the reference arithmetic.

Built-in ops run as ``ggsched.backend.reference`` defines them; ops of the library ``nd`` define
themselves by a function in numpy, which computes in the type of the operands.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from ggsched.backend.arrays import Array
from ggsched.backend.reference import compute
from ggsched.backend.user_kernels import user_kernel
from ggsched.ir.ops import BUILT_IN, LIBRARY_KEYS
from ggsched.topology.caps import offers
from ggsched_cpu.lowering.context import Node


def is_reference(op: str) -> bool:
    """Whether nodes of an op without compiled kernel run by the definition of the op.

    Those of other ops run by a kernel that the caller registered.
    """
    return op in BUILT_IN or offers(LIBRARY_KEYS, op, "")


def call_of(node: Node) -> Callable[[], None]:
    """Return what computes a node."""
    if node.bound.op in BUILT_IN:
        return partial(compute, node.bound, node.out, node.inputs)
    operands = tuple(array.view() for array in node.inputs)
    for array in operands:
        array.flags.writeable = False
    return partial(_call, user_kernel(node.bound.op, "cpu"), operands, node)


def _call(kernel: Callable[..., object], operands: tuple[Array, ...], node: Node) -> None:
    with np.errstate(all="ignore"):
        kernel(*operands, out=node.out, **node.bound.params)
