"""Graphs of the attention op, as tests of several backends take them."""

from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import I32


def attention_graph(case, kv):
    """Return the op on views of a cache.

    Args:
        case: Tokens, heads, groups, width of keys, width of values, rows, mask (None, "mask" or
            "heads"), whether there are sinks, whether there are bounds, soft cap.
        kv: Type of keys and values.
    """
    tokens, heads, groups, width, across, rows, mask, sinks, bounds, cap = case
    g = GraphBuilder()
    q = g.input("q", (tokens, heads, width))
    cache = g.input("k", (rows + 3, groups * width), kv)
    k = g.reshape(g.rows(cache, 2, rows + 2), rows, groups, width)
    v = g.permute(g.input("v", (groups, rows, across), kv), 1, 0, 2)
    shape = (heads, tokens, rows) if mask == "heads" else (tokens, rows)
    made = g.attention(
        q, k, v,
        mask=g.input("mask", shape) if mask else None,
        sinks=g.input("sinks", (heads,)) if sinks else None,
        bounds=g.input("bounds", (tokens, 2), I32) if bounds else None,
        scale=0.3, soft_cap=cap,
    )  # fmt: skip
    return g.build(made)
