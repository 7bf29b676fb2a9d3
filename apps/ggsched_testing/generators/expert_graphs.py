"""Graphs of layers with routers and experts, whose ids can be looked at."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ggsched.ir.builder import GraphBuilder
from ggsched.ir.graph import Graph
from ggsched.ir.tensor import Role, Tensor

Array = npt.NDArray[Any]

INPUT = "x"


def expert_graph(
    layers: int = 2,
    *,
    tokens: int = 4,
    experts: int = 8,
    used: int = 2,
    width: int = 16,
    hidden: int = 32,
    biases: bool = False,
) -> Graph:
    """Return a graph of some layers: a router, two products with chosen experts, a sum.

    The outputs are the last hidden state and then, for each layer, the ids that its router chose,
    (tokens, used) i32.
    """
    g = GraphBuilder(f"experts {layers}x{experts}")
    x = g.input(INPUT, (tokens, width))
    chosen: list[Tensor] = []
    for layer in range(layers):
        with g.scope(f"blk.{layer}"):
            blk = f"blk.{layer}"
            scores = g.soft_max(g.mul_mat(g.weight(f"{blk}.router", (experts, width)), x))
            ids = g.top_k(scores, used)
            up = g.weight(f"{blk}.ffn_up_exps.weight", (experts, hidden, width))
            inner = g.mul_mat_id(up, g.reshape(x, -1, 1, width), ids)
            if biases:
                inner = g.add_id(inner, g.weight(f"{blk}.ffn_up_exps.bias", (experts, hidden)), ids)
            down = g.weight(f"{blk}.ffn_down_exps.weight", (experts, width, hidden))
            out = g.mul_mat_id(down, g.silu(inner), ids)
            total = g.sum_rows(g.permute(out, 0, 2, 1))
            x = g.add(g.reshape(total, -1, width), x)
            chosen.append(ids)
    return g.build(x, *chosen)


def expert_names(graph: Graph) -> list[str]:
    """Return the names of the weights of which rows are chosen."""
    return [t.name for t in graph.roots(Role.WEIGHT) if "_exps." in t.name]


def expert_homes(graph: Graph, here: int, there: int) -> dict[str, int]:
    """Return homes for all weights: experts on device ``here``, the others on ``there``."""
    experts = set(expert_names(graph))
    return {t.name: here if t.name in experts else there for t in graph.roots(Role.WEIGHT)}


def expert_values(graph: Graph, seed: int) -> dict[str, Array]:
    """Return weights and the input, small enough for sums to stay near 1."""
    rng = np.random.default_rng(seed)
    roots = (*graph.roots(Role.WEIGHT), *graph.roots(Role.INPUT))
    return {t.name: 0.5 * rng.standard_normal(t.shape, np.float32) for t in roots}


def chosen_rows(graph: Graph, outputs: Mapping[int, Array]) -> dict[str, set[int]]:
    """Return for each expert weight the rows that the routers' ids in some outputs name."""
    found: dict[str, set[int]] = {}
    for layer, tid in enumerate(graph.outputs[1:]):
        for name in expert_names(graph):
            if name.startswith(f"blk.{layer}."):
                found[name] = set(outputs[tid].ravel().tolist())
    return found
