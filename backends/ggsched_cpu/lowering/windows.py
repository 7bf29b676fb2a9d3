"""Convolutions: products of laid out windows, or, of few channels at a time, sums along rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil, inf, prod
from typing import Final, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ggsched.backend.arrays import Array
from ggsched.ir.dtype import F32
from ggsched_cpu.kernels.convolution import ACTIVATIONS, panel_width
from ggsched_cpu.kernels.elementwise import FORMULAS
from ggsched_cpu.kernels.windows import LINES, SLACK
from ggsched_cpu.lowering import moves
from ggsched_cpu.lowering.context import CpuLoweringContext, Node
from ggsched_cpu.lowering.products import vectors_task
from ggsched_cpu.lowering.tasks import PARTS_PER_THREAD, Task, address, bits, row_task
from ggsched_cpu.lowering.tiles import FLOPS_PER_BYTE, is_apart, tiles_task
from ggsched_cpu.native import Kernels

MAX_CHANNELS: Final = 4
"""Of a window that is summed along rows."""

MAX_ROWS: Final = 3
"""Rows of the weight for each group, where windows are summed along rows."""

MAX_BATCH: Final = 16

MAX_PLANES_NBYTES: Final = 256 << 10
"""Of a group with its pads, so that these are in a cache of the processor when windows are."""

MIN_ACROSS: Final = 32
"""Results of a line that are computed together with those of others."""

MAX_FEW: Final = 4
"""Windows of a convolution that are multiplied like vectors."""

MIN_ELEMENTS: Final = 32
"""Of such windows."""


@dataclass(frozen=True, slots=True)
class _Conv:
    """A convolution in two dimensions.

    Attributes:
        x: Operand (N, C, H, W).
        w: Weight (M, C / groups, kernel), contiguous.
        bias: M elements.
        out: Result, contiguous.
        strides: Of windows, down and across.
        dilations: Of their elements.
        pads: Above, left, below, right.
        groups: How many.
    """

    x: Array
    w: Array
    bias: Array
    out: Array
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    groups: int


def conv(
    node: Node, ctx: CpuLoweringContext, kernels: Kernels, activations: Sequence[Node] = ()
) -> list[Task] | None:
    """Return the tasks of a convolution, and of ops on its results in their place."""
    c = _bound(node)
    if c is None:
        return None
    each, per = len(c.w) // c.groups, c.w.shape[1]
    if per <= MAX_CHANNELS and each <= MAX_ROWS and c.strides[1] in (1, 2):
        return _by_rows(c, ctx, kernels, activations) if len(c.x) <= MAX_BATCH else None
    if is_few(node):
        return None if activations else _by_vectors(c, ctx, kernels)
    panel = panel_width(kernels.target, prod(c.w.shape[1:]))
    return _by_tiles(c, panel, ctx, kernels, activations) if panel else None


def is_few(node: Node) -> bool:
    """Whether a convolution has so few windows that they are vectors for the weight's rows."""
    w, out = node.inputs[1], node.out
    windows = prod(out.shape[2:])
    return (
        out.shape[0] == 1 == int(node.number("group"))
        and windows <= MAX_FEW
        and prod(w.shape[1:]) >= MIN_ELEMENTS
    )


def _by_vectors(c: _Conv, ctx: CpuLoweringContext, kernels: Kernels) -> list[Task] | None:
    """Return the tasks of few windows: a panel of them would be empty for the most part."""
    data, tasks = (c.x, []) if not any(c.pads) else _padded(c.x, c.pads, 0, ctx, kernels)
    m, (down, across), (per, height, width) = len(c.w), c.out.shape[2:], c.w.shape[1:]
    plane, line, item = data.strides[1:]
    shape = down, across, per, height, width
    steps = (c.strides[0] * line, c.strides[1] * item, plane, c.dilations[0] * line,
             c.dilations[1] * item)  # fmt: skip
    windows = as_strided(data[0], shape, steps)
    count, elements = down * across, per * height * width
    rows = _as_rows(windows, count, elements)
    if rows is None:
        rows = ctx.scratch((count, elements))
        longest = (0, 2, 3, 1) if per > width else (0, 1, 2, 3)  # what a row is copied along
        for line, target in zip(windows, rows.reshape(shape), strict=True):
            copied = moves.move(line.transpose(longest), target.transpose(longest), kernels)
            assert copied is not None  # three axes and a row
            tasks.append(copied)
    sums = c.out.reshape(1, m) if count == 1 else ctx.scratch((count, m))
    tasks.append(vectors_task(c.w.reshape(m, elements), rows, sums, kernels))
    add = kernels.address("elementwise_add", "plain")
    wide = np.broadcast_to(c.bias, sums.shape)
    added = row_task(add, (sums, wide, sums), sums.shape[:1], m, kernels.threads)
    turned = None if count == 1 else moves.move(sums.T, c.out.reshape(m, count), kernels)
    return [*tasks, *(task for task in (added, turned) if task is not None)]


