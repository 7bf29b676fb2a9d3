"""Samples: every op says its family once, and what gives the rate of a family is of that family."""

import pytest

from ggsched.ir.ops import BUILT_IN, op_by_name
from ggsched.ops.nd import library
from ggsched.ops.record import ELEMENTS, PRODUCTS, SORTED_LENGTHS, sorted_rows
from ggsched.passes.cost.work_size import node_work
from ggsched.topology.cost import KernelRate, Rates, Work, node_seconds
from ggsched_calibrate.samples import RECIPES, samples
from ggsched_testing.plan_builder import fake_device

EVERY = fake_device("fake:0", ops=frozenset({"nd.*"}) | {f"{op}:f32" for op in BUILT_IN})
FAMILIES, OTHERS = samples(EVERY)
NOT_SAMPLED = {
    "add_id", "rope", "short_conv", "linear_attention", "set_rows",  # of language models
    "nd.one_hot", "nd.reverse_sequence", "nd.det", "nd.along",
    "nd.matmul_i32",
}  # fmt: skip
"""Operands have other shapes; the rate of the family stands for these."""


def graphs():
    for name, makers in {**FAMILIES, **OTHERS}.items():
        for number, make in enumerate(makers):
            yield pytest.param(name, make, id=f"{name} {number}")


@pytest.mark.parametrize(("name", "make"), list(graphs()))
def test_a_sample_is_one_node_of_its_family(name, make):
    small, large = make(1), make(8)
    assert len(small.nodes) == 1
    work, more = (node_work(graph, graph.nodes[0]) for graph in (small, large))
    assert name in (work.family, work.op + work.family[len(work.family.partition(":")[0]) :])
    grown = more.flops / max(work.flops, 1), more.nbytes / work.nbytes, more.steps / work.steps
    assert max(grown) > 6


def test_every_op_has_a_rate_of_its_own_or_of_its_family():
    found = {make(1).nodes[0].op for makers in OTHERS.values() for make in makers}
    assert set(FAMILIES) == set(RECIPES) - {ELEMENTS}
    for name in (*BUILT_IN, *library()):
        op = op_by_name(name)
        if op.family == PRODUCTS:
            continue
        assert (name in found) == (name not in NOT_SAMPLED), name
        assert not isinstance(op.family, str) or op.family in (*RECIPES, PRODUCTS)


@pytest.mark.parametrize(("length", "taken", "family"), [
    (100, 1, "sort:first-of-256"), (100, 50, "sort:all-of-256"), (2048, 8, "sort:first-of-2048"),
    (50_000, 50_000, f"sort:all-of-{SORTED_LENGTHS[-1]}"),
])  # fmt: skip
def test_rows_are_sorted_by_kernels_for_their_length(length, taken, family):
    assert sorted_rows(length, taken) == family
    assert family in RECIPES


def rates(*kernels, **more):
    return Rates(1e9, 1e9, 1e12, 1, 1e-6, 1e-6, kernels=kernels, **more)


def test_the_rate_of_the_op_counts_then_that_of_the_family_then_that_of_elements():
    known = [KernelRate(ELEMENTS, 1.0, 1.0), KernelRate("pool", 2.0, 2.0)]
    own = KernelRate("nd.lp_pool", 3.0, 3.0)
    assert rates(*known, own).of_kernel("nd.lp_pool", "pool").flops == 3.0
    assert rates(*known).of_kernel("nd.lp_pool", "pool").flops == 2.0
    assert rates(*known, caution=4.0).of_kernel("nd.lp_pool", "pool").flops == 0.5
    assert rates(*known[:1]).of_kernel("nd.lp_pool", "pool").flops == 1.0
    assert rates().of_kernel("nd.lp_pool", "pool").flops == 1e9
    assert rates(KernelRate("nd.conv:2d", 7.0, 7.0)).of_kernel("nd.conv", "conv:2d").flops == 7.0


def test_what_is_like_products_is_not_priced_by_elements():
    """A convolution was predicted by the rate of sums of vectors."""
    known = rates(KernelRate(ELEMENTS, 1.0, 1.0))
    for family in ("conv:2d", "conv_transpose", "matmul", "recurrent"):
        assert known.of_kernel("x", family).flops == 1e9


def test_each_step_of_a_sequence_has_a_latency():
    known = rates(KernelRate("recurrent", 1e12, 1e12, step_s=1e-3))
    one, many = (Work("nd.lstm", "recurrent", 1e3, 1e3, steps) for steps in (1, 65))
    assert node_seconds(known, many) - node_seconds(known, one) == pytest.approx(64e-3)
