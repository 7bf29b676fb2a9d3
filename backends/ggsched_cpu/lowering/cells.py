"""LSTM and GRU: the products of all steps with their inputs, then each step by a few tasks."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from ggsched.backend.arrays import Array
from ggsched_cpu.lowering import moves
from ggsched_cpu.lowering.context import CpuLoweringContext, Node
from ggsched_cpu.lowering.products import MAX_VECTORS, vectors_task
from ggsched_cpu.lowering.tasks import Task, row_task
from ggsched_cpu.native import Kernels

MAX_STEPS: Final = 256
"""Steps of all directions; each is about ten tasks."""

MAX_BATCH: Final = 128
"""Sequences; more of them are as well multiplied by numpy, step by step."""

_PLAIN: Final = {
    "nd.lstm": ("sigmoid", "tanh", "tanh"),
    "nd.gru": ("sigmoid", "tanh"),
}


class _Tasks:
    """Collects tasks on matrices whose rows are contiguous."""

    def __init__(self, ctx: CpuLoweringContext, kernels: Kernels) -> None:
        self.ctx, self.kernels = ctx, kernels
        self.found: list[Task] = []

    def product(self, w: Array, x: Array, out: Array) -> None:
        """Compute ``out = x @ w.T``, some rows at a time."""
        for first in range(0, len(x), MAX_VECTORS):
            some = slice(first, first + MAX_VECTORS)
            self.found.append(vectors_task(w, x[some], out[some], self.kernels))

    def apply(self, op: str, *operands: Array) -> None:
        """Compute the last operand from the others, element by element; it may be one of them."""
        out = operands[-1]
        wide = [np.broadcast_to(a, out.shape) for a in operands[:-1]]
        kernel = self.kernels.address(f"elementwise_{op}", "plain")
        threads = self.kernels.threads
        task = row_task(kernel, (*wide, out), out.shape[:-1], out.shape[-1], threads)
        assert task is not None  # few axes, and all is aligned
        self.found.append(task)

    def copy(self, source: Array, target: Array) -> None:
        """Copy a matrix, or a row to all rows."""
        task = moves.move(np.broadcast_to(source, target.shape), target, self.kernels)
        assert task is not None
        self.found.append(task)


def recurrent(node: Node, ctx: CpuLoweringContext, kernels: Kernels) -> list[Task] | None:
    """Return the tasks of an LSTM or a GRU with the usual activations.

    None for lengths, peepholes, limits, other activations, and more steps or sequences than are
    worth while.
    """
    op, (x, w, r, *rest) = node.bound.op, node.inputs
    given = iter(rest)
    own = {
        name: next(given)
        for name in ("bias", "lengths", "h0", "c0", "peepholes")
        if node.bound.params.get(name)
    }
    plain = ",".join(_PLAIN[op] * len(w))
    is_plain = node.param("activations") in ("", plain) and not node.number("clip")
    is_plain = is_plain and not node.bound.params.get("input_forget")
    if not is_plain or own.keys() & {"lengths", "peepholes"}:
        return None
    arrays = (*node.inputs, node.out)
    if not all(a.dtype == np.float32 and a.flags.c_contiguous and a.flags.aligned for a in arrays):
        return None
    (steps, batch, width), count = x.shape, len(w)
    if not 0 < steps * count <= MAX_STEPS or batch > MAX_BATCH or not r.size or not x.size:
        return None
    reset_after = bool(node.bound.params.get("reset_after"))
    tasks = _Tasks(ctx, kernels)
    for d in range(count):
        first = ctx.scratch((steps * batch, w.shape[1]))
        tasks.product(w[d], x.reshape(-1, width), first)
        mine = {name: array[d] for name, array in own.items()}
        if "bias" in mine:
            tasks.apply("add", first, mine["bias"][: w.shape[1]], first)
        backward = node.param("directions") == "reverse" or d == 1
        order = range(steps)[::-1] if backward else range(steps)
        inputs = [first.reshape(steps, batch, -1)[t] for t in order]
        results = [node.out[t, d] for t in order]
        ends = [node.out[t, d] for t in range(steps, len(node.out))]
        _STEPS[op](tasks, inputs, results, ends, r[d], mine, reset_after)
    return tasks.found


def _lstm(
    tasks: _Tasks,
    inputs: Sequence[Array],
    results: Sequence[Array],
    ends: Sequence[Array],
    r: Array,
    own: Mapping[str, Array],
    _: bool,
) -> None:
    h, cell, (last, now) = own.get("h0"), own.get("c0"), ends
    n = r.shape[1]
    made = tasks.ctx.scratch(inputs[0].shape)
    spare = tasks.ctx.scratch(now.shape)
    if "bias" in own:
        for gates in inputs:
            tasks.apply("add", gates, own["bias"][4 * n :], gates)
    for gates, out in zip(inputs, results, strict=True):
        if h is not None:
            tasks.product(r, h, made)
            tasks.apply("add", gates, made, gates)
        i, o, f, g = (gates[:, k * n : (k + 1) * n] for k in range(4))
        tasks.apply("sigmoid", gates[:, : 3 * n], gates[:, : 3 * n])
        tasks.apply("tanh", g, g)
        if cell is None:
            tasks.apply("mul", i, g, now)
        else:
            tasks.apply("mul", f, cell, now)
            tasks.apply("mul", i, g, spare)
            tasks.apply("add", now, spare, now)
        tasks.apply("tanh", now, spare)
        tasks.apply("mul", o, spare, out)
        h, cell = out, now
    tasks.copy(results[-1], last)


def _gru(
    tasks: _Tasks,
    inputs: Sequence[Array],
    results: Sequence[Array],
    ends: Sequence[Array],
    r: Array,
    own: Mapping[str, Array],
    reset_after: bool,
) -> None:
    h, n = own.get("h0"), r.shape[1]
    b = own["bias"][3 * n :] if "bias" in own else None
    made = tasks.ctx.scratch(inputs[0].shape)
    spare = tasks.ctx.scratch(results[0].shape)
    for gates, out in zip(inputs, results, strict=True):
        z, reset, new = (gates[:, k * n : (k + 1) * n] for k in range(3))
        both, own_new = gates[:, : 2 * n], made[:, 2 * n :]
        if h is not None:
            whole = made if reset_after else made[:, : 2 * n]
            tasks.product(r if reset_after else r[: 2 * n], h, whole)
            tasks.apply("add", both, made[:, : 2 * n], both)
        if b is not None:
            tasks.apply("add", both, b[: 2 * n], both)
        tasks.apply("sigmoid", both, both)
        if reset_after:
            if b is not None and h is None:
                tasks.copy(b[2 * n :], own_new)
            elif b is not None:
                tasks.apply("add", own_new, b[2 * n :], own_new)
            if b is not None or h is not None:
                tasks.apply("mul", reset, own_new, own_new)
                tasks.apply("add", new, own_new, new)
        else:
            if h is not None:
                tasks.apply("mul", reset, h, spare)
                tasks.product(r[2 * n :], spare, own_new)
                tasks.apply("add", new, own_new, new)
            if b is not None:
                tasks.apply("add", new, b[2 * n :], new)
        tasks.apply("tanh", new, new)
        if h is None:  # (1 - z) * new + z * h
            tasks.apply("mul", z, new, spare)
            tasks.apply("sub", new, spare, out)
        else:
            tasks.apply("sub", h, new, spare)
            tasks.apply("mul", z, spare, spare)
            tasks.apply("add", new, spare, out)
        h = out
    tasks.copy(results[-1], ends[0])


_STEPS: Final[Mapping[str, Callable[..., Any]]] = {"nd.lstm": _lstm, "nd.gru": _gru}

EMITTERS: Final = dict.fromkeys(_STEPS, recurrent)

__all__: Sequence[str] = ["EMITTERS"]
