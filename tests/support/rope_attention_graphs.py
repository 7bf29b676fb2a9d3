"""What stands between the products of a layer: rotations, copies into caches, attention."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import F16, I32, DType
from ggsched.ir.graph import Graph
from ggsched.ir.tensor import Role

NODES = 5  # of a layer
FIRST, BEHIND = 3, 5  # rows of the caches before those that attention looks at, and behind them
GROUPS = ((1, 2),)  # of its nodes: K on its way to the cache


@dataclass(frozen=True, slots=True)
class Turned:
    """Sizes of a layer; ``rows`` are the positions of its tokens."""

    rows: tuple[int, ...]
    groups: int
    share: int
    n: int
    width: int
    dtype: DType = F16
    pairing: str = "adjacent"
    sinks: bool = False
    factors: bool = False
    apart: bool = False  # V has ids of its own, so that there are two kernels


def turned(s: Turned, layers: int = 1) -> Graph:
    """Return the graph of layers with caches of their own."""
    g, tokens, across = GraphBuilder("turned"), len(s.rows), s.groups * s.width
    positions, ids = g.input("positions", (tokens,), I32), g.input("ids", (tokens,), I32)
    own_ids = g.input("ids_v", (tokens,), I32) if s.apart else ids
    x = g.input("q", (tokens, s.groups * s.share, s.width))
    new_k, new_v = g.input("k", (tokens, s.groups, s.width)), g.input("v", (tokens, across))
    bounds = g.input("bounds", (tokens, 2), I32)
    sinks = g.input("sinks", (s.groups * s.share,)) if s.sinks else None
    factors = g.input("factors", (s.width // 2,)) if s.factors else None
    results = []
    for i in range(layers):
        shape = (FIRST + s.n + BEHIND, across)
        caches = [g.input(f"{name}{i}", shape, s.dtype) for name in ("keys", "values")]
        q = g.rope(x, positions, factors, n_dims=s.width, pairing=s.pairing)
        k = g.rope(new_k, positions, factors, n_dims=s.width, pairing=s.pairing)
        stored = [
            g.set_rows(caches[0], g.reshape(k, tokens, across), ids),
            g.set_rows(caches[1], new_v, own_ids),
        ]
        keys, values = (
            g.reshape(g.rows(o, FIRST, FIRST + s.n), s.n, s.groups, s.width) for o in stored
        )
        made = g.attention(q, keys, values, bounds=bounds, sinks=sinks, scale=s.width**-0.5)
        results += [q, *stored, made]
    return g.build(*results)


def groups_of_layers(layers: int = 1) -> list[tuple[int, ...]]:
    """Return the groups of the graph's nodes."""
    return [tuple(NODES * i + k for k in some) for i in range(layers) for some in GROUPS]


def turned_values(graph: Graph, s: Turned) -> dict[str, Any]:
    """Return values for the inputs, the same for each layer; a token sees what is up to its own."""
    rng = np.random.default_rng(len(s.rows))
    values: dict[str, Any] = {}
    for t in graph.roots(Role.INPUT):
        of_first = f"{t.name.rstrip('0123456789')}0"
        plain = values.get(of_first)
        if plain is None:
            plain = (2 * rng.standard_normal(t.shape)).astype(np.float32)
        values[t.name] = plain.astype(np.float16) if t.dtype is F16 else plain
    end = np.maximum(0, np.array(s.rows, np.int32)) + 1
    values["bounds"] = np.stack([0 * end, end], axis=-1)
    values["ids"] = np.array(s.rows, np.int32) + FIRST
    values["positions"] = np.array(s.rows, np.int32) + 1000
    if s.apart:
        values["ids_v"] = values["ids"]
    if s.factors:
        values["factors"] = rng.uniform(0.5, 8, s.width // 2).astype(np.float32)
    return values
