"""Tasks of ops that only move elements."""

from collections.abc import Callable, Mapping, Sequence
from math import ceil, prod
from typing import Final

import numpy as np

from ggsched.backend.arrays import Array
from ggsched_cpu.kernels.moves import REPEATS
from ggsched_cpu.kernels.vectors import AXES
from ggsched_cpu.lowering.context import CpuLoweringContext, Node
from ggsched_cpu.lowering.tasks import Task, parts_for, row_task
from ggsched_cpu.native import Kernels

Moves = Callable[[Node], list[tuple[Array, Array]]]


def _slice(node: Node) -> list[tuple[Array, Array]]:
    from ggsched.ops.nd.layout import take_slice  # loaded, since a node has an op of the library

    names = ("starts", "stops", "steps")
    return [(take_slice(node.inputs[0], *(node.param(n) for n in names)), node.out)]


def _concat(node: Node) -> list[tuple[Array, Array]]:
    axis = int(node.number("axis")) % node.out.ndim
    ends = np.cumsum([a.shape[axis] for a in node.inputs])
    parts = np.split(node.out, ends[:-1], axis)
    return list(zip(node.inputs, parts, strict=True))


def _transpose(node: Node) -> list[tuple[Array, Array]]:
    perm = node.param("perm")
    assert isinstance(perm, tuple)
    return [(node.inputs[0].transpose([int(axis) for axis in perm]), node.out)]


def _whole(node: Node) -> list[tuple[Array, Array]]:
    return [(np.broadcast_to(node.inputs[0], node.out.shape), node.out)]


