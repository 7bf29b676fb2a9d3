"""What makes as many objects as a plan has commands leaves the cyclic collector alone."""

import gc
import sys
from functools import cache

import pytest

from ggsched.ir import GraphBuilder
from ggsched.ir.text import parse_graph, print_graph
from ggsched.passes import Constraints, make_plan
from ggsched.plan.codec import plan_from_json, plan_to_json
from ggsched.plan.stats import plan_stats
from ggsched.sanitize import check_plan
from ggsched.topology import Topology
from ggsched_cluster.check_parts import check_parts
from ggsched_cluster.machines import cut_by_machine
from ggsched_testing.generators.topologies import ALL_OPS
from ggsched_testing.plan_builder import fake_device

NODES = 1500
MACHINES = (0, 1)


@cache
def made():
    g = GraphBuilder("long")
    x = g.input("x", (1, 4))
    for _ in range(NODES):
        x = g.silu(x)
    graph = g.build(x)
    topology = Topology(tuple(fake_device(f"gpu:{i}", ops=ALL_OPS) for i in MACHINES))
    pins = {n.id: n.id // 8 % 2 for n in graph.nodes}
    return graph, make_plan(graph, topology, Constraints(pins=pins))


def operands(function):
    graph, plan = made()
    return {
        plan_from_json: (plan_to_json(plan),),
        check_parts: (plan, cut_by_machine(plan, MACHINES), MACHINES),
        parse_graph: (print_graph(graph),),
    }.get(function, (plan,))


def collections(function, *arguments):
    """Return how often the collector runs during a call."""
    count = 0

    def note(phase, _):
        nonlocal count
        count += phase == "start"

    assert gc.isenabled()
    gc.collect()
    usual = gc.get_threshold()
    gc.set_threshold(700, 10, 10)  # as Python begins, whatever pytest has set
    gc.callbacks.append(note)
    try:
        function(*arguments)
    finally:
        gc.callbacks.remove(note)
        gc.set_threshold(*usual)
    return count


@pytest.mark.parametrize(
    "function",
    [plan_from_json, plan_to_json, plan_stats, parse_graph, check_plan, check_parts],
    ids=lambda f: f.__name__,
)
def test_no_collection_in_between(function):
    """One may follow when the collector goes on; without the pause there are many."""
    given = operands(function)
    assert collections(function, *given) <= 2
    # From 3.12 on the collector runs between instructions of Python, not within msgspec's decoder.
    is_in_c = function is plan_from_json and sys.version_info >= (3, 12)
    assert collections(function.__wrapped__, *given) > (0 if is_in_c else 2)
    assert gc.isenabled()
