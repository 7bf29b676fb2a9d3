"""For each op a function that turns a node into tasks, or None where there is no kernel for it."""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from math import prod
from typing import Final

import numpy as np

from ggsched.backend.arrays import Array
from ggsched.ir.dtype import BF16, F16, F32, I32
from ggsched.ir.rope import rope_table
from ggsched.ops.record import SELECTED
from ggsched_cpu.kernels.casts import is_converted
from ggsched_cpu.kernels.elements import is_compiled
from ggsched_cpu.kernels.elementwise import FORMULAS, bool_operands
from ggsched_cpu.kernels.reductions import ORDERS
from ggsched_cpu.lowering import cells, indexed, moves
from ggsched_cpu.lowering.attention import attention
from ggsched_cpu.lowering.context import CpuLoweringContext, Node, experts_of
from ggsched_cpu.lowering.products import is_dense, mul_mat_id
from ggsched_cpu.lowering.recurrent import linear_attention, short_conv
from ggsched_cpu.lowering.spread import conv_transpose
from ggsched_cpu.lowering.tasks import Task, address, bits, double_bits, flat_task, row_task
from ggsched_cpu.lowering.tiles import mul_mat
from ggsched_cpu.lowering.windows import activations_of, average_pool, conv, grid_sample, max_pool
from ggsched_cpu.native import Kernels
from ggsched_cpu.supported import FUSIONS

Emitter = Callable[[Node, CpuLoweringContext, Kernels], Sequence[Task] | None]

MAX_TABLE_AXES: Final = 3
"""Of tables of rows: one axis may number tables."""


def _one(task: Task | None) -> list[Task] | None:
    return None if task is None else [task]


def _elementwise(node: Node, ctx: CpuLoweringContext, kernels: Kernels) -> list[Task] | None:
    op, out = node.bound.op, node.out
    count, names, _ = FORMULAS[op]
    own = [bits(node.number(name)) for name in names]
    inputs = node.inputs[:count]
    family = _ELEMENTWISE.get(inputs[-1].dtype.str[1:])
    kinds = [np.dtype(bool if is_bool else inputs[-1].dtype) for is_bool in bool_operands(op)]
    differ = any(a.dtype != t for a, t in zip((*inputs, out), kinds, strict=True))
    if out.ndim == 0 or family is None or differ:
        return None
    kernel = kernels.address(f"{family}_{op}", "plain")
    if all(a.shape == out.shape and a.flags.c_contiguous for a in (*inputs, out)):
        return _one(flat_task(kernel, (*inputs, out), out.size, kernels.threads, own))
    *wide, out = moves.merged(*(np.broadcast_to(a, out.shape) for a in inputs), out)
    if not is_dense(out) or not all(is_dense(a) or a.strides[-1] == 0 for a in wide):
        return None
    return _row(kernel, (*wide, out), out, kernels, own)


_ELEMENTWISE: Final = {"f4": "elementwise", "f2": "halves"}
"""Families of kernels by type of the numbers."""


def _row(
    kernel: int, operands: Sequence[Array], like: Array, kernels: Kernels, own: Sequence[int] = ()
) -> list[Task] | None:
    """Return the task for rows along the last axis of an array."""
    shape, columns = like.shape[:-1], like.shape[-1]
    return _one(row_task(kernel, operands, shape, columns, kernels.threads, own))


def _norm(node: Node, ctx: CpuLoweringContext, kernels: Kernels) -> list[Task] | None:
    x, out = node.inputs[0], node.out
    if not (is_dense(x) and is_dense(out)):
        return None
    kernel = kernels.address(node.bound.op, node.bound.op)
    return _row(kernel, (x, out), x, kernels, [bits(node.number("eps"))])


def _soft_max(node: Node, ctx: CpuLoweringContext, kernels: Kernels) -> list[Task] | None:
    x, out = node.inputs[0], node.out
    masked, sinks = bool(node.param("mask")), bool(node.param("sinks"))
    rest = list(node.inputs[1:])
    operands = [x]
    if masked:
        operands.append(np.broadcast_to(rest.pop(0), x.shape))
    if not all(is_dense(a) for a in (*operands, out)):
        return None
    if sinks:
        operands.append(np.broadcast_to(rest.pop(0)[:, None], x.shape[:-1]))
    kernel = kernels.address(f"soft_max{int(masked)}", f"sinks{int(sinks)}")
    return _row(kernel, (*operands, out), x, kernels, [bits(node.number("scale"))])


