"""What devices declare to compute, known without the kernels themselves.

The tests compare these tables with ``ggsched_cpu.lowering.EMITTERS``.
"""

from typing import Final

from ggsched.backend.user_kernels import user_op_keys
from ggsched.ir.dtype import F32
from ggsched.ir.ops import BUILT_IN, LIBRARY_KEYS, OPS, operand_dtypes
from ggsched.topology.caps import op_key

FUSIONS: Final = frozenset({"rms_norm+mul"})
"""Patterns of nodes that kernels compute as one (LCH-6)."""

BUILT_IN_WITH_KERNEL: Final = frozenset((
    "add", "add_id", "attention", "clamp", "concat", "cont", "cpy", "div", "gelu", "get_rows",
    "linear_attention", "mul", "mul_mat", "mul_mat_id", "norm", "repeat", "rms_norm", "rope",
    "scale", "set_rows", "short_conv", "sigmoid", "silu", "soft_max", "softplus", "sub", "sum_rows",
    "swiglu", "swiglu_oai", "tanh", "top_k",
))  # fmt: skip
"""Built-in ops for some types and layouts of operands; others run by their reference."""

LIBRARY_WITH_KERNEL: Final = (
    "nd.abs",
    "nd.add",
    "nd.atan",
    "nd.atanh",
    "nd.average_pool",
    "nd.cast",
    "nd.ceil",
    "nd.concat",
    "nd.conv",
    "nd.conv_transpose",
    "nd.copy",
    "nd.cum_prod",
    "nd.cum_sum",
    "nd.div",
    "nd.elu",
    "nd.equal",
    "nd.erf",
    "nd.exp",
    "nd.expand",
    "nd.expm1",
    "nd.floor",
    "nd.gather",
    "nd.gather_elements",
    "nd.gather_nd",
    "nd.gelu",
    "nd.gelu_tanh",
    "nd.greater",
    "nd.greater_equal",
    "nd.grid_sample",
    "nd.gru",
    "nd.hard_sigmoid",
    "nd.hard_swish",
    "nd.is_inf",
    "nd.is_nan",
    "nd.leaky_relu",
    "nd.less",
    "nd.less_equal",
    "nd.log",
    "nd.log1p",
    "nd.log_softmax",
    "nd.lstm",
    "nd.max",
    "nd.max_pool",
    "nd.min",
    "nd.mish",
    "nd.mod",
    "nd.mul",
    "nd.neg",
    "nd.pad",
    "nd.prelu",
    "nd.reciprocal",
    "nd.reduce_max",
    "nd.reduce_mean",
    "nd.reduce_min",
    "nd.reduce_prod",
    "nd.reduce_sum",
    "nd.relu",
    "nd.round",
    "nd.rsqrt",
    "nd.scatter_elements",
    "nd.scatter_nd",
    "nd.sigmoid",
    "nd.sign",
    "nd.silu",
    "nd.slice",
    "nd.softmax",
    "nd.softplus",
    "nd.softsign",
    "nd.sqrt",
    "nd.sub",
    "nd.tanh",
    "nd.threshold",
    "nd.top_k",
    "nd.transpose",
    "nd.where",
)
"""Ops of the library ``nd``, for some types and layouts of operands."""


def supported_ops(*, is_compiled: bool) -> frozenset[str]:
    """Return every op on every type of its first operand that a graph can have (TRU-1)."""
    built_in = (op_key(op, t.name) for op in BUILT_IN for t in operand_dtypes(OPS[op]))
    kinds = {"nd.where": "bool"}
    library = (op_key(op, kinds.get(op, F32.name)) for op in LIBRARY_WITH_KERNEL if is_compiled)
    return frozenset(built_in) | frozenset(library) | user_op_keys("cpu") | LIBRARY_KEYS


def reference_ops(*, is_compiled: bool) -> frozenset[str]:
    """Return the ops of which no node has a compiled kernel, see ``DeviceFacts``."""
    compiled = BUILT_IN_WITH_KERNEL if is_compiled else frozenset()
    return LIBRARY_KEYS | (frozenset(BUILT_IN) - compiled)
