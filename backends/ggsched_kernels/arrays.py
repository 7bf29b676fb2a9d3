"""Ops of the library ``nd``: kernels made from expressions, for OpenCL and CUDA."""

import struct
from collections.abc import Callable, Sequence
from math import prod
from typing import Final

from ggsched.backend.program import BoundNode, Operand
from ggsched.errors import UsageError
from ggsched.ir.dtype import F32
from ggsched.ir.tensor import contiguous_strides
from ggsched.topology.caps import op_key
from ggsched_kernels.array_table import (
    BEST,
    BY_TYPE,
    BY_TYPE_PARAMS,
    ELEMENTS,
    EVERY,
    MOVES,
    NUMBERS,
    PUTS,
    REAL,
    REDUCTIONS,
    RUNNING,
    TAKES,
    WINDOWS,
    combined,
)
from ggsched_kernels.calls import CODE, FAULT, MAX_PARTS, SCRATCH, Arg, Constant, f32, i32, i64
from ggsched_kernels.lowering_context import LoweringContext

PREFIX: Final = "nd."
SOURCE_PREFIX: Final = "nd-"
"""Sources of the library are called by this, the kernel's file, the op, and its first type."""

AXES: Final = 8
SPATIAL: Final = 3
ACROSS: Final = 8
WARP: Final = 32
MAX_GROUPS: Final = (1 << 31) - 1  # CUDA's limit for the first axis of a grid
MANY_SUMS: Final = 4096  # lanes that keep a GPU busy with a sum each
LONG_SUM: Final = 128  # elements side by side that many lanes add up faster than one each
_OPERANDS: Final = 3
_NO_MORE: Final = ("f32", "f32", "f32")

Place = tuple[Arg, int, tuple[int, ...], tuple[int, ...]]
"""Memory, offset, extents and strides."""


def array_ops(*, has_f64: bool) -> frozenset[str]:
    """Return ``op:dtype`` of what has a kernel.

    Args:
        has_f64: Whether kernels can compute with f64, to which any type can be converted.
    """
    keys = {op_key(PREFIX + op, t) for op, e in ELEMENTS.items() for t in e.types}
    keys |= {op_key(PREFIX + op, t) for op, texts in BY_TYPE.items() for t in texts}
    keys |= {op_key(PREFIX + op, t) for op in REDUCTIONS for t in REAL}
    moves = (*MOVES, *TAKES, "gather", "pad")
    keys |= {op_key(PREFIX + op, t) for op in (*moves, *PUTS, "top_k", *BEST) for t in EVERY}
    keys |= {op_key(PREFIX + op, t) for op in RUNNING for t in NUMBERS}
    keys |= {op_key(PREFIX + op, t) for op in WINDOWS for t in REAL}
    keys |= {op_key(PREFIX + op, "f64") for op in moves}
    if has_f64:
        keys |= {op_key(PREFIX + op, "f64") for op in (*PUTS, *RUNNING, *BEST, "top_k")}
    else:
        keys -= {key for key in keys if key.startswith(("nd.cast:", "nd.pow:"))}
    return frozenset(keys)


def array_source(name: str) -> tuple[str, ...]:
    """Return definitions and the file of a source."""
    file, op, dtype = name.removeprefix(SOURCE_PREFIX).split("-")
    if file == "reduce":
        how = REDUCTIONS[op]
        return (
            f"#define FIRST {how.first}\n#define NEXT(a, b) {how.step}\n"
            f"#define MAPPED {how.mapped}\n#define LAST {how.last}\n",
            "array_reduce.cl",
        )
    if file == "index":
        text = "#define TAKES 1" if op in TAKES else f"#define NEXT {combined(op, dtype)}"
        return f"{text}\n", "array_index.cl"
    if file == "scan":
        if op in RUNNING:
            first, step = RUNNING[op]
            text = f"#define FIRST {first}\n#define NEXT {combined(step, dtype)}\n"
        else:
            text = f"#define IS_BETTER {BEST[op]}\n" if op in BEST else ""
        return text, "array_scan.cl"
    if file == "elements":
        text = BY_TYPE.get(op, {}).get(dtype) or ELEMENTS[op].text
        return f"#define EXPR {text}\n", "array_elements.cl"
    return "", f"array_{file}.cl"


