"""User-defined ops: a kernel that calls the user's function with pointers and numbers.

The function gets pointers to first elements. A kernel argument names memory from its start, so a
kernel is made around the function that adds the offsets. A function in Python enqueues commands of
its own instead.
"""

import hashlib
import struct
from collections.abc import Iterable, Sequence
from math import prod
from typing import Any, Final, Literal

from ggsched.backend.program import Operand
from ggsched.backend.user_kernels import user_kernel
from ggsched.errors import UsageError
from ggsched.ir.ops import OPS
from ggsched.ir.tensor import contiguous_strides
from ggsched.ir.user_ops import SourceKernel
from ggsched_kernels.calls import SCRATCH, Arg, Launch, StreamCall, Window, i32, i64, window
from ggsched_kernels.lowering_context import LoweringContext

PREFIX: Final = "user-"
"""Sources of user-defined ops are called by this and the name of the op."""

KERNEL: Final = "ggsched_user_op"

_POINTER: Final = {"f32": "float", "i32": "int", "f16": "ushort_t", "bf16": "ushort_t"}
_COPY: Final = {"f32": "copy_f32", "i32": "copy_f32", "f16": "copy_f16"}
_WORDS: Final = {
    "opencl": ("__kernel void", "__global ", "long"),
    "cuda": ('extern "C" __global__ void', "", "long long"),
}


def lower_user(ctx: LoweringContext) -> None:
    """Add what computes a user-defined op; strided operands are copied before it."""
    node = ctx.node
    kernel = user_kernel(node.op, node.output.buffer.device.facts.backend)
    names = (*OPS[node.op].operands, "out")
    places = {name: _place(ctx, o) for name, o in zip(names[:-1], node.inputs, strict=True)}
    out = places["out"] = _result_place(ctx)
    if isinstance(kernel, SourceKernel):
        _call_source(ctx, kernel, names, places)
    else:
        _call_function(ctx, kernel, places.values())
    if out.buffer is SCRATCH:
        dtype = node.output.dtype
        ctx.copy(out, window(node.output), dtype, _COPY[dtype.name])


def _call_function(ctx: LoweringContext, function: Any, places: Iterable[Window]) -> None:
    """Add the call of a function that enqueues commands."""
    node = ctx.node
    kinds = tuple((o.dtype, o.shape) for o in (*node.inputs, node.output))
    memory = tuple((place.buffer, place.offset) for place in places)
    ctx.calls.append(StreamCall(function, memory, kinds, node.params, node.label))


def _call_source(
    ctx: LoweringContext, kernel: SourceKernel, names: Sequence[str], places: dict[str, Window]
) -> None:
    """Add the call of a function in OpenCL C or CUDA C++."""
    node = ctx.node
    operands = (*node.inputs, node.output)
    args: list[Arg] = []
    for text in kernel.args:
        args += _arg(ctx, text, places, dict(zip(names, operands, strict=True)))
    items = prod(node.output.shape)
    if kernel.items is not None:
        items = int(kernel.items(*[o.shape for o in node.inputs], node.output.shape))
    groups = max(1, -(-items // kernel.lanes))
    if groups >= 1 << 31:
        raise UsageError(f"{items} work items are too many", where=node.label)
    digest = hashlib.blake2b(kernel.source.encode(), digest_size=4).hexdigest()
    kinds = {f"TYPE_{n}": _pointer(o) for n, o in zip(names, operands, strict=True)}
    ctx.call(
        PREFIX + node.op,
        KERNEL,
        tuple(args),
        (groups, 1, 1),
        lanes=kernel.lanes,
        SOURCE=f"0x{digest}u",
        **kinds,
    )
    ctx.launched(Launch.IN_TURN)


def user_source(name: str, dialect: Literal["opencl", "cuda"]) -> str:
    """Return the user's source and the kernel that calls its function."""
    op = OPS[name.removeprefix(PREFIX)]
    kernel = user_kernel(op.name, dialect)
    assert isinstance(kernel, SourceKernel)  # functions in Python have no source
    head, space, long = _WORDS[dialect]
    declared: list[str] = []
    passed: list[str] = []
    for i, text in enumerate(kernel.args):
        if text == "out" or text in op.operands:
            declared += [f"{space}unsigned char *p{i}", f"{long} at{i}"]
            passed.append(f"({space}TYPE_{text} *)(p{i} + at{i})")
        else:
            kind = long if ":" in text else _scalar(op.defaults[text])
            declared.append(f"{kind} a{i}")
            passed.append(f"a{i}")
    words = "typedef unsigned short ushort_t;\ntypedef unsigned char uchar_t;\n"
    body = f"{kernel.name}({', '.join(passed)});"
    return f"{words}{kernel.source}\n{head} {KERNEL}({', '.join(declared)}) {{ {body} }}\n"


def _place(ctx: LoweringContext, operand: Operand) -> Window:
    """Return where an operand lies without gaps, in a copy if need be."""
    if _is_plain(operand):
        return window(operand)
    kernel = _COPY.get(operand.dtype.name)
    if kernel is None:
        raise UsageError(
            f"a user-defined op cannot take a strided operand of {operand.dtype}",
            where=ctx.node.label,
            hint="copy it with cont()",
        )
    target = _scratch(ctx, operand)
    ctx.copy(window(operand), target, operand.dtype, kernel)
    return target


def _result_place(ctx: LoweringContext) -> Window:
    out = ctx.node.output
    return window(out) if _is_plain(out) else _scratch(ctx, out)


def _is_plain(operand: Operand) -> bool:
    plain = contiguous_strides(operand.dtype, operand.shape)
    pairs = zip(operand.shape, operand.strides, plain, strict=True)
    return all(n == 1 or s == p for n, s, p in pairs)


def _scratch(ctx: LoweringContext, operand: Operand) -> Window:
    nbytes = prod(operand.shape) * operand.dtype.block_nbytes
    strides = contiguous_strides(operand.dtype, operand.shape)
    offset = ctx.scratch(nbytes)
    plain = window(Operand(operand.buffer, offset, nbytes, operand.dtype, operand.shape, strides))
    return Window(SCRATCH, plain.offset, plain.shape, plain.strides)


def _arg(
    ctx: LoweringContext, text: str, places: dict[str, Window], operands: dict[str, Operand]
) -> Sequence[Arg]:
    head, _, rest = text.partition(":")
    if head == "size" and rest:
        return [i64(prod(operands[rest].shape))]
    if head == "extent" and rest:
        name, _, axis = rest.partition(":")
        return [i64(operands[name].shape[int(axis)])]
    if text in places:
        return [places[text].buffer, i64(places[text].offset)]
    value = ctx.node.params[text]
    if isinstance(value, float):
        return [struct.pack("<f", value)]
    if not isinstance(value, int):
        raise UsageError(f"parameter {text!r} is not a number", where=ctx.node.label)
    return [i32(int(value))]


def _pointer(operand: Operand) -> str:
    return _POINTER.get(operand.dtype.name, "uchar_t")


def _scalar(default: object) -> str:
    return "float" if isinstance(default, float) else "int"


__all__ = ["KERNEL", "PREFIX", "lower_user", "user_source"]
