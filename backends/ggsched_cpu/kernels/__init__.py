"""Kernels: for each op a function that turns a node into calls of numpy."""

from collections.abc import Callable, Mapping
from typing import Final

from ggsched.ir.dtype import F16, F32, FLOAT_DTYPES, I32
from ggsched.ir.ops import OPS
from ggsched.topology.caps import op_key
from ggsched_cpu.kernels import copy, elementwise, experts, matmul, norm, rope, rows, sorting
from ggsched_cpu.kernels.fused import emit_group, supported_fusions
from ggsched_cpu.lowering_context import Call, CpuLoweringContext, Node

Emitter = Callable[[Node, CpuLoweringContext], list[Call]]

EMITTERS: Final[Mapping[str, Emitter]] = {
    **elementwise.EMITTERS,
    **experts.EMITTERS,
    **matmul.EMITTERS,
    **copy.EMITTERS,
    **norm.EMITTERS,
    **rope.EMITTERS,
    **rows.EMITTERS,
    **sorting.EMITTERS,
}
"""By op. A result without elements needs no call, so an emitter never sees one."""

_FIRST_OPERAND: Final = {
    "get_rows": (*FLOAT_DTYPES, I32),
    "set_rows": (F32, F16),
    "mul_mat": FLOAT_DTYPES,
    "mul_mat_id": FLOAT_DTYPES,
    "cpy": (*FLOAT_DTYPES, I32),
    "cont": (*FLOAT_DTYPES, I32),
    "concat": (F32, I32),
}


def supported_ops() -> frozenset[str]:
    """Return every op on every type of its first operand that a graph can have (TRU-1)."""
    return frozenset(
        op_key(op, dtype.name) for op in OPS for dtype in _FIRST_OPERAND.get(op, (F32,))
    )


__all__ = ["EMITTERS", "Emitter", "emit_group", "supported_fusions", "supported_ops"]
