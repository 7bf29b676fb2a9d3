"""The task of attention."""

import numpy as np

from ggsched.backend.arrays import Array
from ggsched_cpu.kernels.attention import SLOTS
from ggsched_cpu.kernels.attention_blocks import fits, query_rows
from ggsched_cpu.lowering.context import CpuLoweringContext, Node
from ggsched_cpu.lowering.products import is_dense
from ggsched_cpu.lowering.tasks import SERIAL_NBYTES, Task, address, bits, parts_for
from ggsched_cpu.native import Kernels


def attention(node: Node, ctx: CpuLoweringContext, kernels: Kernels) -> list[Task] | None:
    """Return the task: a part is some tokens of the queries that read one head of keys."""
    k, v, q, *rest = node.inputs
    out = node.out
    if not all(is_dense(a) for a in (k, v, q, out)):
        return None
    (rows, groups), (tokens, heads, width) = k.shape[:2], q.shape
    across = out.shape[2]
    mask = sinks = bounds = None
    if node.param("mask"):
        mask = np.broadcast_to(rest.pop(0), (heads, tokens, rows))
    if node.param("sinks"):
        sinks = rest.pop(0)
    if node.param("bounds"):
        bounds = rest.pop(0)
        if not bounds.flags.c_contiguous:
            return None
    given = [a for a in (mask, sinks, bounds) if a is not None]
    if not all(a.flags.aligned for a in given):
        return None
    work = 4 * heads * tokens * rows * (width + across)
    block = query_rows(kernels.target)
    is_many = 2 * tokens * (heads // groups) >= block and fits(kernels.target, width, across)
    if is_many:
        part_tokens = 0  # a part is a block of rows, whatever the tokens
        token_parts = -(-tokens * (heads // groups) // block)
    else:
        wanted = parts_for(work, groups * tokens, kernels.threads)
        part_tokens = max(1, tokens * groups // wanted)
        token_parts = -(-tokens // part_tokens)
    masks = (0, 0, 0) if mask is None else mask.strides
    values = {
        "k": address(k),
        "v": address(v),
        "q": address(q),
        "out": address(out),
        "mask": _pointer(mask),
        "sinks": _pointer(sinks),
        "bounds": _pointer(bounds),
        "rows": rows,
        "tokens": tokens,
        "share": heads // groups,
        "width": width,
        "value_width": across,
        "part_tokens": part_tokens,
        "token_parts": token_parts,
        "k_row": k.strides[0],
        "k_head": k.strides[1],
        "v_row": v.strides[0],
        "v_head": v.strides[1],
        "q_token": q.strides[0],
        "q_head": q.strides[1],
        "out_token": out.strides[0],
        "out_head": out.strides[1],
        "mask_head": masks[0],
        "mask_token": masks[1],
        "mask_row": masks[2],
        "sink": 0 if sinks is None else sinks.strides[0],
        "scale": bits(node.number("scale")),
        "cap": bits(node.number("soft_cap")),
    }
    args = tuple(values[name] for name in SLOTS)
    family = "attention_blocks" if is_many else "attention"
    kernel = kernels.address(f"{family}_{node.dtype(0)}", "attention")
    is_serial = kernels.threads == 1 or work < SERIAL_NBYTES
    return [Task(kernel, args, groups * token_parts, is_serial, 0, (k, v, q, out, *given))]


def _pointer(a: Array | None) -> int:
    return 0 if a is None else address(a)