def lower_array(ctx: LoweringContext) -> None:
    """Add the calls of a node of the library."""
    node = ctx.node
    op = node.op.removeprefix(PREFIX)
    if op in REDUCTIONS:
        _reduce(ctx, op)
    elif op == "gather":
        _gather(ctx)
    elif op in TAKES:
        _take(ctx, op)
    elif op in PUTS:
        _put(ctx, op)
    elif op in RUNNING or op in BEST or op == "top_k":
        _scan(ctx, op)
    elif op == "pad":
        _pad(ctx)
    elif op == "concat":
        _concat(ctx)
    elif op in WINDOWS:
        _windows(ctx, op)
    else:
        y = place(node.output)
        x = [broadcast(o, y[2]) for o in node.inputs]
        if op == "transpose":
            x = [_permuted(node.inputs[0], ctx.node.ints("perm"))]
        elif op == "slice":
            x = [_sliced(ctx, node.inputs[0], node.output.shape)]
        _elements(ctx, op, x, y, [o.dtype.name for o in node.inputs], node.output.dtype.name)


def place(operand: Operand) -> Place:
    """Return where an operand lies."""
    return operand.buffer, operand.offset, operand.shape, operand.strides


def broadcast(operand: Operand, shape: tuple[int, ...]) -> Place:
    """Return where an operand lies that is repeated to a shape."""
    missing = len(shape) - len(operand.shape)
    if missing < 0:  # one element with more axes, as limits of clip may be
        return operand.buffer, operand.offset, shape, (0,) * len(shape)
    own = zip(operand.shape, operand.strides, strict=True)
    strides = (*(0,) * missing, *(0 if n == 1 else s for n, s in own))
    return operand.buffer, operand.offset, shape, strides


def _permuted(x: Operand, perm: tuple[int, ...]) -> Place:
    return x.buffer, x.offset, tuple(x.shape[a] for a in perm), tuple(x.strides[a] for a in perm)


def _sliced(ctx: LoweringContext, x: Operand, shape: tuple[int, ...]) -> Place:
    starts, steps = ctx.node.ints("starts"), ctx.node.ints("steps")
    first = [range(n)[a] if n > a else 0 for n, a in zip(x.shape, starts, strict=True)]
    offset = x.offset + sum(a * s for a, s in zip(first, x.strides, strict=True))
    return x.buffer, offset, shape, tuple(k * s for k, s in zip(steps, x.strides, strict=True))


def _concat(ctx: LoweringContext) -> None:
    y = ctx.node.output
    axis = int(ctx.number("axis")) % len(y.shape)
    at = 0
    for x in ctx.node.inputs:
        if 0 not in x.shape:
            part = (y.buffer, y.offset + at * y.strides[axis], x.shape, y.strides)
            kinds = [x.dtype.name]
            _elements(ctx, "concat", [place(x)], part, kinds, y.dtype.name)
        at += x.shape[axis]


