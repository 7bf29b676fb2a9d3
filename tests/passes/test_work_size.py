"""Costs of many nodes at once are those of each."""

from dataclasses import replace

import pytest

from ggsched.ir.builder import GraphBuilder
from ggsched.passes.cost.work_size import node_cost, node_works, work_costs
from ggsched.topology.cost import KernelRate, rates_of, with_kernel
from ggsched_testing.plan_builder import fake_device


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


def test_a_product_that_was_measured_is_not_capped_by_a_guess():
    g = GraphBuilder("one")
    w, x = g.weight("w", (4096, 4096)), g.input("x", (1, 4096))
    graph = g.build(g.mul_mat(w, x))
    rates = rates_of(fake_device("cpu:0", kind="cpu"))
    fast = 4 * rates.total_bandwidth
    measured = with_kernel(rates, KernelRate("mul_mat:f32", 1e15, fast))
    seconds = node_cost(measured, graph, graph.nodes[0])
    assert seconds == pytest.approx(rates.node_s + 4 * (4096 * 4096 + 2 * 4096) / fast)