def _log_soft_max(node: Node, ctx: CpuLoweringContext, kernels: Kernels) -> list[Task] | None:
    x, out = node.inputs[0], node.out
    plain = all(a.dtype == np.float32 and is_dense(a) for a in (x, out))
    if int(node.number("axis")) % x.ndim != x.ndim - 1 or not plain:
        return None
    kernel = kernels.address("log_soft_max", "log_soft_max")
    return _row(kernel, (x, out), x, kernels, [_libm("logf")])


def _soft_max_across(node: Node, ctx: CpuLoweringContext, kernels: Kernels) -> list[Task] | None:
    """Return the task of a softmax over an axis before the last."""
    x, out = node.inputs[0], node.out
    axis = int(node.number("axis")) % x.ndim
    plain = all(a.dtype == np.float32 and is_dense(a) for a in (x, out))
    if axis == x.ndim - 1 or not plain or np.may_share_memory(x, out):
        return None
    first, made = np.moveaxis(x, axis, 0)[0], np.moveaxis(out, axis, 0)[0]
    own = x.shape[axis], x.strides[axis], out.strides[axis]
    kernel = kernels.address("soft_max_across", "soft_max_across")
    task = row_task(
        kernel, (first, made), first.shape[:-1], first.shape[-1], kernels.threads, own,
        keeps=(x, out), work=4 * x.shape[axis],
    )  # fmt: skip
    return _one(task)


def _sum_rows(node: Node, ctx: CpuLoweringContext, kernels: Kernels) -> list[Task] | None:
    x = node.inputs[0]
    name = "sum_rows" if is_dense(x) else "sum_rows_strided"
    return _row(kernels.address(name, name), (x, node.out[..., 0]), x, kernels)


_OF_ROWS: Final = {
    "nd.reduce_mean": "mean_rows",
    "nd.reduce_sum": "sum_rows",
    "nd.reduce_max": "max_of_rows",
    "nd.reduce_min": "min_of_rows",
    "nd.reduce_prod": "product_of_rows",
}
"""Kernels of reductions over the last axes."""


def _reduce(node: Node, ctx: CpuLoweringContext, kernels: Kernels) -> list[Task] | None:
    x, axes = node.inputs[0], node.param("axes")
    assert isinstance(axes, tuple)
    kept = x.ndim - len(axes)
    if {int(a) % x.ndim for a in axes} != set(range(kept, x.ndim)) or not axes:
        return None
    plain = all(a.flags.c_contiguous and a.flags.aligned for a in (x, node.out))
    if x.dtype != np.float32 or not plain or not x.size:
        return None
    name = _OF_ROWS[node.bound.op]
    rows = x.reshape(node.out.size, -1)
    return _row(kernels.address(name, name), (rows, node.out.reshape(-1)), rows, kernels)


def _scan(node: Node, ctx: CpuLoweringContext, kernels: Kernels) -> list[Task] | None:
    """Return the task of totals along the last axis that is longer than one."""
    x, out, axis = node.inputs[0], node.out, int(node.number("axis")) % node.out.ndim
    element = indexed.ADDED.get(x.dtype.str[1:])
    plain = all(a.flags.c_contiguous and a.size for a in (x, out))
    if not plain or prod(x.shape[axis + 1 :]) > 1 or node.param("exclusive") or element is None:
        return None
    order = slice(None, None, -1 if node.param("reverse") else 1)
    x, out = (a.reshape(-1, a.shape[axis])[:, order] for a in (x, out))
    how = "add" if node.bound.op == "nd.cum_sum" else "mul"
    return _row(kernels.address("scan", f"{how}_{element}"), (x, out), x, kernels)


def _top_k(node: Node, ctx: CpuLoweringContext, kernels: Kernels) -> list[Task] | None:
    (x,), k, op = node.inputs, int(node.number("k")), node.bound.op
    is_last = op == "top_k" or int(node.number("axis")) % x.ndim == x.ndim - 1
    if not (is_last and is_dense(x) and node.out.strides[-1] == node.out.itemsize):
        return None
    if k > SELECTED or x.dtype != np.float32:
        return None
    of_library = "largest" if node.bound.params.get("largest", True) else "smallest"
    order = ORDERS["largest, NaN last" if op == "top_k" else of_library]
    kernel = kernels.address(op, op)
    return _row(kernel, (x, node.out), x, kernels, [k, *order])


