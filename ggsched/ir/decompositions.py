"""Decompositions: how to compute an op by other ops, on devices that have no kernel for it.

A decomposition is ``f(g, *operands, **params)``: it adds nodes to the builder and returns the
result. ``DECOMPOSITIONS`` has those of built-in ops, ``register_op(decompose=...)`` takes that of a
user-defined op. ``ggsched.passes.decompose`` decides where they are used.
"""

from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ggsched.errors import GraphError
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import F32
from ggsched.ir.ops import OpDef, Params
from ggsched.ir.tensor import Role, Tensor

Decomposition = Callable[..., Tensor]

SCORES_NBYTES: Final = 32 << 20
"""Attention is decomposed by blocks of queries whose scores have no more bytes, if there are
several queries."""

_UNSEEN: Final = -1e30
"""Added to logits of rows that a token does not see: their shares are 0, and a row of nothing else
has no NaN, as it would have with -inf."""


def decomposition_of(op: OpDef) -> Decomposition | None:
    """Return the decomposition of an op, or None if it has none."""
    return DECOMPOSITIONS.get(op.name) if op.user is None else op.user.decompose


def apply_decomposition(
    g: GraphBuilder, op: OpDef, operands: Sequence[Tensor], params: Params
) -> Tensor:
    """Return the result of an op's decomposition; its type and shape are checked.

    Args:
        g: Gets the nodes.
        op: The op, which has a decomposition.
        operands: Of the builder.
        params: All of the op's, defaults included.

    Raises:
        GraphError: a decomposition that fails, or gives another type or shape, or adds an input, a
            weight or a state.
    """
    decomposition, first = decomposition_of(op), len(g.tensors)
    assert decomposition is not None
    try:
        found: Any = decomposition(g, *operands, **params)
    except GraphError:
        raise
    except Exception as error:
        what = f"decompose raised {type(error).__name__}: {error}"
        raise GraphError(what, where=op.name) from error
    wanted, shape = op.infer(operands, params)
    if not isinstance(found, Tensor) or (found.dtype, found.shape) != (wanted, shape):
        given = f"{found.dtype}{list(found.shape)}" if isinstance(found, Tensor) else repr(found)
        raise GraphError(
            f"decompose returned {given} instead of {wanted}{list(shape)}",
            where=op.name,
            hint="return the tensor that the builder's methods return",
        )
    for t in g.tensors[first:]:
        if not t.is_view and t.role is not Role.TEMP and t.name not in g.constants:
            raise GraphError(
                f"decompose adds an input, a weight or a state: {t.name!r}",
                where=op.name,
                hint="use the operands, and arrays as constants",
            )
    return found


