"""Converters of operators that take graphs: modes, branches, loops, attention with functions."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from ggsched.errors import ModelError
from ggsched_import.common.emit import Const, Emitter, Value
from ggsched_import.torch.call import Call, is_complex, plain
from ggsched_import.torch.ops_layout import select
from ggsched_import.torch.ops_products import attended, with_heads

Run = Callable[[Any, Iterable[Any]], list[Any]]
"""Converts a graph for values of its placeholders, and returns its outputs."""

MODES: Final = ("wrap_with_set_grad_enabled", "wrap_with_autocast", "inference_mode")
"""Their graph is always run."""

IGNORED: Final = (
    "_assert_tensor_metadata", "_assert_scalar", "_assert_async", "sym_constrain_range",
    "sym_constrain_range_for_size", "_functional_assert_async", "_functional_assert_scalar",
    "_functional_sym_constrain_range", "_functional_sym_constrain_range_for_size",
    "_linalg_check_errors",
)  # fmt: skip
"""Ops that check what the shapes already say, or raise for a number, which a plan cannot."""

MAX_STEPS: Final = 10_000
"""Of a loop, whose steps become nodes."""


def _mode(emit: Emitter, run: Run, args: Sequence[Any], where: str) -> Any:
    at = next(i for i, a in enumerate(args) if hasattr(a, "graph"))
    return run(args[at], args[at + 1 :])


def _autocast(emit: Emitter, run: Run, args: Sequence[Any], where: str) -> Any:
    raise ModelError(
        "autocast is not supported", where=where, hint="convert the model: model.half()"
    )


def _cond(emit: Emitter, run: Run, args: Sequence[Any], where: str) -> Any:
    condition, then, other, operands = args
    return emit.choose(
        Const(np.array(condition)) if isinstance(condition, bool) else condition,
        lambda: _real(run(then, operands), where),
        lambda: _real(run(other, operands), where),
        where,
    )


def _real(values: Any, where: str) -> Any:
    """Refuse results that are complex, which are two values each."""
    if is_complex(values):
        raise ModelError(
            "complex results of branches and scans are not supported",
            where=where,
            hint="return torch.view_as_real of them",
        )
    return values


def _while_loop(emit: Emitter, run: Run, args: Sequence[Any], where: str) -> Any:
    """Unroll a loop whose condition depends on constants only."""
    condition, body, carried, more = args
    for _ in range(MAX_STEPS):
        (goes_on,) = run(condition, (*carried, *more))
        if isinstance(goes_on, Const):
            goes_on = bool(goes_on.array)
        if not isinstance(goes_on, bool):
            raise ModelError(
                "a loop whose number of steps depends on data is not supported",
                where=where,
                why="a plan has a fixed number of commands",
                hint="count the steps by a number that the inputs do not change",
            )
        if not goes_on:
            return list(carried)
        carried = run(body, (*carried, *more))
    raise ModelError(f"a loop has more than {MAX_STEPS} steps", where=where)


def _scan(emit: Emitter, run: Run, args: Sequence[Any], where: str) -> Any:
    """Unroll a scan over the first axis."""
    combine, initial, scanned, more = args
    _real((*initial, *scanned), where)
    c, steps = Call("scan", where, emit), scanned[0].shape[0]
    if not 0 < steps <= MAX_STEPS:
        raise ModelError(f"a scan of {steps} steps, not 1 to {MAX_STEPS}", where=where)
    carried, made = list(initial), []
    for i in range(steps):
        rows = (select(c, x, 0, i) for x in scanned)
        found = _real(run(combine, (*carried, *rows, *more)), where)
        carried = found[: len(carried)]
        made.append([c.reshape(y, (1, *y.shape)) for y in found[len(carried) :]])
    return [*carried, *(c.concat(ys, 0) for ys in zip(*made, strict=True))]


def _flex_attention(emit: Emitter, run: Run, args: Sequence[Any], where: str) -> Any:
    """Attend by scores that a graph changes and another one hides, on all places at once."""
    query, key, value, score, block_mask, scale, options, of_score, of_mask = args
    if options.get("OUTPUT_LOGSUMEXP") or options.get("OUTPUT_MAX"):
        raise ModelError("sums and maxima of scores are not supported", where=where)
    c = Call("flex_attention", where, emit)
    key, value = (with_heads(c, v, query.shape[-3]) for v in (key, value))
    extents = (*query.shape[:3], key.shape[-2])
    places = [
        Const(np.arange(n).reshape([-1 if k == i else 1 for k in range(4)]))
        for i, n in enumerate(extents)
    ]

    def changed(scores: Value) -> Value:
        (made,) = run(score, (scores, *places, *of_score))
        (seen,) = run(block_mask[-1], (*places, *of_mask))
        return c.nd("where", seen, made, c.const(-math.inf, scores.dtype.name))

    return [attended(c, query, key, value, scale, changed), None, None]


def _effects(emit: Emitter, run: Run, args: Sequence[Any], where: str) -> Any:
    """Leave out a check that is kept in order by a token."""
    token, op, *_ = args
    if plain(str(op)).partition(".")[0] not in IGNORED:
        raise ModelError(f"the op {str(op)!r} is not supported", where=where)
    return [token, None]


HIGHER: Final[Mapping[str, Callable[..., Any]]] = {
    **dict.fromkeys(MODES, _mode),
    "wrap_with_autocast": _autocast,
    "cond": _cond,
    "while_loop": _while_loop,
    "scan": _scan,
    "flex_attention": _flex_attention,
    "with_effects": _effects,
}
"""By the name of the operator."""

__all__ = ["HIGHER", "IGNORED", "MODES"]