def _as_rows(windows: Array, count: int, elements: int) -> Array | None:
    """Return windows as rows whose elements are adjacent, if they lie so."""
    used = [i for i, n in enumerate(windows.shape) if n > 1]
    outer, inner = [i for i in used if i < 2], [i for i in used if i >= 2]
    step = windows.itemsize
    for axis in reversed(inner):
        if windows.strides[axis] != step:
            return None
        step *= windows.shape[axis]
    if len(outer) > 1:
        return None
    stride = windows.strides[outer[0]] if outer else windows.itemsize * elements
    return as_strided(windows, (count, elements), (stride, windows.itemsize))


def activations_of(node: Node, following: Sequence[Node]) -> list[Node]:
    """Return the nodes behind a convolution that replace its results, element by element.

    Nothing but the next node can read what it overwrites, so they are as well written once.
    """
    found: list[Node] = []
    place = node.bound.output
    for other in following:
        bound = other.bound
        if bound.op not in ACTIVATIONS or bound.group or bound.output.dtype is not F32:
            break
        if not all(o.is_same_window(place) for o in (bound.inputs[0], bound.output)):
            break
        found.append(other)
    return found


def _bound(node: Node) -> _Conv | None:
    """Return a convolution in one or two dimensions that kernels take."""
    x, w, *rest = node.inputs
    out = node.out
    strides, dilations, pads = (node.bound.ints(n) for n in ("strides", "dilations", "pads"))
    n = x.ndim - 2
    plain = all(a.flags.c_contiguous and a.dtype == np.float32 for a in (w, out, *rest))
    if n not in (1, 2) or not plain or x.dtype != np.float32:
        return None
    if min(pads) < 0 or not out.size or not w.size:
        return None
    if not all(a.flags.aligned for a in (x, w, out, *rest)):
        return None
    if n == 1:
        x, w, out = x[:, :, None], w[:, :, None], out[:, :, None]
        strides, dilations = (1, *strides), (1, *dilations)
        pads = (0, pads[0], 0, pads[1])
    if x.shape[3] == w.shape[3] == out.shape[3] == 1:  # down is across
        x, w, out = (a.swapaxes(2, 3) for a in (x, w, out))
        strides, dilations = strides[::-1], dilations[::-1]
        pads = (pads[1], pads[0], pads[3], pads[2])
    bias = rest[0] if rest else np.zeros(len(w), np.float32)
    return _Conv(x, w, bias, out, strides, dilations, pads, int(node.number("group")))


def _by_tiles(
    c: _Conv,
    panel: int,
    ctx: CpuLoweringContext,
    kernels: Kernels,
    activations: Sequence[Node],
) -> list[Task]:
    is_ready = not any(c.pads) and (c.x.shape[3] == 1 or c.x.strides[3] == c.x.itemsize)
    data, tasks = (c.x, []) if is_ready else _padded(c.x, c.pads, 0, ctx, kernels)
    (high, wide), item = data.shape[2:], data.itemsize
    count, m, (down, across) = len(c.out), len(c.w) // c.groups, c.out.shape[2:]
    per, height, width = c.w.shape[1:]
    line = c.strides[0] * data.strides[2]
    is_dense = high == 1 or data.strides[2] == wide * item
    is_plain = prod(c.strides) == 1 == height * width
    if is_plain and is_dense:  # one line of windows, whatever the shape
        down, across = 1, down * across
    values = {
        "x": address(data),
        "w": address(c.w),
        "bias": address(c.bias),
        "out": address(c.out),
        "channels": per,
        "plane": data.strides[1],
        "height": height,
        "tap_row": c.dilations[0] * data.strides[2],
        "width": width,
        "tap": c.dilations[1] * item,
        "across": across,
        "line": line,
        "step": c.strides[1] * item,
        "windows": down * across,
        "rows": m,
        "w_row": c.w.strides[0],
        "out_row": c.out.strides[1],
        "groups": c.groups,
        "x_image": data.strides[0],
        "x_group": per * data.strides[1],
        "out_image": c.out.strides[0],
        "out_group": m * c.out.strides[1],
        "w_group": m * c.w.strides[0],
        "bias_group": m * item,
        "is_direct": int(is_plain and is_dense and is_apart(data.strides[1])),
        "panel": panel,
    }
    family, own = _family("conv", activations)
    keeps = data, c.w, c.bias, c.out
    return [*tasks, tiles_task(values, count, kernels, keeps, family, own)]