def _attention(
    g: GraphBuilder, k: Tensor, v: Tensor, q: Tensor, *rest: Tensor, **params: Any
) -> Tensor:
    """Two products and a softmax, for a block of queries at a time."""
    operands = list(rest)
    mask, sinks, bounds = (
        operands.pop(0) if params[name] else None for name in ("mask", "sinks", "bounds")
    )
    rows, (tokens, heads, _) = k.shape[0], q.shape
    keys = g.permute(k, 1, 0, 2)
    values = g.permute(g.cont(v, F32) if v.dtype.is_quantized else v, 1, 2, 0)
    step = max(1, SCORES_NBYTES // (heads * rows * F32.block_nbytes))
    parts = []
    for start in range(0, tokens, step) or (0,):
        end = min(start + step, tokens)
        logits = g.mul_mat(keys, g.permute(g.rows(q, start, end), 1, 0, 2))
        scale, cap = params["scale"], params["soft_cap"]
        if cap > 0:
            logits = g.scale(g.tanh(g.scale(logits, scale / cap)), cap)
            scale = 1.0
        unseen = seen = None
        if mask is not None:
            unseen, seen = _of_mask(g, _queries(g, mask, start, end))
        if bounds is not None:
            within = _of_bounds(g, g.rows(bounds, start, end), rows)
            hidden = g.scale(within, -_UNSEEN, _UNSEEN)
            unseen = hidden if unseen is None else _joined(g, g.add, unseen, hidden)
            seen = within if seen is None else _joined(g, g.mul, seen, within)
        found = g.mul_mat(values, g.soft_max(logits, unseen, sinks, scale=scale))
        if seen is not None:  # what sees nothing is zero
            found = g.mul(found, g.clamp(g.sum_rows(seen), 0.0, 1.0))
        parts.append(g.cont(g.permute(found, 1, 0, 2)))
    return _end_to_end(g, parts)


def _end_to_end(g: GraphBuilder, parts: list[Tensor]) -> Tensor:
    """Join parts in pairs, so that each is copied a logarithm of times."""
    if len(parts) == 1:
        return parts[0]
    half = len(parts) // 2
    return g.concat(_end_to_end(g, parts[:half]), _end_to_end(g, parts[half:]))


def _queries(g: GraphBuilder, mask: Tensor, start: int, end: int) -> Tensor:
    """Return the rows of a mask (.., T or 1, N) for some queries."""
    if len(mask.shape) < 2 or mask.shape[-2] == 1:
        return mask
    shape = (*mask.shape[:-2], end - start, mask.shape[-1])
    return g.view(mask, shape, mask.strides, start * mask.strides[-2])


def _of_mask(g: GraphBuilder, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return a mask without -inf, and 1 where it had something else, 0 elsewhere."""
    return g.clamp(mask, _UNSEEN, -_UNSEEN), g.clamp(g.scale(mask, -1 / _UNSEEN, 1.0), 0.0, 1.0)


def _of_bounds(g: GraphBuilder, bounds: Tensor, rows: int) -> Tensor:
    """Return f32 (T, N): 1 where a token sees a row, 0 elsewhere.

    No op converts integers, so the bounds are read from a table of the numbers up to N. Those that
    are not within [0, N] are ids out of range, which ``get_rows`` refuses.
    """
    tokens = bounds.shape[0]
    numbers = g.constant(memoryview(array("f", range(rows + 1))).cast("B").cast("f", (rows + 1, 1)))
    ends = g.get_rows(numbers, bounds)  # (T, 2, 1)
    first, end = (g.view(ends, (tokens, 1), ends.strides[:2], i * ends.strides[1]) for i in (0, 1))
    row = g.repeat(g.view(numbers, (1, rows)), (tokens, rows))
    begun = g.clamp(g.scale(g.sub(row, first), 1.0, 1.0), 0.0, 1.0)
    going = g.clamp(g.scale(g.sub(row, end), -1.0), 0.0, 1.0)
    return g.mul(begun, going)


def _joined(g: GraphBuilder, op: Callable[..., Tensor], a: Tensor, b: Tensor) -> Tensor:
    """Apply an op whose second operand is broadcast to the first, in either direction."""
    shape = (1,) * (len(b.shape) - len(a.shape)) + a.shape
    wide = (*shape[:-2], max(shape[-2], b.shape[-2]), shape[-1])
    if a.shape != wide:
        a = g.repeat(g.reshape(a, *shape), wide)
    return op(a, b)


def _swiglu_oai(g: GraphBuilder, gate: Tensor, up: Tensor, *, alpha: float, limit: float) -> Tensor:
    gate, up = g.clamp(gate, -_LARGE, limit), g.clamp(up, -limit, limit)
    return g.mul(g.mul(gate, g.sigmoid(g.scale(gate, alpha))), g.scale(up, 1.0, 1.0))


_LARGE: Final = 3.4028234663852886e38

DECOMPOSITIONS: Final[Mapping[str, Decomposition]] = {
    "attention": _attention,
    "swiglu": lambda g, gate, up: g.mul(g.silu(gate), up),
    "swiglu_oai": _swiglu_oai,
    "silu": lambda g, x: g.mul(x, g.sigmoid(x)),
    "sub": lambda g, a, b: g.add(a, g.scale(b, -1.0)),
    "add_id": lambda g, x, bias, ids: g.add(x, g.get_rows(bias, ids)),
    "sigmoid": lambda g, x: g.scale(g.tanh(g.scale(x, 0.5)), 0.5, 0.5),
}
"""Of built-in ops, by name."""

__all__ = [
    "DECOMPOSITIONS",
    "SCORES_NBYTES",
    "Decomposition",
    "apply_decomposition",
    "decomposition_of",
]
