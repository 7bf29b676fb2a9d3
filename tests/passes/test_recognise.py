"""Attention that is decomposed becomes the op, and nothing else changes."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import F16, F32, dtype_by_name
from ggsched.ir.graph import verify_graph
from ggsched.passes.recognise import recognise_attention
from ggsched.scheduler import Scheduler
from ggsched_testing.generators.strategies import graphs
from ggsched_testing.generators.values import DrawnGraph, LeafRule, values_for
from ggsched_testing.oracle.interpreter import run_oracle
from tests.passes.machines import machine


def decomposed(tokens=3, heads=4, groups=2, n=7, kind="f32", *, merges=True, masked=True,
               sinks=True, between=None, also=False, inplace=False):  # fmt: skip
    """Return attention as two products and a softmax, and what reads its result."""
    g, dtype = GraphBuilder("decomposed"), dtype_by_name(kind)
    q = g.rope(g.input("q", (tokens, heads, 8)), g.input("at", (tokens,), dtype_by_name("i32")))
    caches = [g.state(name, (n + 2, groups * m), dtype) for name, m in (("k", 8), ("v", 6))]
    k, v = (
        g.reshape(g.rows(c, 1, n + 1), n, groups, m) for c, m in zip(caches, (8, 6), strict=True)
    )
    kq = g.mul_mat(g.permute(k, 1, 0, 2), g.permute(q, 1, 0, 2))
    mask = g.input("mask", (tokens, n)) if masked else None
    flags = {"mask": masked, "sinks": sinks, "scale": 0.5, "inplace": inplace}
    some = [t for t in (mask, g.input("sinks", (heads,)) if sinks else None) if t is not None]
    weights = g.op("soft_max", kq, *some, **flags)
    if between is not None:
        between(g, q, caches)
    kqv = g.mul_mat(g.permute(v, 1, 2, 0), weights)
    if merges:
        kqv = g.cont(g.permute(kqv, 1, 0, 2))
    out = g.mul_mat(g.weight("w", (5, heads * 6)), g.reshape(kqv, tokens, heads * 6))
    return g.build(out, *([weights] if also else []))


RULES = {"mask": LeafRule("mask"), "at": LeafRule("ids", bound=9)}


def ops(graph):
    return [n.op for n in graph.nodes]


WHAT = [
    {},
    {"kind": "f16"},
    {"kind": "bf16", "masked": False},
    {"tokens": 1, "merges": False},
    {"tokens": 1},
    {"heads": 1, "groups": 1, "merges": False, "sinks": False},
    {"heads": 6, "groups": 3, "n": 1},
]


@pytest.mark.parametrize("what", WHAT)
def test_recognised(what):
    graph = decomposed(**what)
    found = recognise_attention(graph, machine("cpu:0"))
    made = found.graph
    verify_graph(made)
    may_see_nothing = what.get("masked", True) and not what.get("sinks", True)
    assert ops(made).count("soft_max") == may_see_nothing  # of the mask
    assert ops(made).count("attention") == 1
    assert len(made.nodes) <= len(graph.nodes) - 2 + 4 * may_see_nothing
    values = values_for(DrawnGraph(graph, RULES), 0)
    rng = np.random.default_rng(0)
    states = {
        t.name: (rng.standard_normal(t.shape)).astype(np.float16 if t.dtype is F16 else np.float32)
        for t in graph.tensors
        if t.name in "kv" and not t.is_view and t.dtype in (F16, F32)
    }
    wanted = run_oracle(graph, values, states={k: s.copy() for k, s in states.items()})
    got = run_oracle(made, values, states={k: s.copy() for k, s in states.items()})
    for tid, array in wanted.items():
        np.testing.assert_allclose(got[found.tensor_of[tid]], array, 1e-5, 1e-5)


@pytest.mark.parametrize(
    "what",
    [
        {"merges": False, "tokens": 3, "heads": 1, "groups": 1, "also": True},  # shares are read
        {"inplace": True},
        {"between": lambda g, q, caches: g.scale(q, 2.0, inplace=True)},
        {"between": lambda g, q, caches: g.scale(caches[0], 2.0, inplace=True)},
    ],
)
def test_left_alone(what):
    assert recognise_attention(decomposed(**what), machine("cpu:0")) is None


def test_devices_without_the_op():
    topology = machine("cpu:0")
    bare = tuple(
        replace(f, ops=frozenset(key for key in f.ops if not key.startswith("attention")))
        for f in topology.devices
    )
    assert recognise_attention(decomposed(), replace(topology, devices=bare)) is None


@given(drawn=graphs())
def test_random_graphs_mean_the_same(drawn):
    found = recognise_attention(drawn.graph, machine("cpu:0"))
    if found is not None:
        values = values_for(drawn, 0)
        wanted, got = run_oracle(drawn.graph, values), run_oracle(found.graph, values)
        for tid, array in wanted.items():
            np.testing.assert_allclose(got[found.tensor_of[tid]], array, 1e-4, 1e-4)


def test_a_scheduler_runs_the_op_and_keeps_the_ids_of_outputs():
    graph = decomposed(tokens=4, n=50)
    values = values_for(DrawnGraph(graph, RULES), 1)
    (wanted,) = run_oracle(graph, values).items()
    inputs = {name: array for name, array in values.items() if name != "w"}
    with Scheduler(["cpu:0"], weights={"w": values["w"]}) as scheduler:
        assert "attention" in [n.op for n in scheduler.plan(graph).nodes]
        got = scheduler.run(graph, inputs)
    assert list(got) == [wanted[0]]
    np.testing.assert_allclose(got[wanted[0]], wanted[1], 1e-4, 1e-4)


def test_constants_stay():
    g = GraphBuilder()
    q, k = (g.input(n, (4, 2, 8)) for n in "qk")
    mask = g.constant(np.where(np.tri(4), 0, -np.inf).astype(np.float32))
    shares = g.soft_max(g.mul_mat(g.permute(k, 1, 0, 2), g.permute(q, 1, 0, 2)), mask)
    heads = g.mul_mat(g.permute(k, 1, 2, 0), shares)
    graph = g.build(g.cont(g.permute(heads, 1, 0, 2)))
    made = recognise_attention(graph, machine("cpu:0")).graph
    assert ops(made).count("attention") == 1
    assert made.constants == graph.constants != {}


@pytest.mark.parametrize("sinks", [True, False])
@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("constant", [True, False])
def test_rows_that_see_nothing_mean_what_the_softmax_means(sinks, tokens, constant):
    """They were zeros without sinks, where the nodes give NaN."""
    g = GraphBuilder()
    q, k = g.input("q", (tokens, 2, 8)), g.input("k", (5, 2, 8))
    hidden = np.zeros((tokens, 5), np.float32)
    hidden[0], hidden[-1, 0] = -np.inf, -np.inf
    mask = g.constant(hidden) if constant else g.input("mask", (tokens, 5))
    some = (mask, g.input("sinks", (2,))) if sinks else (mask,)
    scores = g.mul_mat(g.permute(k, 1, 0, 2), g.permute(q, 1, 0, 2))
    shares = g.op("soft_max", scores, *some, mask=True, sinks=sinks)
    heads = g.mul_mat(g.permute(k, 1, 2, 0), shares)
    graph = g.build(g.cont(g.permute(heads, 1, 0, 2)))
    made = recognise_attention(graph, machine("cpu:0"))
    values = values_for(DrawnGraph(graph, {"mask": LeafRule("mask")}), 0)
    values[mask.name] = hidden
    (wanted,), (got,) = (run_oracle(some, values).values() for some in (graph, made.graph))
    assert "attention" in ops(made.graph)
    assert np.isnan(wanted[0]).all() != sinks
    np.testing.assert_allclose(got, wanted, 1e-5, 1e-5)