def _elements(
    ctx: LoweringContext, op: str, x: Sequence[Place], y: Place, kinds: Sequence[str], kind: str
) -> None:
    names = ELEMENTS[op].params if op in ELEMENTS else BY_TYPE_PARAMS.get(op, ())
    values = [float(ctx.number(name)) for name in names]
    places = [*x, *([x[0]] * (_OPERANDS - len(x))), y]
    struct_, rows, extent = packed(places, y[2], ctx)
    span = max(ctx.profile.span, -(-extent // MAX_PARTS))
    if op in MOVES or op == "where":  # f64 that is only moved needs no arithmetic
        kinds, kind = [_BITS.get(k, k) for k in kinds], _BITS.get(kind, kind)
    types = (*kinds, *_NO_MORE)[:_OPERANDS]
    ctx.call(
        f"{SOURCE_PREFIX}elements-{op}-{kinds[0]}",
        "elements",
        (
            *(p[0] for p in places),
            struct_,
            i32(span),
            *(f32(v) for v in (*values, 0.0, 0.0, 0.0)[:3]),
        ),
        (rows, max(1, -(-extent // span)), 1),
        A_T=types[0],
        B_T=types[1],
        C_T=types[2],
        Y_T=kind,
        OPERANDS=len(x),
    )


def packed(
    places: Sequence[Place], shape: tuple[int, ...], ctx: LoweringContext
) -> tuple[bytes, int, int]:
    """Return the struct ``Nd``, the number of rows, and their length; axes are merged."""
    axes: list[tuple[int, tuple[int, ...]]] = []
    for axis, n in enumerate(shape):
        if n == 1:
            continue
        steps = tuple(p[3][axis] for p in places)
        if axes and axes[-1][1] == tuple(s * n for s in steps):
            axes[-1] = (axes[-1][0] * n, steps)
        else:
            axes.append((n, steps))
    full = [(1, (0,) * len(places))] * (AXES - len(axes)) + axes
    extents = [n for n, _ in full]
    rows = prod(extents[:-1])
    if max(rows, *extents) >= 1 << 31:
        raise UsageError(f"{rows} rows of {extents[-1]} elements", where=ctx.node.label)
    fill = [0] * (_OPERANDS + 1 - len(places))
    offsets = [*(p[1] for p in places[:-1]), *fill, places[-1][1]]
    order = [*range(len(places) - 1), *[-1] * len(fill), len(places) - 1]
    strides = [0 if i < 0 else steps[i] for i in order for _, steps in full]
    return struct.pack("<4q32q8i", *offsets, *strides, *extents), rows, extents[-1]


def _reduce(ctx: LoweringContext, op: str) -> None:
    x, y = ctx.node.inputs[0], ctx.node.output
    axes = {a % len(x.shape) for a in ctx.node.ints("axes")} if x.shape else set()
    kept = [a for a in range(len(x.shape)) if a not in axes]
    wide = y.strides
    if ctx.node.params["keepdims"]:
        wide = tuple(y.strides[a] for a in kept)
    shape = tuple(x.shape[a] for a in kept)
    own = (x.buffer, x.offset, shape, tuple(x.strides[a] for a in kept))
    outer, rows, last = packed([own, (y.buffer, y.offset, shape, wide)], shape, ctx)
    gone = sorted(axes)
    away = tuple(x.shape[a] for a in gone)
    steps = tuple(x.strides[a] for a in gone)
    inner, inner_rows, _ = packed([(x.buffer, 0, away, steps)] * 2, away, ctx)
    count, lanes = rows * last, ctx.profile.lanes
    if max(count, prod(away)) >= 1 << 31:
        raise UsageError(f"{count} sums of {prod(away)} elements", where=ctx.node.label)
    # Lanes that share a sum read neighbours; lanes with a sum each do where the axes behind stay.
    reads_neighbours = bool(gone) and gone[-1] == len(x.shape) - 1
    is_long = reads_neighbours and prod(away) >= LONG_SUM
    together = lanes > 1 and prod(away) >= WARP and (is_long or count < MANY_SUMS)
    ctx.call(
        f"{SOURCE_PREFIX}reduce-{op}-{x.dtype.name}",
        "reduce",
        (
            *(x.buffer, y.buffer, outer, inner, i32(count)),
            *(i32(inner_rows if prod(away) else 0), f32(float(prod(away)))),
        ),
        (count if together else -(-count // lanes), 1, 1),
        A_T=x.dtype.name,
        B_T="f32",
        C_T="f32",
        Y_T=y.dtype.name,
        TOGETHER=int(together),
    )


_BITS: Final = {"f64": "u64"}
_MOVED: Final = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}


def plain_place(ctx: LoweringContext, operand: Operand) -> tuple[Arg, int]:
    """Return where an operand lies without gaps, in a copy if need be."""
    plain = contiguous_strides(operand.dtype, operand.shape)
    pairs = zip(operand.shape, operand.strides, plain, strict=True)
    if all(n == 1 or s == p for n, s, p in pairs):
        return operand.buffer, operand.offset
    offset = ctx.scratch(prod(operand.shape) * operand.dtype.block_nbytes)
    name = operand.dtype.name
    _elements(ctx, "copy", [place(operand)], (SCRATCH, offset, operand.shape, plain), [name], name)
    return SCRATCH, offset


def f32_place(ctx: LoweringContext, operand: Operand) -> tuple[Arg, int]:
    """Return where an operand lies without gaps in f32, in a copy if need be."""
    if operand.dtype == F32:
        return plain_place(ctx, operand)
    made = _f32_copy(ctx, operand)
    _elements(ctx, "cast", [place(operand)], made, [operand.dtype.name], "f32")
    return made[:2]


def f32_result(ctx: LoweringContext, y: Operand) -> tuple[Arg, int, Callable[[], None]]:
    """Return where to write a result in f32, and what then adds the call that converts it."""
    if y.dtype == F32:
        return y.buffer, y.offset, lambda: None
    made = _f32_copy(ctx, y)
    return *made[:2], lambda: _elements(ctx, "cast", [made], place(y), ["f32"], y.dtype.name)


def _f32_copy(ctx: LoweringContext, operand: Operand) -> Place:
    """Return scratch memory for the elements of an operand in f32."""
    offset = ctx.scratch(prod(operand.shape) * F32.block_nbytes)
    return SCRATCH, offset, operand.shape, contiguous_strides(F32, operand.shape)


def _gather(ctx: LoweringContext) -> None:
    x, ids = ctx.node.inputs
    y = ctx.node.output
    axis = int(ctx.number("axis")) % len(x.shape)
    if not prod(ids.shape):
        return
    data, chosen = plain_place(ctx, x), plain_place(ctx, ids)
    inner = prod(x.shape[axis + 1 :])
    span = max(ctx.profile.span, -(-inner // MAX_PARTS))
    rows = prod(x.shape[:axis]) * prod(ids.shape)
    ctx.call(
        f"{SOURCE_PREFIX}gather-gather-{x.dtype.name}",
        "gather",
        (
            *(data[0], i64(data[1]), chosen[0], i64(chosen[1]), y.buffer, i64(y.offset)),
            *(i32(prod(ids.shape)), i32(x.shape[axis]), i32(inner), i32(span), FAULT, CODE),
        ),
        (rows, max(1, -(-inner // span)), 1),
        A_T=_MOVED[x.dtype.block_nbytes],
        B_T=ids.dtype.name,
        C_T="f32",
        Y_T="f32",
    )


def _axis(ctx: LoweringContext) -> int:
    return int(ctx.number("axis")) % len(ctx.node.inputs[0].shape)


def _without(values: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*values[:axis], *values[axis + 1 :])


def _places(strides: Sequence[int], extents: Sequence[int], step: int) -> bytes:
    """Return the struct ``Places``."""
    fill = (0,) * (AXES - len(strides))
    return struct.pack("<9q10i", *strides, *fill, step, *extents, *fill, len(strides), 0)


def _take(ctx: LoweringContext, op: str) -> None:
    x, ids = ctx.node.inputs
    y = ctx.node.output
    if 0 in y.shape:
        return
    if op == "gather_elements":
        axis = _axis(ctx)
        own = (*x.strides[:axis], 0, *x.strides[axis + 1 :])
        chosen = ids.strides
        places = _places(x.strides[axis : axis + 1], x.shape[axis : axis + 1], 0)
    else:
        batch, count = int(ctx.number("batch_dims")), ids.shape[-1]
        free = len(ids.shape) - 1 - batch
        own = (*x.strides[:batch], *(0,) * free, *x.strides[batch + count :])
        chosen = (*ids.strides[:-1], *(0,) * (len(x.shape) - batch - count))
        taken = slice(batch, batch + count)
        places = _places(x.strides[taken], x.shape[taken], ids.strides[-1])
    memory = [(x.buffer, x.offset, y.shape, own), (ids.buffer, ids.offset, y.shape, chosen)]
    struct_, rows, extent = packed([*memory, place(y)], y.shape, ctx)
    span = max(ctx.profile.span, -(-extent // MAX_PARTS))
    ctx.call(
        f"{SOURCE_PREFIX}index-{op}-{x.dtype.name}",
        "take",
        (x.buffer, ids.buffer, y.buffer, struct_, places, i32(span), FAULT, CODE),
        (rows, max(1, -(-extent // span)), 1),
        A_T=_MOVED[x.dtype.block_nbytes],
        B_T=ids.dtype.name,
        C_T="f32",
        Y_T="f32",
    )


def _put(ctx: LoweringContext, op: str) -> None:
    x, ids, updates = ctx.node.inputs
    y, name = ctx.node.output, ctx.node.inputs[0].dtype.name
    if 0 in y.shape:
        return
    _elements(ctx, "copy", [place(x)], place(y), [name], name)
    if 0 in updates.shape:
        return
    size = x.dtype.block_nbytes
    if op == "scatter_elements":
        axis = _axis(ctx)
        count, steps = ids.shape[axis], (updates.strides[axis], ids.strides[axis])
        shape = _without(ids.shape, axis)
        memory: list[Place] = [
            (o.buffer, o.offset, shape, _without(o.strides, axis)) for o in (updates, ids, y)
        ]
        places = _places(y.strides[axis : axis + 1], y.shape[axis : axis + 1], 0)
    else:
        named = ids.shape[-1]
        shape, count = x.shape[named:], prod(ids.shape[:-1])
        plain = contiguous_strides(x.dtype, shape)
        steps = prod(shape) * size, named * ids.dtype.block_nbytes
        memory = [
            (*plain_place(ctx, updates), shape, plain),
            (*plain_place(ctx, ids), shape, (0,) * len(shape)),
            (y.buffer, y.offset, shape, y.strides[named:]),
        ]
        places = _places(y.strides[:named], y.shape[:named], ids.dtype.block_nbytes)
    struct_, rows, last = packed(memory, shape, ctx)
    ctx.call(
        f"{SOURCE_PREFIX}index-{ctx.node.params['reduction']}-{name}",
        "put",
        (
            *(p[0] for p in memory),
            *(struct_, places, i32(count), i64(steps[0]), i64(steps[1]), i64(size), FAULT, CODE),
        ),
        (rows * last, 1, 1),
        A_T=name,
        B_T=ids.dtype.name,
        C_T="f32",
        Y_T="f32",
    )


def _scan(ctx: LoweringContext, op: str) -> None:
    x, y = ctx.node.inputs[0], ctx.node.output
    axis, name = _axis(ctx), x.dtype.name
    if 0 in y.shape:
        return
    kept = _without(x.shape, axis)
    has_axis = len(y.shape) == len(x.shape)
    y_strides = _without(y.strides, axis) if has_axis else y.strides
    memory = [
        (x.buffer, x.offset, kept, _without(x.strides, axis)),
        (y.buffer, y.offset, kept, y_strides),
    ]
    struct_, rows, last = packed(memory, kept, ctx)
    n, lanes, items = x.shape[axis], ctx.profile.lanes, rows * last
    step = i64(x.strides[axis])
    types = {"A_T": name, "B_T": "f32", "C_T": "f32", "Y_T": "f32"}
    source = f"{SOURCE_PREFIX}scan-{op}-{name}"
    args: tuple[Arg, ...] = (x.buffer, y.buffer, struct_)
    if op == "top_k":
        span = max(lanes, -(-n // MAX_PARTS))
        flags = (i32(y.shape[axis]), i32(span), i32(int(bool(ctx.node.params["largest"]))))
        args = (*args, step, i64(y.strides[axis]), i32(n), *flags)
        ctx.call(source, op, args, (items, -(-n // span), 1), **types)
        return
    args = (*args, i32(items), step)
    groups = (-(-items // lanes), 1, 1)
    if op in BEST:
        args = (*args, i32(n), i32(int(bool(ctx.node.params["last"]))))
        ctx.call(source, "best", args, groups, **types)
        return
    ways = tuple(i32(int(bool(ctx.node.params[name]))) for name in ("exclusive", "reverse"))
    args = (*args, i64(y.strides[axis]), i32(n), *ways)
    ctx.call(source, "running", args, groups, **types)


_PAD_MODES: Final = ("constant", "reflect", "edge", "wrap")


def _pad(ctx: LoweringContext) -> None:
    node, x, y = ctx.node, ctx.node.inputs[0], ctx.node.output
    if 0 in y.shape:
        return
    n, count = len(x.shape), prod(y.shape)
    fill = AXES - n
    value: tuple[Arg, int] = (Constant(bytes(8)), 0)
    if node.params["value"]:
        value = node.inputs[1].buffer, node.inputs[1].offset
    span = max(ctx.profile.span, -(-count // MAX_GROUPS))
    plain, one = (0,) * fill, (1,) * fill
    struct_ = struct.pack(
        "<11q24i",
        *(x.offset, y.offset, value[1], *plain, *x.strides, *one, *x.shape),
        *(*plain, *node.ints("pads")[:n], *one, *y.shape),
    )
    ctx.call(
        f"{SOURCE_PREFIX}pad-pad-{x.dtype.name}",
        "pad",
        (
            *(x.buffer, value[0], y.buffer, struct_, i64(count), i32(span)),
            i32(_PAD_MODES.index(str(node.params["mode"]))),
        ),
        (-(-count // span), 1, 1),
        A_T=_MOVED[x.dtype.block_nbytes],
        B_T="f32",
        C_T="f32",
        Y_T="f32",
    )


Axes = list[tuple[int, ...]]
"""Of three axes that windows slide along: extents of x, of y and of the window, strides,
dilations, pads in front, and extents of x with the pads that count for a mean."""


def sliding_axes(node: BoundNode, kernel: Sequence[int]) -> Axes:
    """Return the axes that windows slide along; others of extent 1 stand in front.

    An axis of 1 slides nowhere. Rows of windows lie along the last axis that is left.
    """
    x, y = node.inputs[0].shape[2:], node.output.shape[2:]
    n, pads = len(x), node.ints("pads")
    strides, dilations = node.ints("strides"), node.ints("dilations")
    extra = (node.ints("extra") if "extra" in node.params else ()) or (0,) * n
    real = (x[i] + pads[n + i] - extra[i] for i in range(n))
    axes = zip(x, y, kernel, strides, dilations, pads[:n], real, strict=True)
    sliding = [axis for axis in axes if axis[:3] != (1, 1, 1) or axis[5]]
    return list(zip(*[(1, 1, 1, 1, 1, 0, 1)] * (SPATIAL - len(sliding)), *sliding, strict=True))


def _windows(ctx: LoweringContext, op: str) -> None:
    node, x, y = ctx.node, ctx.node.inputs[0], ctx.node.output
    places = [f32_place(ctx, o) for o in node.inputs]
    to, to_offset, convert = f32_result(ctx, y)
    conv, lanes = op == "conv", ctx.profile.lanes
    spatial = sliding_axes(node, node.inputs[1].shape[2:] if conv else node.ints("kernel"))
    per = node.inputs[1].shape[1] if conv else 1
    each = y.shape[1] // int(ctx.number("group")) if conv else 1
    weights, bias = (*places[1:], places[0], places[0])[:2]
    offsets = (places[0][1], weights[1], bias[1], to_offset)
    extents = [value for values in spatial for value in values]
    sizes = struct.pack("<4q25i4x", *offsets, x.shape[1], y.shape[1], per, each, *extents)
    *outer_axes, last = spatial[1]
    outer, across = prod(outer_axes), -(-last // (ACROSS * lanes))
    if lanes > 1:  # each makes one element, and rows of windows may be short
        outer, across = -(-prod(spatial[1]) // lanes), 1
    if outer > MAX_PARTS:
        raise UsageError(f"{outer} rows of windows", where=node.label)
    groups = (y.shape[0] * y.shape[1], outer, across)
    types = dict.fromkeys(("A_T", "B_T", "C_T", "Y_T"), "f32")
    source = f"{SOURCE_PREFIX}windows-{op}-f32"
    memory = [places[0][0], *([weights[0], bias[0]] if conv else []), to]
    if conv:
        flags = [i32(int(bool(node.params["bias"])))]
    else:
        counts = node.params.get("counts_pads", False)
        flags = [i32(int(op == "max_pool")), i32(int(bool(counts)))]
    ctx.call(source, "conv" if conv else "pool", (*memory, sizes, *flags), groups, **types)
    convert()


__all__ = [
    "PREFIX",
    "SOURCE_PREFIX",
    "array_ops",
    "array_source",
    "broadcast",
    "f32_place",
    "f32_result",
    "lower_array",
    "packed",
    "place",
    "plain_place",
    "sliding_axes",
]
