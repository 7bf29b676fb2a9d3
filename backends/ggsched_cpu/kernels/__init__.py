"""Kernels: for each op a function that turns a node into calls of numpy."""

from collections.abc import Callable, Mapping
from typing import Final

from ggsched.backend.user_kernels import user_op_keys
from ggsched.ir.dtype import F32, FLOAT_DTYPES, I32
from ggsched.ir.ops import BUILT_IN, LIBRARY_KEYS
from ggsched.ir.shapes import KV_DTYPES
from ggsched.topology.caps import op_key
from ggsched_cpu.kernels import (
    attention,
    copy,
    elementwise,
    experts,
    matmul,
    norm,
    recurrent,
    rope,
    rows,
    sorting,
)
from ggsched_cpu.kernels.fused import emit_group, supported_fusions
from ggsched_cpu.kernels.user import emit_user
from ggsched_cpu.lowering_context import Call, CpuLoweringContext, Node

Emitter = Callable[[Node, CpuLoweringContext], list[Call]]

EMITTERS: Final[Mapping[str, Emitter]] = {
    **attention.EMITTERS,
    **elementwise.EMITTERS,
    **experts.EMITTERS,
    **matmul.EMITTERS,
    **copy.EMITTERS,
    **norm.EMITTERS,
    **recurrent.EMITTERS,
    **rope.EMITTERS,
    **rows.EMITTERS,
    **sorting.EMITTERS,
}
"""By op. A result without elements needs no call, so an emitter never sees one."""

_FIRST_OPERAND: Final = {
    "get_rows": (*FLOAT_DTYPES, I32),
    "set_rows": KV_DTYPES,
    "mul_mat": FLOAT_DTYPES,
    "mul_mat_id": FLOAT_DTYPES,
    "attention": KV_DTYPES,
    "cpy": (*FLOAT_DTYPES, I32),
    "cont": (*FLOAT_DTYPES, I32),
    "concat": (F32, I32),
}


def supported_ops() -> frozenset[str]:
    """Return every op on every type of its first operand that a graph can have (TRU-1)."""
    built_in = (op_key(op, t.name) for op in BUILT_IN for t in _FIRST_OPERAND.get(op, (F32,)))
    return frozenset(built_in) | user_op_keys("cpu") | LIBRARY_KEYS


def emitter_of(op: str) -> Emitter:
    """Return what turns nodes of an op into calls."""
    return EMITTERS.get(op, emit_user)


__all__ = [
    "EMITTERS",
    "Emitter",
    "emit_group",
    "emitter_of",
    "supported_fusions",
    "supported_ops",
]
