"""One function per op, each ``kernel(node)``: it reads ``node.inputs`` and writes ``node.out``."""

from collections.abc import Callable, Mapping
from typing import Final

from ggsched.backend.program import BoundNode
from ggsched.ir.dtype import BF16, F16, F32, I32, DType
from ggsched.topology.caps import op_key
from ggsched_torch.blocks import BLOCKS
from ggsched_torch.kernels import copies, elements, matrices, rows
from ggsched_torch.operands import Node

Kernel = Callable[[Node], object]

KERNELS: Final[Mapping[str, Kernel]] = {
    **elements.KERNELS,
    **matrices.KERNELS,
    **copies.KERNELS,
    **rows.KERNELS,
}

_FLOATS: Final = (F32, F16, BF16, *BLOCKS)
_TYPES: Final[Mapping[str, tuple[DType, ...]]] = {
    "get_rows": (*_FLOATS, I32),
    "set_rows": (F32, F16, BF16),
    "mul_mat": _FLOATS,
    "mul_mat_id": _FLOATS,
    "cpy": (*_FLOATS, I32),
    "cont": (*_FLOATS, I32),
    "concat": (F32, I32),
}
"""Types of the first operand, where it is not f32 alone."""


def supported_ops() -> frozenset[str]:
    """Return the promise of the facts: every op, on every type that it can have (LCH-3)."""
    return frozenset(op_key(op, t.name) for op in KERNELS for t in _TYPES.get(op, (F32,)))


def make_step(bound: BoundNode) -> Callable[[], object]:
    """Return a call that runs a node. Views are made now, so it costs one call per node."""
    node, kernel = Node.bind(bound), KERNELS[bound.op]
    return (lambda: kernel(node)) if node.out.numel() else _nothing


def _nothing() -> None:
    """Compute a result of no elements."""
