"""One step of drawing for each kind of view. Views add tensors, no nodes."""

from collections.abc import Callable, Mapping
from typing import Final

from ggsched.ir.ops import BUILT_IN_AXES
from ggsched.ir.tensor import Tensor
from ggsched_testing.generators.graph_gen import GraphGenerator, Ids


def _rows(d: GraphGenerator, t: Tensor) -> Tensor | None:
    if len(t.shape) < 2 and t.dtype.is_quantized:
        return None
    start = d.number(0, t.shape[0] - 1)
    return d.g.rows(t, start, d.number(start + 1, t.shape[0]))


def _reshape(d: GraphGenerator, t: Tensor) -> Tensor | None:
    if not t.is_contiguous:
        return None
    n = t.shape[-1]
    shapes: list[tuple[int, ...]] = [(t.size // n, n)]
    if len(t.shape) < BUILT_IN_AXES:
        shapes.append((1, *t.shape))
        shapes.append((*t.shape[:-1], 1, n))
        if n % 2 == 0 and n > 2 and not t.dtype.is_quantized:
            shapes.append((*t.shape[:-1], 2, n // 2))
    if not t.dtype.is_quantized:
        shapes.append((t.size,))
    return d.g.reshape(t, *d.pick(shapes))


def _permute(d: GraphGenerator, t: Tensor) -> Tensor | None:
    fixed = 1 if t.dtype.is_quantized else 0
    free = list(range(len(t.shape) - fixed))
    if len(free) < 2:
        return None
    order = [free.pop(-1 - d.number(0, len(free) - 1)) for _ in range(len(free))]
    return d.g.permute(t, *order, *([len(t.shape) - 1] * fixed))


def _every_other(d: GraphGenerator, t: Tensor) -> Tensor | None:
    """Every other index of the first axis."""
    if len(t.shape) < 2:
        return None
    skip = d.number(0, 1) if t.shape[0] > 1 else 0
    count = (t.shape[0] - skip + 1) // 2
    strides = (2 * t.strides[0], *t.strides[1:])
    return d.g.view(t, (count, *t.shape[1:]), strides, skip * t.strides[0])


def _columns(d: GraphGenerator, t: Tensor) -> Tensor | None:
    """A slice of the last axis, in whole blocks."""
    if len(t.shape) < 2:
        return None
    blocks = t.shape[-1] // t.dtype.block
    start = d.number(0, blocks - 1)
    stop = d.number(start + 1, blocks)
    shape = (*t.shape[:-1], (stop - start) * t.dtype.block)
    return d.g.view(t, shape, t.strides, start * t.strides[-1])


def _spread(d: GraphGenerator, t: Tensor) -> Tensor | None:
    """A new first axis with stride zero; such a window is only read."""
    if len(t.shape) >= BUILT_IN_AXES or t.size > 256:
        return None
    return d.g.view(t, (d.number(1, 3), *t.shape), (0, *t.strides))


VIEWS: Final[Mapping[str, Callable[[GraphGenerator, Tensor], Tensor | None]]] = {
    "rows": _rows,
    "reshape": _reshape,
    "permute": _permute,
    "every_other": _every_other,
    "columns": _columns,
    "spread": _spread,
}


def draw_view(d: GraphGenerator) -> None:
    """Add one view of a float tensor (or rows of ids) to the tensors to choose from."""
    if not d.floats:
        return
    if d.ids and d.number(0, 3) == 3:
        ids = d.pick(d.ids)
        view = d.pick((_rows, _reshape))(d, ids.tensor)
        if view is not None:
            d.ids.append(Ids(view, ids.bound, ids.distinct))
        return
    view = VIEWS[d.pick(tuple(VIEWS))](d, d.pick(d.floats))
    if view is not None:
        d.floats.append(view)
