"""Graphs that tests of several backends take."""

from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import I32
from tests.backends.against_oracle import whole


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


def decoder_products(kv, heads, groups, tokens):
    """Return the products of a decoder: strided keys, transposed values, heads that share both."""
    g, depth, length = GraphBuilder(), 32, 300
    keys = g.input("k", (length, groups, depth), kv)
    values = g.input("v", (length, groups, depth), kv)
    q = g.input("q", (tokens, heads, depth))
    scores = g.mul_mat(g.permute(keys, 1, 0, 2), g.permute(q, 1, 0, 2))
    weights = g.soft_max(scores, g.input("mask", (tokens, length)), scale=0.2)
    return g.build(scores, weights, g.mul_mat(g.permute(values, 1, 2, 0), weights))


def expert_products(dtype, tokens, rows):
    """Return products with three of five experts for each token."""
    g = GraphBuilder()
    k = whole(64, dtype)
    w, x = g.weight("w", (5, 70, k), dtype), g.input("x", (tokens, rows, k))
    return g.build(g.mul_mat_id(w, x, g.input("ids", (tokens, 3), I32)))


def rows_by_ids(op, count):
    """Return a node that takes or sets ``count`` rows by ids, of which there are four or more."""
    g = GraphBuilder()
    ids, rows = g.input("ids", (count,), I32), g.input("rows", (count, 32))
    pairs, wide = g.reshape(ids, count, 1), g.reshape(rows, count, 1, 32)
    match op:
        case "get_rows":
            out = g.get_rows(g.weight("w", (4, 32)), ids)
        case "set_rows":
            out = g.set_rows(g.state("s", (max(4, count), 32)), rows, ids)
        case "mul_mat_id":
            out = g.mul_mat_id(g.weight("w", (4, 8, 32)), wide, pairs)
        case _:
            out = g.add_id(wide, g.weight("w", (4, 32)), pairs)
    return g.build(out)


def rotations(n_dims, pairing, *, inplace, strided, yarn=False):
    """Return rotations, plain and with factors, and by YaRN."""
    g = GraphBuilder()
    x, at = g.input("x", (3, 8, 2) if strided else (3, 2, 8)), g.input("at", (3,), I32)
    x = g.transpose(x) if strided else x
    factors = g.weight("f", (n_dims // 2,))
    params = {"n_dims": n_dims, "pairing": pairing}
    outs = [g.rope(x, at, **params)]
    outs += [g.op("rope", x, at, factors, inplace=inplace, freq_factors=True, **params)]
    if yarn:
        outs += [g.rope(x, at, ext_factor=1.0, freq_scale=0.25, n_ctx_orig=4096, **params)]
    return g.build(*outs)
