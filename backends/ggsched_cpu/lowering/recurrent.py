"""The tasks of recurrences over tokens: short convolutions and linear attention."""

import numpy as np

from ggsched_cpu.kernels.linear_attention import SLOTS as ATTENTION
from ggsched_cpu.kernels.short_conv import SLOTS as CONVOLUTION
from ggsched_cpu.lowering.context import CpuLoweringContext, Node
from ggsched_cpu.lowering.products import is_dense
from ggsched_cpu.lowering.tasks import SERIAL_NBYTES, Task, address, bits, parts_for
from ggsched_cpu.native import Kernels


def linear_attention(node: Node, ctx: CpuLoweringContext, kernels: Kernels) -> list[Task] | None:
    """Return the task: a part is the matrix of one slot and head."""
    state, q, k, v, decay, slots, positions, *rest = node.inputs
    beta = rest[0] if rest else decay
    (count, heads, width, across), tokens, groups = state.shape, q.shape[0], q.shape[1]
    if not all(is_dense(a) for a in (state, q, k, v)) or k.strides[:2] != q.strides[:2]:
        return None
    if not all(a.flags.aligned for a in (decay, beta)) or not tokens:
        return None
    if not all(a.flags.c_contiguous and a.flags.aligned for a in (slots, positions)):
        return None
    y, after = np.split(node.out, [v.size])
    values = {
        **{"state": address(state), "q": address(q), "k": address(k), "v": address(v)},
        **{"decay": address(decay), "beta": address(beta), "slots": address(slots)},
        **{"positions": address(positions), "out": address(y), "after": address(after)},
        **{"count": count, "heads": heads, "width": width, "across": across, "tokens": tokens},
        **{"share": heads // groups, "groups": groups, "tiled": int(bool(node.param("tiled")))},
        **{"state_slot": state.strides[0], "state_head": state.strides[1]},
        **{"state_row": state.strides[2], "qk_token": q.strides[0], "qk_group": q.strides[1]},
        **{"v_token": v.strides[0], "v_head": v.strides[1]},
        **{"decay_token": decay.strides[0], "decay_head": decay.strides[1]},
        **{"beta_token": beta.strides[0], "beta_head": beta.strides[1]},
        "scale": bits(node.number("scale")),
    }
    args = tuple(values[name] for name in ATTENTION)
    kernel = kernels.address(f"linear_attention{int(bool(rest))}", "linear_attention")
    is_serial = kernels.threads == 1 or 4 * state.size * tokens < SERIAL_NBYTES
    keeps = (state, q, k, v, decay, beta, slots, positions, node.out)
    return [Task(kernel, args, count * heads, is_serial, count, keeps)]


def short_conv(node: Node, ctx: CpuLoweringContext, kernels: Kernels) -> list[Task] | None:
    """Return the task: a part is some rows of the result and of the states afterwards."""
    state, x, w, slots, positions = node.inputs
    if not (is_dense(state) and is_dense(x) and w.flags.aligned):
        return None
    if not all(a.flags.c_contiguous and a.flags.aligned for a in (slots, positions)):
        return None
    rows, channels = node.out.shape
    nbytes = 4 * (node.out.size * 2 + x.shape[0] * w.size)
    part_rows = -(-rows // parts_for(nbytes, rows, kernels.threads))
    values = {
        **{"state": address(state), "x": address(x), "w": address(w), "slots": address(slots)},
        **{"positions": address(positions), "out": address(node.out), "count": state.shape[0]},
        **{"kept": state.shape[1], "channels": channels, "tokens": x.shape[0], "rows": rows},
        **{"part_rows": part_rows, "state_slot": state.strides[0], "state_row": state.strides[1]},
        **{"x_row": x.strides[0], "w_row": w.strides[0], "w_tap": w.strides[1]},
    }
    args = tuple(values[name] for name in CONVOLUTION)
    kernel = kernels.address("short_conv", "short_conv")
    parts = -(-rows // part_rows)
    keeps = (state, x, w, slots, positions, node.out)
    return [Task(kernel, args, parts, parts == 1, state.shape[0], keeps)]
