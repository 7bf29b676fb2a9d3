"""The task of linear attention."""

import numpy as np

from ggsched_cpu.compiled.products import is_dense
from ggsched_cpu.compiled.tasks import SERIAL_NBYTES, Task, address, bits
from ggsched_cpu.lowering_context import CpuLoweringContext, Node
from ggsched_cpu.native import Kernels
from ggsched_cpu_kernels.linear_attention import SLOTS


def linear_attention(node: Node, site: CpuLoweringContext, kernels: Kernels) -> list[Task] | None:
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
    args = tuple(values[name] for name in SLOTS)
    kernel = kernels.address(f"linear_attention{int(bool(rest))}", "linear_attention")
    is_serial = kernels.threads == 1 or 4 * state.size * tokens < SERIAL_NBYTES
    keeps = (state, q, k, v, decay, beta, slots, positions, node.out)
    return [Task(kernel, args, count * heads, is_serial, count, keeps)]
