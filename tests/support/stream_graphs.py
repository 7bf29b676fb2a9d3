"""Graphs with and without independent nodes, from tiny to wide, and their data."""

from collections.abc import Callable, Mapping
from random import Random
from typing import Final

import numpy as np

from ggsched.ir import Graph, GraphBuilder
from ggsched.ir.tensor import Role, Tensor


def chain(n: int) -> Graph:
    """Return x = x + c, n times."""
    g = GraphBuilder(f"chain {n}")
    x, c = g.input("x", (16,)), g.weight("c", (16,))
    for _ in range(n):
        x = g.add(x, c)
    return g.build(x)


def diamonds(n: int) -> Graph:
    """Return a row of diamonds, five nodes each."""
    g = GraphBuilder(f"diamonds {n}")
    x, c = g.input("x", (16,)), g.weight("c", (16,))
    for _ in range(n // 5):
        q, k, v = g.mul(x, c), g.mul(x, c), g.mul(x, c)
        x = g.add(g.add(q, k), v)
    return g.build(x)


def random_wide(n: int, window: int = 64) -> Graph:
    """Return n sums, each of two of the ``window`` results before it."""
    random, g = Random(0), GraphBuilder(f"wide {n}")
    made = [g.input("x", (16,))]
    for _ in range(n):
        made.append(g.add(*(random.choice(made[-window:]) for _ in range(2))))
    return g.build(*made[-4:])


def towers(count: int, depth: int, width: int, rows: int | None = None) -> Graph:
    """Return towers of matrix products beside each other, added up in the end.

    Args:
        count: Towers.
        depth: Products in each.
        width: Rows and columns of each weight.
        rows: Vectors that are multiplied; ``width`` by default.
    """
    g = GraphBuilder(f"{count} towers of {depth} x {width}")
    x = g.input("x", (width if rows is None else rows, width))
    tops = []
    for i in range(count):
        y = x
        for k in range(depth):
            y = g.mul_mat(g.weight(f"w{i}.{k}", (width, width)), y)
        tops.append(y)
    return g.build(_sum(g, tops))


def attention(width: int, rows: int, layers: int = 4) -> Graph:
    """Return layers of three products of one operand, and one of what comes of them."""
    g = GraphBuilder(f"attention of {width} x {rows}")
    x = g.input("x", (rows, width))
    for i in range(layers):
        q, k, v = (g.mul_mat(g.weight(f"{n}{i}", (width, width)), x) for n in "qkv")
        x = g.add(x, g.mul_mat(g.weight(f"o{i}", (width, width)), g.mul(g.silu(q), g.add(k, v))))
    return g.build(x)


def elementwise(count: int, size: int, depth: int = 4) -> Graph:
    """Return branches of elementwise nodes on arrays of a size."""
    g = GraphBuilder(f"{count} branches of {size} elements")
    x = g.input("x", (size,))
    tops = []
    for i in range(count):
        y = g.add(x, g.weight(f"w{i}", (size,)))
        for _ in range(depth):
            y = g.silu(y)
        tops.append(y)
    return g.build(_sum(g, tops))


def _sum(g: GraphBuilder, parts: list[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = g.add(total, part)
    return total


NEVER_SLOWER: Final[tuple[Callable[[], Graph], ...]] = (
    lambda: chain(20),
    lambda: diamonds(50),
    lambda: random_wide(100),
    lambda: elementwise(4, 1 << 12),
    lambda: elementwise(4, 1 << 19),
    lambda: attention(64, 1),
    lambda: attention(256, 16),
    lambda: attention(512, 64),
    lambda: attention(1024, 1),
    lambda: towers(2, 4, 96),
    lambda: towers(4, 4, 256),
    lambda: towers(2, 3, 512),
)
"""From tiny, where a second stream costs more than it gains, to wide."""


def data_of(graph: Graph) -> tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]]:
    """Return inputs and weights that keep all results of moderate size."""
    random = np.random.default_rng(0)
    inputs, weights = (
        {
            t.name: random.standard_normal(t.shape, np.float32) / max(1, t.shape[-1]) ** 0.5
            for t in graph.roots(role)
        }
        for role in (Role.INPUT, Role.WEIGHT)
    )
    return inputs, weights
