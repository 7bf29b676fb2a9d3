"""Costs of many nodes at once are those of each."""

from dataclasses import replace

import pytest

from ggsched.ir.builder import GraphBuilder
from ggsched.passes.cost.work_size import node_cost, node_works, work_costs
from ggsched.testing.plan_builder import fake_device
from ggsched.topology.cost import KernelRate, rates_of


@pytest.mark.parametrize("streams", [1, 4])
def test_many_nodes_cost_what_each_does(streams):
    g = GraphBuilder("mixed")
    x, w = g.input("x", (8, 64)), g.weight("w", (64, 64))
    y = g.mul_mat(w, g.silu(g.mul_mat(w, x)))
    graph = g.build(g.add(g.mul(x, y), y))
    rates = rates_of(fake_device("cpu:0", kind="cpu"))
    rates = replace(rates, kernels=(KernelRate("mul_mat:f32", 1e9, 1e9),))
    each = [node_cost(rates, graph, node, streams) for node in graph.nodes]
    assert work_costs(rates, node_works(graph, graph.nodes), streams) == each
    assert each[0] > node_cost(replace(rates, kernels=()), graph, graph.nodes[0], streams)
