"""Lowering of ops that treat each element, or each row, on its own."""

from typing import Final

from ggsched.backend.program import Operand
from ggsched.errors import UsageError
from ggsched.ir.dtype import F16, F32, I32, KV_DTYPES
from ggsched_kernels.calls import CODE, FAULT, Window, f32, i32, merged, window, window_of
from ggsched_kernels.lowering_context import LoweringContext, experts_of, weight_define

# Numbers of ops within a kernel, as in elementwise.cl, and the parameters that they take.
UNARY: Final = {
    "scale": (0, "scale", "bias"),
    "clamp": (1, "min", "max"),
    "silu": (2, "", ""),
    "gelu": (3, "", ""),
    "sigmoid": (4, "", ""),
    "tanh": (5, "", ""),
    "softplus": (6, "", ""),
}
BINARY: Final = {
    "add": (0, "", ""),
    "sub": (1, "", ""),
    "mul": (2, "", ""),
    "div": (3, "", ""),
    "swiglu": (4, "", ""),
    "swiglu_oai": (5, "alpha", "limit"),
}


def lower_unary(ctx: LoweringContext) -> None:
    """``scale``, ``clamp``, ``silu``, ``gelu``, ``sigmoid``, ``tanh``, ``softplus``."""
    node = ctx.node
    a, y = merged([window(node.inputs[0]), window(node.output)])
    groups, span = ctx.parts(y.rows, y.shape[-1])
    op = _op_args(ctx, UNARY[node.op])
    ctx.call("elementwise", "unary", (*a.args, *y.args, *op, span), groups)


def lower_binary(ctx: LoweringContext) -> None:
    """Arithmetic of two tensors, the second broadcast to the first, and gated activations."""
    node = ctx.node
    a, b = node.inputs
    windows = merged([window(a), window(b, a.shape), window(node.output)])
    groups, span = ctx.parts(windows[0].rows, windows[0].shape[-1])
    op = _op_args(ctx, BINARY[node.op])
    tensors = tuple(arg for w in windows for arg in w.args)
    ctx.call("elementwise", "binary", (*tensors, *op, span), groups)


def _op_args(ctx: LoweringContext, op: tuple[int, str, str]) -> tuple[bytes, bytes, bytes]:
    number, *names = op
    p0, p1 = (ctx.number(name) if name else 0.0 for name in names)
    return i32(number), f32(p0), f32(p1)


def lower_copy(ctx: LoweringContext) -> None:
    """``cpy`` and ``cont``: operand 0 into the result, converted."""
    x, y = ctx.node.inputs[0], ctx.node.output
    ctx.copy(window(x), window(y), x.dtype, _copy_kernel(ctx, x, y))


def _copy_kernel(ctx: LoweringContext, x: Operand, y: Operand) -> str:
    if x.dtype is y.dtype and x.dtype.block_nbytes == 2:
        return "copy_16bit"
    if y.dtype is F16:
        return "copy_f16"
    if y.dtype in (F32, I32):
        return "copy_f32"
    raise UsageError(f"no kernel writes {y.dtype}", where=ctx.node.label)


def lower_concat(ctx: LoweringContext) -> None:
    """Two copies into parts of the result."""
    a, b = ctx.node.inputs
    y = ctx.node.output
    axis = int(ctx.number("axis"))
    for x, start in ((a, 0), (b, a.shape[axis])):
        if 0 in x.shape:
            continue
        part = Operand(
            y.buffer, y.offset + start * y.strides[axis], y.nbytes, y.dtype, x.shape, y.strides
        )
        ctx.copy(window(x), window(part), x.dtype, "copy_f32")


def lower_repeat(ctx: LoweringContext) -> None:
    """Tiles."""
    x, y = window(ctx.node.inputs[0]), window(ctx.node.output)
    groups, span = ctx.parts(y.rows, y.shape[-1])
    ctx.call("copy", "repeat", (*x.args, *y.args, span), groups, **weight_define(F32))


def lower_get_rows(ctx: LoweringContext) -> None:
    """Gather; the ids get a last axis of extent 1, a plain table batch axes of stride 0."""
    table, ids = ctx.node.inputs
    y = window(ctx.node.output)
    chosen = _with_last_axis(ids)
    groups, span = ctx.parts(y.rows, y.shape[-1])
    args = (*window(table).args, *chosen.args, *y.args, span, FAULT, CODE)
    ctx.call("rows", "get_rows", args, groups, **weight_define(table.dtype))


def lower_set_rows(ctx: LoweringContext) -> None:
    """Scatter through operand 0."""
    dst, src, ids = ctx.node.inputs
    x = window(src)
    if not x.rows or not x.shape[-1]:
        return
    groups, span = ctx.parts(x.rows, x.shape[-1])
    kind = i32(KV_DTYPES.index(dst.dtype))
    args = (*window(dst).args, *x.args, *_with_last_axis(ids).args, kind, span, FAULT, CODE)
    ctx.call("rows", "set_rows", args, groups, **weight_define(F32))


def lower_add_id(ctx: LoweringContext) -> None:
    """A bias row chosen for each row."""
    x, bias, ids = ctx.node.inputs
    y = window(ctx.node.output)
    groups, span = ctx.parts(y.rows, y.shape[-1])
    tensors = (*window(x).args, *window(bias).args, *_with_last_axis(ids).args, *y.args)
    experts = [i32(n) for n in experts_of(ctx.node)[:2]]
    args = (*tensors, span, *experts, FAULT, CODE)
    ctx.call("rows", "add_id", args, groups, **weight_define(F32))


def _with_last_axis(ids: Operand) -> Window:
    plain = window(ids)
    _, a, b, c = plain.shape
    _, sa, sb, sc = plain.strides
    return window_of(ids, (a, b, c, 1), (sa, sb, sc, 0))
