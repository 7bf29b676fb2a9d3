"""A node of ordinary shapes of each built-in op, for devices that ask a library what it has."""

from typing import Any, Final

from ggsched.backend.program import BoundNode, Operand, full_params
from ggsched.ir.dtype import F32, I32, DType
from ggsched.ir.ops import OPS
from ggsched.ir.tensor import contiguous_strides, span_nbytes

_PAIR: Final = "8,512 8,512 > 8,512"
SAMPLES: Final = {
    "mul_mat": "64,512 8,512 > 8,64", "mul_mat_id": "4,64,512 8,2,512 i8,2 > 8,2,64",
    "add_id": "8,2,512 4,512 i8,2 > 8,2,512", "get_rows": "16,512 i8 > 8,512",
    "set_rows": "16,512 8,512 i8 >", "rope": "8,4,64 i8 > 8,4,64", "cpy": "8,512 8,512 >",
    "attention": "32,2,256 =32,2,256 8,4,256 > 8,4,256", "concat": "8,512 =8,512 > 16,512",
    "sum_rows": "8,512 > 8,1",
    **dict.fromkeys(("add", "sub", "mul", "div", "swiglu", "swiglu_oai"), _PAIR),
}  # fmt: skip
"""Shapes of operands and result; ``i`` for ids, ``=`` for the type of the first operand. Ops that
are not here take one operand. Rows have the length to which CUDA's backend pads packed ones: behind
shorter ones it reads."""
_PARAMS: Final[dict[str, dict[str, Any]]] = {"rope": {"n_dims": 64}, "repeat": {"shape": (8, 512)}}


def sample_node(op: str, dtype: DType) -> BoundNode:
    """Return a node without memory, with a first operand of a type."""
    given, _, result = SAMPLES.get(op, "8,512 > 8,512").partition(">")
    inputs = []
    for i, text in enumerate(given.split()):
        kind = I32 if text[0] == "i" else dtype if not i or text[0] == "=" else F32
        kind = I32 if op == "cpy" and dtype is I32 else kind
        inputs.append(_operand(text.strip("i="), kind))
    through = OPS[op].through
    if through is None:
        is_moved = dtype is I32 or (op == "cont" and not dtype.is_quantized)
        output = _operand(result, dtype if is_moved else F32)
    else:
        output = inputs[through]
    return BoundNode(0, op, tuple(inputs), output, full_params(op, _PARAMS.get(op, {})), op)


def _operand(text: str, dtype: DType) -> Operand:
    nobody: Any = None
    shape = tuple(map(int, text.split(",")))
    strides = contiguous_strides(dtype, shape)
    return Operand(nobody, 0, span_nbytes(dtype, shape, strides), dtype, shape, strides)
