"""Kernels of user-defined ops: Python callables over numpy views."""

from functools import partial

from ggsched.backend.user_kernels import user_kernel
from ggsched_cpu.lowering_context import Call, CpuLoweringContext, Node


def emit_user(node: Node, site: CpuLoweringContext) -> list[Call]:
    """Return the call of a user's kernel; only its result is writable."""
    operands = tuple(array.view() for array in node.inputs)
    for array in operands:
        array.flags.writeable = False
    kernel = user_kernel(node.bound.op, "cpu")
    return [(partial(kernel, out=node.out, **node.bound.params), operands)]