def _tiled(node: Node) -> list[tuple[Array, Array]]:
    x, shape = node.inputs[0], node.out.shape
    axes = [(m // n, n) for m, n in zip(shape, x.shape, strict=True)]  # (copies, length)
    once = x.reshape([n for _, length in axes for n in (1, length)])
    target = node.out.reshape([n for pair in axes for n in pair])
    return [(np.broadcast_to(once, target.shape), target)]


MOVES: Final[Mapping[str, Moves]] = {
    "concat": _concat,
    "repeat": _tiled,
    "nd.slice": _slice,
    "nd.concat": _concat,
    "nd.transpose": _transpose,
    "nd.expand": _whole,
    "nd.copy": _whole,
}
"""By op: windows of operands, and where in the result they go."""


def moved(node: Node, ctx: CpuLoweringContext, kernels: Kernels) -> list[Task] | None:
    """Return a task for each window."""
    tasks = []
    for source, target in MOVES[node.bound.op](node):
        if not target.size:
            continue
        task = moved_apart(source, target, kernels)
        if task is None:
            return None
        tasks.append(task)
    return tasks or None


def moved_apart(source: Array, target: Array, kernels: Kernels) -> Task | None:
    """Return the task that copies elements; None where both share memory, or as ``move``."""
    if np.may_share_memory(source, target):
        return None  # of the same bytes in another order, numpy makes a copy first
    return move(source, target, kernels)


def move(source: Array, target: Array, kernels: Kernels) -> Task | None:
    """Return the task that copies elements to where no other element of the source lies.

    Returns:
        None if there are too many axes.
    """
    source, target = merged(source, target)
    if _is_repeated(source, target):
        return _repeat(source, target, kernels)
    if source.ndim > 1 and abs(source.strides[-2]) < abs(source.strides[-1]):
        source, target = _tiled_rows(source, target)
    wanted = parts_for(source.nbytes + target.nbytes, target.size, kernels.threads)
    source, target = _cut(wanted, source, target)
    if source.ndim > AXES + 1:
        return None
    kernel = kernels.address("moves", f"move{source.itemsize}")
    return row_task(kernel, (source, target), target.shape[:-1], target.shape[-1], kernels.threads)


def _is_repeated(source: Array, target: Array) -> bool:
    """Whether adjacent elements are to be written several times each, one after the other."""
    times, nbytes = source.shape[-1], 4 * source.shape[-1]
    return (
        2 <= source.ndim <= AXES + 2
        and times in REPEATS
        and source.itemsize == 4
        and (source.strides[-2:], target.strides[-2:]) == ((4, 0), (nbytes, 4))
        and source.flags.aligned
        and target.flags.aligned
    )


def _repeat(source: Array, target: Array, kernels: Kernels) -> Task | None:
    *outer, columns, times = source.shape
    steps, shape = (*target.strides[:-2], 4), (*outer, columns * times)
    whole = np.lib.stride_tricks.as_strided(target, shape, steps)
    kernel = kernels.address(f"repeat{times}", "repeat")
    return row_task(kernel, (source[..., 0], whole), tuple(outer), columns, kernels.threads)


def merged(*arrays: Array) -> tuple[Array, ...]:
    """Return views with as few axes as have the same elements in the same order, at least one."""
    shape: list[int] = []
    strides: list[list[int]] = [[] for _ in arrays]
    for axis, n in enumerate(arrays[0].shape):
        if n == 1:
            continue
        steps = [a.strides[axis] for a in arrays]
        if shape and all(own[-1] == n * step for own, step in zip(strides, steps, strict=True)):
            shape[-1] *= n
            for own, step in zip(strides, steps, strict=True):
                own[-1] = step
        else:
            shape.append(n)
            for own, step in zip(strides, steps, strict=True):
                own.append(step)
    if not shape:
        shape, strides = [1], [[a.itemsize] for a in arrays]
    pairs = zip(arrays, strides, strict=True)
    return tuple(np.lib.stride_tricks.as_strided(a, shape, own) for a, own in pairs)


def _cut(wanted: int, *arrays: Array) -> tuple[Array, ...]:
    """Return views with a row cut evenly, where there are fewer rows than parts are wanted."""
    *outer, columns = arrays[0].shape
    least = ceil(wanted / max(1, prod(outer)))
    if least == 1 or len(outer) == AXES:
        return arrays
    pieces = next((n for n in range(least, 2 * least + 1) if columns % n == 0), 1)
    length = columns // pieces
    shape = *outer, pieces, length
    steps = [(*a.strides[:-1], length * a.strides[-1], a.strides[-1]) for a in arrays]
    pairs = zip(arrays, steps, strict=True)
    return tuple(np.lib.stride_tricks.as_strided(a, shape, own) for a, own in pairs)


_TILE: Final = 32
"""Elements of a row of a transposed matrix that are copied before those of the next row, so that
lines of the source are still in a cache."""


def _tiled_rows(*arrays: Array) -> tuple[Array, ...]:
    """Return views whose last axis is cut and whose pieces come before the axis in front of it."""
    if arrays[0].shape[-1] % _TILE or arrays[0].ndim > AXES:
        return arrays
    return tuple(a.reshape(*a.shape[:-1], -1, _TILE).swapaxes(-3, -2) for a in arrays)


MAX_RUNS: Final = 8
"""Runs of a border, each of which is a task."""


def pad(node: Node, ctx: CpuLoweringContext, kernels: Kernels) -> list[Task] | None:
    """Return tasks: one for what lies inside, and some for the borders of each axis."""
    x, out, mode = node.inputs[0], node.out, node.param("mode")
    pads, n = node.param("pads"), x.ndim
    assert isinstance(pads, tuple)
    if not x.size or not out.size or not n or np.may_share_memory(x, out):
        return None
    x = x[tuple(slice(max(0, -pads[i]), x.shape[i] - max(0, -pads[n + i])) for i in range(n))]
    widths = [(max(0, pads[i]), max(0, pads[n + i])) for i in range(n)]
    inside = [slice(a, a + m) for m, (a, _) in zip(x.shape, widths, strict=True)]
    moves: list[tuple[Array, Array]] = []
    if mode == "constant":
        value = node.inputs[1].reshape(()) if node.param("value") else np.zeros((), x.dtype)
        moves.append((np.broadcast_to(value, out.shape), out))
        moves.append((x, out[tuple(inside)]))
    else:
        moves.append((x, out[tuple(inside)]))
        for axis in range(n):  # of what earlier axes have filled, so corners come last
            taken = np.pad(np.arange(x.shape[axis]), widths[axis], mode=mode)  # type: ignore[call-overload]
            for source, target in _runs(taken, widths[axis][0]):
                parts = [inside.copy(), inside.copy()]
                parts[0][axis], parts[1][axis] = source, target
                moves.append((np.broadcast_to(out[tuple(parts[0])], out[tuple(parts[1])].shape),
                              out[tuple(parts[1])]))  # fmt: skip
            inside[axis] = slice(None)
    if len(moves) > 1 + MAX_RUNS:
        return None
    tasks = [move(source, target, kernels) for source, target in moves if target.size]
    return None if None in tasks else [task for task in tasks if task is not None]


def _runs(taken: Array, before: int) -> list[tuple[slice, slice]]:
    """Return (source, target) of evenly spaced elements that are taken from inside an axis.

    Args:
        taken: The element inside from which each comes.
        before: Elements in front of the inside.
    """
    found: list[tuple[slice, slice]] = []
    inside, at = range(before, before + int(taken.max()) + 1), 0
    while at < len(taken):
        if at == before:
            at += len(inside)
            continue
        most = before if at < before else len(taken)
        end = at + 1
        step = int(taken[end] - taken[at]) if end < most else 0
        while end < most and taken[end] - taken[end - 1] == step:
            end += 1
        first, last = before + int(taken[at]), before + int(taken[end - 1])
        if step:
            stop = last + (1 if step > 0 else -1)
            source = slice(first, stop if stop >= 0 else None, step)
        else:
            source = slice(first, first + 1)
        found.append((source, slice(at, end)))
        at = end
    return found


EMITTERS: Final = {**dict.fromkeys(MOVES, moved), "nd.pad": pad}

__all__: Sequence[str] = ["EMITTERS", "move", "moved_apart"]