def _padded(
    x: Array,
    pads: tuple[int, ...],
    slack: int,
    ctx: CpuLoweringContext,
    kernels: Kernels,
    fill: float = 0.0,
) -> tuple[Array, list[Task]]:
    """Return x with its pads, ``slack`` elements behind it, and the task that makes it."""
    top, left, below, right = pads
    shape = (*x.shape[:2], x.shape[2] + top + below, x.shape[3] + left + right)
    data = ctx.scratch((prod(shape) + slack,))[: prod(shape)].reshape(shape)
    own = address(x), *x.strides, top, x.shape[2], left, x.shape[3], bits(fill)
    kernel = kernels.address("pad", "pad")
    task = row_task(kernel, (data,), shape[:3], shape[3], kernels.threads, own, keeps=(x,))
    assert task is not None  # three axes, and memory of its own
    return data, [task]


def _by_rows(
    c: _Conv, ctx: CpuLoweringContext, kernels: Kernels, activations: Sequence[Node]
) -> list[Task] | None:
    by_planes = _by_planes(c, kernels, activations)
    if by_planes is not None:
        return [by_planes]
    data, tasks = _padded(c.x, c.pads, SLACK, ctx, kernels)
    groups, per = c.groups, c.w.shape[1]
    each, (down, across) = len(c.w) // groups, c.out.shape[2:]
    family, numbers = _family("conv_rows", activations)
    kernel = kernels.address(family, f"stride{c.strides[1]}")
    plane, line = data.strides[1], data.strides[2]
    window = per, plane, c.w.shape[2], c.dilations[0] * line, c.w.shape[3], c.dilations[1] * 4
    work = max(LINES // 2, 2 * prod(c.w.shape[1:]) // (4 * FLOPS_PER_BYTE))
    spans = _spans(down, across, c.strides[0] * line, 4 * c.strides[1], kernels.threads)
    for (source, target), span in product(zip(data, c.out, strict=True), spans):
        rows = (groups, each, ceil(span.lines / LINES))
        seen = source[:, :, span.first * c.strides[1] :]
        made = target[:, :, span.first :]
        operands = (
            as_strided(seen, (*rows, 1), (per * plane, 0, LINES * span.step, 4)),
            c.w.reshape(groups, each, 1, -1),
            c.bias.reshape(groups, each, 1, 1),
            as_strided(
                made, (*rows, 1), (each * target.strides[0], target.strides[0],
                4 * LINES * span.across, 4),
            ),
        )  # fmt: skip
        task = row_task(
            kernel, operands, rows, span.across, kernels.threads,
            (*window, span.lines, span.step, *numbers), keeps=(data, c.bias, c.out), work=work,
        )  # fmt: skip
        if task is None:
            return None
        tasks.append(task)
    return tasks


class _Span(NamedTuple):
    """Results of each channel that are computed alike.

    Attributes:
        first: The first of them on its line.
        lines: How many lines they are taken as.
        across: Results of a line.
        step: Bytes between windows of neighbouring lines.
    """

    first: int
    lines: int
    across: int
    step: int


def _spans(down: int, across: int, step: int, tap: int, threads: int) -> list[_Span]:
    """Take one long line as several, since ``LINES`` are computed together; and what is left."""
    blocks = min(PARTS_PER_THREAD * threads, across // (LINES * MIN_ACROSS))
    if down > 1 or not blocks:
        return [_Span(0, down, across, step)]
    lines = LINES * blocks
    each, rest = divmod(across, lines)
    spans = [_Span(0, lines, each, each * tap)]
    return [*spans, _Span(lines * each, 1, rest, step)] if rest else spans


def _by_planes(c: _Conv, kernels: Kernels, activations: Sequence[Node]) -> Task | None:
    """Return the task that pads as it goes, where there are enough small groups for all threads."""
    (images, _, high, wide), item = c.x.shape, c.x.itemsize
    top, left, below, right = c.pads
    groups, each, (per, height, width) = c.groups, len(c.w) // c.groups, c.w.shape[1:]
    line = item * (left + wide + right)
    plane = line * (top + high + below)
    filled = per * plane + item * SLACK
    is_dense = wide == 1 or c.x.strides[3] == item
    if not is_dense or filled > MAX_PLANES_NBYTES or images * groups < 2 * kernels.threads:
        return None
    family, numbers = _family("conv_planes", activations)
    (down, across), step = c.out.shape[2:], c.strides[0] * line
    if down == 1 and across % LINES == 0:
        down, across = LINES, across // LINES
        step = across * c.strides[1] * item
    own = (
        per, plane, height, c.dilations[0] * line, width, c.dilations[1] * item, down, step,
        *c.x.strides[1:3], high, wide, line, top * line + left * item, filled,
        each, c.w.strides[0], c.out.strides[1], *numbers,
    )  # fmt: skip
    first = (
        c.x.reshape(images, groups, per, high, wide)[:, :, 0, 0, :1],
        c.w.reshape(groups, -1)[:, :1],
        c.bias.reshape(groups, each)[:, :1],
        c.out.reshape(images, groups, -1)[..., :1],
    )
    operands = [np.broadcast_to(a, (images, groups, 1)) for a in first]
    work = each * down * max(1, 2 * prod(c.w.shape[1:]) // (4 * FLOPS_PER_BYTE))
    kernel = kernels.address(family, f"stride{c.strides[1]}")
    keeps = c.x, c.w, c.bias, c.out
    return row_task(
        kernel, operands, (images, groups), across, kernels.threads, own, keeps=keeps, work=work
    )


def max_pool(node: Node, ctx: CpuLoweringContext, kernels: Kernels) -> list[Task] | None:
    """Return the tasks of a pool in one or two dimensions."""
    return _pool(node, ctx, kernels, "max_rows", -inf)


def average_pool(node: Node, ctx: CpuLoweringContext, kernels: Kernels) -> list[Task] | None:
    """Return the tasks of a pool in one or two dimensions whose windows all count the same."""
    counts_all = bool(node.param("counts_pads")) and not any(node.bound.ints("extra"))
    if any(node.bound.ints("pads")) and not counts_all:
        return None
    factor = bits(1.0 / prod(node.bound.ints("kernel")))
    return _pool(node, ctx, kernels, "average_rows", 0.0, (factor,))


def _pool(
    node: Node,
    ctx: CpuLoweringContext,
    kernels: Kernels,
    family: str,
    fill: float,
    numbers: Sequence[int] = (),
) -> list[Task] | None:
    x, out = node.inputs[0], node.out
    kernel, strides, dilations, pads = (
        node.bound.ints(n) for n in ("kernel", "strides", "dilations", "pads")
    )
    n = x.ndim - 2
    if n not in (1, 2) or x.dtype != np.float32 or not out.flags.c_contiguous or not x.size:
        return None
    if min(pads) < 0 or strides[-1] not in (1, 2) or not (x.flags.aligned and out.flags.aligned):
        return None
    if n == 1:
        x, out, kernel, strides = x[:, :, None], out[:, :, None], (1, *kernel), (1, *strides)
        dilations, pads = (1, *dilations), (0, pads[0], 0, pads[1])
    data, tasks = _padded(x, pads, SLACK, ctx, kernels, fill)
    (images, channels, down, across), line = out.shape, data.strides[2]
    step, rows = strides[0] * line, (images, channels, ceil(down / LINES))
    operands = (
        as_strided(data, (*rows, 1), (*data.strides[:2], LINES * step, 4)),
        as_strided(out, (*rows, 1), (*out.strides[:2], LINES * out.strides[2], 4)),
    )
    own = 1, 0, kernel[0], dilations[0] * line, kernel[1], dilations[1] * 4, down, step, *numbers
    task = row_task(
        kernels.address(family, f"stride{strides[1]}"), operands, rows, across, kernels.threads,
        own, keeps=(data, out), work=max(LINES, prod(kernel)),
    )  # fmt: skip
    return None if task is None else [*tasks, task]


MAX_PLANE: Final = 1 << 24
"""Elements of an image whose indices are f32."""


def grid_sample(node: Node, ctx: CpuLoweringContext, kernels: Kernels) -> list[Task] | None:
    """Return the task of linear samples of images in two dimensions."""
    (x, grid), out = node.inputs, node.out
    paddings = {"zeros": 0, "border": 1}
    if x.ndim != 4 or node.param("mode") != "linear" or node.param("padding") not in paddings:
        return None
    arrays = (x, grid, out)
    if not all(a.dtype == np.float32 and a.flags.c_contiguous for a in arrays):
        return None
    images, channels, down, across = out.shape
    if not x.size or prod(x.shape[2:]) > MAX_PLANE:
        return None
    own = [channels, x.strides[1], out.strides[1]]
    for size in x.shape[:1:-1]:
        extent, more = (size - 1, 0.0) if node.param("corners") else (size, -0.5)
        own += [bits(size - 1), bits(extent / 2), bits(more)]
    kernel = kernels.address("grid_sample", f"padded{paddings[str(node.param('padding'))]}")
    operands = (grid.reshape(images, down, -1), x[:, :1, 0], out[:, 0])
    task = row_task(
        kernel, operands, (images, down), across, kernels.threads, own, keeps=(x, out),
        work=4 * channels,
    )  # fmt: skip
    return None if task is None else [task]


def _family(name: str, activations: Sequence[Node]) -> tuple[str, list[int]]:
    """Return the family of kernels with these activations, and their parameters."""
    own = [bits(a.number(name)) for a in activations for name in FORMULAS[a.bound.op][1]]
    return "+".join([name, *(a.bound.op for a in activations)]), own


__all__: Sequence[str] = ["activations_of", "average_pool", "conv", "grid_sample", "max_pool"]
