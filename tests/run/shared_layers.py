"""Attention and a network in parts, small: for faults, every order, and broken plans."""

import numpy as np

from ggsched.ir import GraphBuilder
from ggsched_llm.weights import part_array
from ggsched_shard.layout import Split, even_parts
from ggsched_shard.place import ByParticipant
from ggsched_shard.rewrite import Shards, shard_graph

TOKENS, WIDTH, INNER = 3, 8, 12


def network(layers=2):
    """Return a residual network with a state, and its weights."""
    g = GraphBuilder("network")
    x = g.input("x", (TOKENS, WIDTH))
    rows = g.input("rows", (TOKENS,), "i32")
    for k in range(layers):
        hidden = g.mul_mat(g.weight(f"up{k}", (INNER, WIDTH)), x, name=f"up{k}")
        kept = g.set_rows(g.state(f"kept{k}", (2 * TOKENS, INNER)), hidden, rows, name=f"keep{k}")
        hidden = g.silu(g.add(hidden, g.rows(kept, 1, 1 + TOKENS)), name=f"act{k}")
        out = g.mul_mat(g.weight(f"down{k}", (WIDTH, INNER)), hidden, name=f"down{k}")
        x = g.add(out, x, name=f"residual{k}")
    rng = np.random.default_rng(5)
    weights = {}
    for t in g.build(x).tensors:
        if t.name.startswith(("up", "down")) and not t.is_view and t.role.value == "weight":
            weights[t.name] = rng.standard_normal(t.shape).astype(np.float32) * 0.3
    return g.build(x), weights


def shards(count, layers=2, *, peers=False):
    """Return how devices share it: the inner width."""
    parts = (even_parts(INNER, [1.0] * count, 1),)
    found = {}
    for k in range(layers):
        found |= {f"up{k}": Split(0, parts), f"down{k}": Split(1, parts)}
        found[f"kept{k}"] = Split(1, parts)
    return Shards(count, found, peers=frozenset(range(count) if peers else ()))


def shared(count, layers=2, *, peers=False):
    """Return the graph, the graph in parts, and the weights of both."""
    graph, weights = network(layers)
    how = shards(count, layers, peers=peers)
    parts = {}
    for name, whole in weights.items():
        for new, p in how.members(name):
            parts[new] = part_array(whole, graph.named(name).dtype, how.layout(name), p)
    return graph, shard_graph(graph, how).graph, weights, parts


def placement(count):
    return ByParticipant(f"{count} devices", lambda _: tuple(range(count)))


def inputs(run):
    rng = np.random.default_rng(run)
    x = rng.standard_normal((TOKENS, WIDTH)).astype(np.float32)
    return {"x": x, "rows": (2 * np.arange(TOKENS) + run % 2).astype(np.int32)}
