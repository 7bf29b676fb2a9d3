"""Drafts: what the planner decides before memory, for planners that go on in other ways."""

from ggsched.ir.graph import Graph
from ggsched.passes.draft import Draft
from ggsched.passes.options import StreamPolicy
from ggsched.passes.place import Constraints, place
from ggsched.passes.split import split
from ggsched.passes.streams.assign import assign
from ggsched.topology.model import Topology


def make_draft(
    graph: Graph, topology: Topology, constraints: Constraints, policy: StreamPolicy
) -> Draft:
    """Return placement, splits and streams of a graph as the planner chooses them, unfused."""
    rates = constraints.rates_on(topology)
    placement = place(graph, topology, constraints)
    splits = split(graph, topology, placement)
    streams = assign(graph, topology, splits, policy, rates)
    return Draft(graph, topology, placement, splits, streams, rates.source)
