"""Attention as two products and a softmax over all rows at once."""

from collections.abc import Callable, Mapping
from typing import Final

import torch

from ggsched_torch.operands import Node

LOWEST: Final = torch.finfo(torch.float32).min
LEAST: Final = 1e-30
"""What sums are at least: those that see no row are 0, others 1 or more."""


def _attention(node: Node) -> None:
    keys, values, q = node.floats(0), node.floats(1), node.inputs[2]
    rest = list(node.inputs[3:])
    share = q.shape[1] // keys.shape[1]
    keys, values = (x.repeat_interleave(share, 1).transpose(0, 1) for x in (keys, values))
    logits = (
        q.transpose(0, 1) @ keys.transpose(1, 2) * node.number("scale")
    )  # (heads, tokens, rows)
    cap = node.number("soft_cap")
    if cap:
        logits = torch.tanh(logits / cap) * cap
    if node.param("mask"):
        logits = logits + rest.pop(0)
    sinks = rest.pop(0).reshape(-1, 1, 1) if node.param("sinks") else None
    if node.param("bounds"):
        first, end = rest.pop(0)[..., None].unbind(-2)
        row = torch.arange(logits.shape[-1], dtype=torch.int32)
        logits = logits.masked_fill((row < first) | (row >= end), -torch.inf)
    top = logits.amax(-1, keepdim=True).clamp_min(LOWEST)
    if sinks is not None:
        top = torch.maximum(top, sinks)
    shares = torch.exp(logits - top)
    total = shares.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + torch.exp(sinks - top)
    node.out.copy_((shares / total.clamp_min(LEAST) @ values).transpose(0, 1))


KERNELS: Final[Mapping[str, Callable[[Node], object]]] = {"attention": _attention}