def _copy(node: Node, ctx: CpuLoweringContext, kernels: Kernels) -> list[Task] | None:
    source, dtype, to = node.inputs[0], node.dtype(0), node.bound.output.dtype
    out = node.out
    family = f"convert_{dtype}"
    if dtype is BF16 and to is BF16:
        family = "bits"
    elif to is I32 or to in (F32, F16):
        if not (dtype is I32 or is_compiled(dtype)):
            return None
    else:
        return None
    if out.ndim == 0 or not (is_dense(source) and is_dense(out)):
        return None
    return _row(kernels.address(family, f"to_{to}"), (source, out), out, kernels)


def _cast(node: Node, ctx: CpuLoweringContext, kernels: Kernels) -> list[Task] | None:
    (x,), out, to = node.inputs, node.out, node.bound.output.dtype
    if not (x.flags.c_contiguous and out.flags.c_contiguous):
        return None
    if not is_converted(node.dtype(0).name, to.name) or np.may_share_memory(x, out):
        return None
    kernel = kernels.address(f"cast_{node.dtype(0)}", f"to_{to}")
    return _one(flat_task(kernel, (x, out), out.size, kernels.threads))


def _get_rows(node: Node, ctx: CpuLoweringContext, kernels: Kernels) -> list[Task] | None:
    table, ids = node.inputs
    dtype, width = node.dtype(0), node.out.shape[-1]
    if table.ndim > MAX_TABLE_AXES or not (dtype is I32 or is_compiled(dtype)):
        return None
    if not (is_dense(table) and ids.flags.c_contiguous and node.out.flags.c_contiguous):
        return None
    batches = table.shape[:-2]
    ids, out = ids.reshape(*batches, -1), node.out.reshape(*batches, -1, width)
    kernel = kernels.address(f"get_rows_{dtype}", "get_rows")
    batch = table.strides[0] if batches else 0
    own = address(table), table.strides[-2], table.shape[-2], batch
    return _rows_by_id(kernel, (ids, out), out, kernels, own, table)


def _rows_by_id(
    kernel: int,
    operands: Sequence[Array],
    like: Array,
    kernels: Kernels,
    own: Sequence[int],
    table: Array,
) -> list[Task] | None:
    shape, columns, threads = like.shape[:-1], like.shape[-1], kernels.threads
    rows = table.shape[-2]
    task = row_task(kernel, operands, shape, columns, threads, own, rows=rows, keeps=(table,))
    return _one(task)


def _set_rows(node: Node, ctx: CpuLoweringContext, kernels: Kernels) -> list[Task] | None:
    _, source, ids = node.inputs
    table, to = node.out, node.bound.output.dtype
    if not (is_dense(table) and is_dense(source)) or not ids.size:
        return None
    kernel = kernels.address("rows", f"set_rows_{to}")
    own = address(table), table.strides[0], table.shape[0]
    return _rows_by_id(kernel, (source, ids), source, kernels, own, table)


def _add_id(node: Node, ctx: CpuLoweringContext, kernels: Kernels) -> list[Task] | None:
    x, bias, ids = node.inputs
    if not all(is_dense(a) for a in (x, bias, node.out)):
        return None
    first, of = experts_of(node)
    own = address(bias), bias.strides[0], bias.shape[0], first, of
    kernel, threads = kernels.address("add_id", "add_id"), kernels.threads
    operands, shape = (x, ids, node.out), x.shape
    return _one(
        row_task(kernel, operands, shape[:-1], shape[-1], threads, own, rows=of, keeps=(bias,))
    )


@cache
def _libm(name: str) -> int:
    found = ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value
    assert found is not None
    return found


def _rotations(node: Node, ctx: CpuLoweringContext, kernels: Kernels) -> tuple[Array, list[Task]]:
    """Return the table of a rotation, and the task that fills it unless an earlier node has."""
    operands = node.bound.inputs[1:]
    params = tuple(sorted((k, repr(v)) for k, v in node.bound.params.items()))
    places = tuple((id(o.buffer), o.offset, o.shape, o.strides) for o in operands)
    key = ("compiled rope", places, params)
    known = ctx.tables.get(key)
    if known is not None:
        return known[1], []
    inverse, magnitude = rope_table(node.bound.params)
    frequencies = np.array(inverse, np.float64)
    positions = node.inputs[1]
    table = np.empty((positions.shape[0], 2 * frequencies.size), np.float32)
    factors = node.inputs[2] if len(operands) == 2 else None
    start = 0 if factors is None else address(factors)
    own = address(frequencies), start, double_bits(magnitude), _libm("cos"), _libm("sin")
    keeps = (frequencies,) if factors is None else (frequencies, factors)
    kernel = kernels.address("rope", "rope_table")
    task = row_task(
        kernel, (positions, table), positions.shape, frequencies.size, kernels.threads, own,
        keeps=keeps,
    )  # fmt: skip
    if task is None:
        return table, []
    ctx.tables[key] = operands, table
    return table, [task]


