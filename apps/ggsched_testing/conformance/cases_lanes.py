"""STR-7: lanes that a device proposes."""

from collections.abc import Sequence
from typing import cast

from ggsched.backend.lanes import LaneProposer
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.graph import Graph
from ggsched_testing.conformance.case import case
from ggsched_testing.conformance.context import TestContext


def _branches(count: int, length: int) -> Graph:
    """Return a graph of branches of some nodes that meet at the end."""
    g = GraphBuilder("branches")
    x = g.input("x", (2, 8))
    ends = []
    for _ in range(count):
        y = x
        for _ in range(length):
            y = g.silu(y)
        ends.append(y)
    joined = ends[0]
    for y in ends[1:]:
        joined = g.add(joined, y)
    return g.build(y=joined)


def _ask(w: TestContext, graph: Graph) -> Sequence[int]:
    w.log(f"propose_lanes of {len(graph.nodes)} nodes")
    return cast("LaneProposer", w.device).propose_lanes(graph)


@case("STR-7", "Each node gets a lane, a number from 0 on.", "lanes", since=(1, 6))
def str7_a_lane_for_each_node(w: TestContext) -> None:
    for _ in range(8):
        graph = _branches(*map(int, w.rng.integers(1, 6, 2)))
        lanes = _ask(w, graph)
        w.require(len(lanes) == len(graph.nodes), f"{len(lanes)} lanes for {len(graph.nodes)}")
        for node, lane in enumerate(lanes):
            w.require(type(lane) is int and lane >= 0, f"the lane of node {node} is {lane!r}")


@case("STR-7", "The lanes of a graph do not depend on when they are asked for.",
      "lanes", since=(1, 6))  # fmt: skip
def str7_always_the_same(w: TestContext) -> None:
    sizes = [(3, 2), (1, 4), (4, 1)]
    first = [list(_ask(w, _branches(*size))) for size in sizes]
    q, x = w.stream(), w.buffer()
    hold = w.hold(q)
    w.upload(q, w.bytes(), x)
    again = [list(_ask(w, _branches(*size))) for size in reversed(sizes)]
    hold.release()
    w.sync(q)
    w.require(again == first[::-1], f"lanes were {first} and are {again[::-1]}")