def _rope(node: Node, ctx: CpuLoweringContext, kernels: Kernels) -> list[Task] | None:
    x, out, n = node.inputs[0], node.out, int(node.number("n_dims"))
    if not (is_dense(x) and is_dense(out) and node.inputs[1].flags.aligned):
        return None
    if len(node.inputs) == 3 and not (
        node.inputs[2].flags.c_contiguous and is_dense(node.inputs[2])
    ):
        return None
    table, tasks = _rotations(node, ctx, kernels)
    how = "halves" if node.param("pairing") == "halves" else "adjacent"
    kernel = kernels.address("rope", f"rope_{how}")
    spread = np.broadcast_to(table[:, None], (*x.shape[:2], table.shape[1]))
    shape = x.shape[:2]
    task = row_task(kernel, (x, spread, out), shape, n // 2, kernels.threads, [x.shape[2]])
    return None if task is None else [*tasks, task]


def emit_fused(
    node: Node, following: Sequence[Node], ctx: CpuLoweringContext, kernels: Kernels
) -> tuple[list[Task], int] | None:
    """Return the tasks of a node and of some that follow it, and how many these are.

    Args:
        following: Single nodes behind it, in order.
        ctx: State of the program.
        kernels: What there is.

    Returns:
        None if the node is to be run by itself.
    """
    if node.bound.op != "nd.conv":
        return None
    activations = activations_of(node, following)
    tasks = conv(node, ctx, kernels, activations) if activations else None
    return None if tasks is None else (tasks, len(activations))


def emit_group(
    nodes: Sequence[Node], ctx: CpuLoweringContext, kernels: Kernels
) -> list[Task] | None:
    """Return tasks for a fusion group, or None if its nodes are as well run one by one."""
    group = nodes[-1].bound.group
    if group is None or group.pattern not in FUSIONS or not nodes[-1].out.size:
        return None
    norm, mul = nodes
    a, b = mul.bound.inputs
    other = 1 if a == norm.bound.output else 0
    x, out = norm.inputs[0], mul.out
    if (a, b)[1 - other] != norm.bound.output or norm.out.shape != out.shape:
        return None
    weight = np.broadcast_to(mul.inputs[other], out.shape)
    if not all(is_dense(v) for v in (x, weight, out)) or x.shape[-1] == 0:
        return None
    if np.may_share_memory(mul.inputs[other], out):
        return None
    kernel = kernels.address("rms_norm_mul", "rms_norm_mul")
    return _row(kernel, (x, weight, out), out, kernels, [bits(norm.number("eps"))])


EMITTERS: Final[Mapping[str, Emitter]] = {
    **dict.fromkeys(FORMULAS, _elementwise),
    "attention": attention,
    "linear_attention": linear_attention,
    "short_conv": short_conv,
    "mul_mat": mul_mat,
    "mul_mat_id": mul_mat_id,
    "rms_norm": _norm,
    "norm": _norm,
    "soft_max": _soft_max,
    "nd.log_softmax": _log_soft_max,
    "nd.softmax": _soft_max_across,
    "sum_rows": _sum_rows,
    **dict.fromkeys(("top_k", "nd.top_k"), _top_k),
    "nd.cast": _cast,
    "cpy": _copy,
    "cont": _copy,
    "get_rows": _get_rows,
    "set_rows": _set_rows,
    "add_id": _add_id,
    "rope": _rope,
    "nd.conv": conv,
    "nd.conv_transpose": conv_transpose,
    "nd.average_pool": average_pool,
    "nd.grid_sample": grid_sample,
    "nd.max_pool": max_pool,
    **dict.fromkeys(_OF_ROWS, _reduce),
    **dict.fromkeys(("nd.cum_sum", "nd.cum_prod"), _scan),
    **indexed.EMITTERS,
    **moves.EMITTERS,
    **cells.EMITTERS,
}
"""Ops that are not here run by ``ggsched_cpu.reference``."""

__all__ = ["EMITTERS", "Emitter", "emit_fused", "emit_group"]
