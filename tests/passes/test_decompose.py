"""Nodes become others where their device has kernels for those and none for their op."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggsched.backend.base import BaseDevice, host_facts
from ggsched.errors import PlanError, UsageError
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import dtype_by_name
from ggsched.ir.graph import verify_graph
from ggsched.ir.ops import BUILT_IN, OPS
from ggsched.ir.user_ops import Sample, register_op
from ggsched.passes.decompose import decomposable, decompose_nodes
from ggsched.passes.decomposed_plan import decomposed_plan
from ggsched.passes.options import PlanOptions
from ggsched.passes.pipeline import make_plan
from ggsched.passes.place import Constraints
from ggsched.passes.placement.named import placement_policy
from ggsched.plan.text import missing_ops
from ggsched.sanitize import check_plan
from ggsched.scheduler import Scheduler
from ggsched_testing.generators.strategies import graphs, seeds
from ggsched_testing.generators.topologies import constraints, topologies
from ggsched_testing.generators.values import ATOL, RTOL, DrawnGraph, LeafRule, values_for
from ggsched_testing.oracle.interpreter import run_oracle
from tests.passes.machines import device, machine
from tests.support.verified_plans import verified_plan

DECOMPOSITIONS = tuple(op for op in BUILT_IN if OPS[op].decompose is not None)
OTHERS = tuple(op for op in BUILT_IN if op not in ("linear_attention", "short_conv"))
DRAWN = graphs(ops=(*DECOMPOSITIONS, *DECOMPOSITIONS, *OTHERS))
"""Random graphs, mostly of what can be decomposed."""


def values_of(drawn, seed):
    """Return values for which the decomposition of bounds is defined: within [0, N]."""
    values = values_for(drawn, seed)
    for name, rule in drawn.rules.items():
        if rule.kind == "bounds":
            values[name] = values[name].clip(0, rule.bound)
    return values


def agrees(graph, other, values):
    wanted, got = run_oracle(graph, values), run_oracle(other, values)
    for tid, array in wanted.items():
        np.testing.assert_allclose(got[tid], array, RTOL, ATOL)


def everything(graph, topology):
    """Decompose what can be, on device 0."""
    wider = decomposable(graph, topology).devices[0]
    lacks = wider.ops - topology.devices[0].ops
    keys = {n.id: f"{n.op}:{graph.tensors[n.inputs[0]].dtype}" for n in graph.nodes}
    return decompose_nodes(graph, topology, {i: 0 for i, key in keys.items() if key in lacks})


class TestMeaning:
    @settings(max_examples=50)
    @given(
        drawn=DRAWN,
        seed=seeds(),
        lacks=st.sets(st.sampled_from(sorted(DECOMPOSITIONS)), min_size=1),
    )
    def test_stays(self, drawn, seed, lacks):
        found = everything(drawn.graph, machine(device("gpu:0", lacks=lacks)))
        verify_graph(found.graph)
        assert len(found.origin) == len(found.graph.nodes)
        assert found.graph.outputs == drawn.graph.outputs
        agrees(drawn.graph, found.graph, values_of(drawn, seed))

    @pytest.mark.parametrize("op", sorted(DECOMPOSITIONS))
    def test_of_each_op(self, op):
        """Every one is decomposed in some graph that is drawn from it alone."""
        seen = []

        @settings(max_examples=12)
        @given(drawn=graphs(ops=[op], min_nodes=2), seed=seeds())
        def look(drawn, seed):
            found = everything(drawn.graph, machine(device("gpu:0", lacks=[op])))
            if any(n.op == op for n in drawn.graph.nodes):
                assert all(n.op != op for n in found.graph.nodes) or op == "attention"
                seen.append(op)
                agrees(drawn.graph, found.graph, values_of(drawn, seed))

        look()
        assert seen

    @pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "q8_0"])
    @pytest.mark.parametrize("tokens", [1, 5])
    def test_attention_by_blocks_of_queries(self, monkeypatch, kind, tokens):
        two_queries = 2 * 4 * 40 * 4
        monkeypatch.setattr("ggsched.ops.attention.SCORES_NBYTES", two_queries)
        g, dtype = GraphBuilder(), dtype_by_name(kind)
        k, v = (g.weight(n, (40, 2, 32), dtype) for n in "kv")
        q, mask = g.input("q", (tokens, 4, 32)), g.input("mask", (4, tokens, 40))
        sinks, bounds = g.input("sinks", (4,)), g.input("bounds", (tokens, 2), "i32")
        how = {"mask": mask, "sinks": sinks, "scale": 0.2, "soft_cap": 3.0}
        graph = g.build(g.attention(q, k, v, bounds=bounds, **how), g.attention(q, k, v, mask=mask))
        found = everything(graph, machine(device("gpu:0", lacks=["attention"])))
        ops = [n.op for n in found.graph.nodes]
        assert ops.count("soft_max") == 2 * (3 if tokens > 1 else 1)
        rules = {"mask": LeafRule("mask"), "bounds": LeafRule("bounds", bound=40)}
        agrees(graph, found.graph, values_of(DrawnGraph(graph, rules), 3))

    def test_what_is_seen_by_nobody_is_zero(self):
        g = GraphBuilder()
        q, k = g.input("q", (4, 2, 8)), g.input("k", (6, 2, 8))
        mask, bounds = g.input("mask", (4, 6)), g.input("bounds", (4, 2), "i32")
        graph = g.build(g.attention(q, k, k, mask=mask, bounds=bounds))
        found = everything(graph, machine(device("gpu:0", lacks=["attention"]))).graph
        rng = np.random.default_rng(0)
        values = {n: rng.standard_normal(t.shape).astype(np.float32) for n, t in
                  (("q", q), ("k", k), ("mask", mask))}  # fmt: skip
        values["mask"][1] = -np.inf
        values["mask"][2, :3] = -np.inf
        values["bounds"] = np.array([[2, 2], [0, 6], [0, 3], [5, 1]], np.int32)
        (result,) = run_oracle(found, values).values()
        assert (result == 0).all()

    def test_what_layers_share_is_computed_once(self):
        g = GraphBuilder()
        x, bounds = g.input("x", (4, 2, 8)), g.input("bounds", (4, 2), "i32")
        for _ in range(3):
            x = g.attention(x, x, x, bounds=bounds)
        found = everything(g.build(x), machine(device("gpu:0", lacks=["attention"]))).graph
        ops = [n.op for n in found.nodes]
        assert (ops.count("get_rows"), ops.count("soft_max")) == (1, 3)
        assert len(found.constants) == 1


class TestWhere:
    OPTIONS = PlanOptions()

    def layer(self):
        g = GraphBuilder("layer")
        x, w = g.input("x", (4, 2, 64)), g.weight("w", (128, 128))
        y = g.attention(x, x, x, name="attn")
        return g.build(y=g.mul_mat(w, g.reshape(y, 4, 128)))

    def decomposed(self, graph, topology, wanted=Constraints(), policy="ggml"):  # noqa: B008
        policy = placement_policy(policy)
        return decomposed_plan(graph, topology, wanted, self.OPTIONS, policy)

    def test_nothing_where_all_have_the_op(self):
        assert self.decomposed(self.layer(), machine("gpu:0", "cpu:0")) is None
        bare = device("gpu:0", lacks=["attention", "soft_max"])
        assert self.decomposed(self.layer(), machine(bare, "cpu:0")) is None

    @pytest.mark.parametrize("policy", ["ggml", "cost", "auto"])
    def test_only_where_no_device_has_it(self, policy):
        topology = machine(device("gpu:0", lacks=["attention"]))
        found = self.decomposed(self.layer(), topology, policy=policy)
        plan = verified_plan(found.graph, topology, found.constraints)
        assert "attention" not in [n.op for n in plan.nodes]
        assert found.origin[-1] == 1
        assert set(found.origin[:-1]) == {0}
        (line,) = missing_ops(plan)
        assert line == f"gpu:0 has no 'attention': decomposed into {len(plan.nodes) - 1} nodes"
        assert {n.label for n in plan.nodes[:-1]} == {"attn"}
        as_it_is, taken = plan.placement.candidates
        assert "no device supports attention" in as_it_is.reason
        assert (taken.name, taken.is_taken) == ("attention decomposed on gpu:0", True)

    def test_pinned(self):
        topology = machine("cpu:0", device("gpu:0", lacks=["attention"]))
        found = self.decomposed(self.layer(), topology, Constraints(pins={0: 1}))
        plan = verified_plan(found.graph, topology, found.constraints)
        assert {c.device for c in plan.placement.choices[:-1]} == {1}
        assert all(c.cause == "decomposed" for c in plan.placement.choices[:-1])
        assert "pin gpu:0" in plan.placement.choices[0].detail

    def test_as_predicted(self):
        """It is decided by the plans with and without, in both directions."""
        graph = self.layer()
        topology = machine(device("gpu:0", lacks=["attention"]), "cpu:0")
        rates = Constraints().rates_on(topology)
        far = {pair: replace(link, latency_s=1.0) for pair, link in rates.links.items()}
        apart = replace(rates, links=far)
        homes = {"w": 0}
        found = self.decomposed(graph, topology, Constraints(homes, rates=apart))
        assert found is not None
        slow = replace(rates.devices[0], bandwidth=1e6, total_bandwidth=1e6)
        near = replace(rates, devices=(slow, rates.devices[1]))
        assert self.decomposed(graph, topology, Constraints(homes, rates=near)) is None

    @settings(max_examples=50)
    @given(drawn=DRAWN, topology=topologies(max_devices=3), data=st.data())
    def test_checker_finds_nothing(self, drawn, topology, data):
        bare = tuple(
            replace(d, ops=frozenset(k for k in d.ops if k.split(":")[0] not in DECOMPOSITIONS))
            for d in topology.devices
        )
        some = replace(topology, devices=bare)
        wanted = data.draw(constraints(drawn.graph, topology))
        found = self.decomposed(drawn.graph, some, wanted)
        if found is not None:
            assert found.constraints.placed is not None
            plan = verified_plan(found.graph, some, found.constraints)
            assert check_plan(plan, graph=found.graph).is_clean

    def test_memory_is_that_of_a_block(self, monkeypatch):
        """Twice the queries take no more memory for scores."""

        def scores(tokens):
            g = GraphBuilder()
            q, k = g.input("q", (tokens, 8, 16)), g.input("k", (512, 8, 16))
            topology = machine(device("gpu:0", lacks=["attention"]))
            found = self.decomposed(g.build(g.attention(q, k, k)), topology)
            plan = make_plan(found.graph, topology, found.constraints)
            rows = 3 * tokens * 8 * 16 * 4 + 2 * 512 * 8 * 16 * 4
            return sum(a.nbytes for a in plan.memory.arenas if a.device == 0) - rows

        monkeypatch.setattr("ggsched.ops.attention.SCORES_NBYTES", 64 * 8 * 512 * 4)
        assert scores(512) < 3 * 64 * 8 * 512 * 4
        assert scores(1024) < 1.5 * scores(512)


def _soft_max(out, inputs, params):
    assert not params["sinks"]
    x = inputs[0] * params["scale"] + (inputs[1] if params["mask"] else 0)
    e = np.exp(x - x.max(-1, keepdims=True))
    out[...] = e / e.sum(-1, keepdims=True)


def _mul_mat(out, inputs, params):
    w, x = inputs
    w = w.reshape((1,) * (x.ndim - w.ndim) + w.shape)
    for axis in range(x.ndim - 2):
        w = np.repeat(w, x.shape[axis] // w.shape[axis], axis)
    out[...] = x @ np.swapaxes(w, -1, -2)


KERNELS = {
    "add": lambda out, x, _: np.add(*x, out=out),
    "mul": lambda out, x, _: np.multiply(*x, out=out),
    "scale": lambda out, x, p: np.copyto(out, x[0] * p["scale"] + p["bias"]),
    "tanh": lambda out, x, _: np.tanh(x[0], out=out),
    "cont": lambda out, x, _: np.copyto(out, x[0]),
    "soft_max": _soft_max,
    "mul_mat": _mul_mat,
}
"""What a stranger's plug-in might have."""


@pytest.fixture
def stranger():
    facts = host_facts("minimal", [f"{op}:f32" for op in KERNELS], name="minimal:0")
    return BaseDevice(facts, KERNELS)


def small_model():
    g = GraphBuilder("small model")
    x, w = g.input("x", (6, 32)), [g.weight(f"w{i}", (32, 32)) for i in range(5)]
    q, k, v = (g.reshape(g.mul_mat(w[i], x), 6, 4, 8) for i in range(3))
    causal = np.where(np.tri(6), 0, -1e9).astype(np.float32)
    logits = g.soft_max(g.mul_mat(g.permute(k, 1, 0, 2), g.permute(q, 1, 0, 2)), g.constant(causal))
    mixed = g.mul_mat(g.permute(v, 1, 2, 0), logits)
    first = g.reshape(g.cont(g.permute(mixed, 1, 0, 2)), 6, 32)
    heads = g.attention(q, k, v, scale=0.3, name="attn")
    y = g.add(first, g.swiglu(g.mul_mat(w[3], g.reshape(heads, 6, 32)), g.sub(x, first)))
    return g.build(y=g.mul_mat(w[4], y))


class TestPlugIn:
    def test_runs_a_small_model_entirely_on_its_device(self, stranger):
        graph = small_model()
        drawn = values_for(DrawnGraph(graph, {}), 0)
        values = {name: array for name, array in drawn.items() if name not in graph.constants}
        weights = {n: a for n, a in values.items() if n != "x"}
        with Scheduler([stranger], weights=weights) as scheduler:
            plan = scheduler.plan(graph)
            for _ in range(2):
                y = scheduler.run(graph, {"x": values["x"]})["y"]
            scheduler.forget(graph)
            np.testing.assert_array_equal(scheduler.run(graph, {"x": values["x"]})["y"], y)
        assert {n.op for n in plan.nodes} <= set(KERNELS)
        (wanted,) = run_oracle(graph, values).values()
        np.testing.assert_allclose(y, wanted, 1e-5, 1e-5)

    def test_what_cannot_be_decomposed_is_refused(self, stranger):
        g = GraphBuilder()
        graph = g.build(g.gelu(g.input("x", (4,))))
        with (
            Scheduler([stranger]) as scheduler,
            pytest.raises(PlanError, match="no device supports gelu:f32"),
        ):
            scheduler.plan(graph)


def hyper(g, x, *, gain):
    return g.mul(g.sub(x, g.tanh(x)), gain)


@pytest.fixture
def register(registries_restored):
    def made(name="hyper", **changes):
        given = {
            "version": "1",
            "operands": ("x",),
            "params": {"gain": 1.0},
            "in_place": (0,),
            "reference": lambda x, gain: gain * (x - np.tanh(x)),
            "decompose": hyper,
            "samples": [Sample([(3, 4)])],
        }
        register_op(name, **{**given, **changes})

    return made


class TestUserOps:
    @pytest.mark.parametrize("inplace", [False, True])
    def test_is_decomposed(self, stranger, register, inplace):
        register()
        kernels = {**KERNELS, "cpy": lambda out, x, _: np.copyto(out, x[0])}
        facts = replace(stranger.facts, ops=stranger.facts.ops | {"cpy:f32"})
        g = GraphBuilder()
        x = g.scale(g.input("x", (2, 5)), 2.0)
        graph = g.build(y=g.op("hyper", x, gain=3.0, inplace=inplace))
        value = np.linspace(-1, 1, 10, dtype=np.float32).reshape(2, 5)
        with Scheduler([BaseDevice(facts, kernels)]) as scheduler:
            y = scheduler.run(graph, {"x": value})["y"]
        np.testing.assert_allclose(y, 3 * (2 * value - np.tanh(2 * value)), 1e-5, 1e-6)

    @pytest.mark.parametrize(
        ("decomposition", "message"),
        [
            (lambda g, x, gain: g.sum_rows(x), r"returned f32\[3, 1\] instead of f32\[3, 4\]"),
            (lambda g, x, gain: None, "returned None instead of"),
            (lambda g, x, gain: g.nothing(x), "decompose raised AttributeError"),
            (lambda g, x, gain: g.add(x, g.input("y", (3, 4))), "adds an input, a weight or a st"),
        ],
    )
    def test_a_wrong_one_is_refused(self, register, decomposition, message):
        with pytest.raises(UsageError, match=message):
            register(decompose=decomposition)

    def test_by_itself(self, stranger, register):
        register("hyper", decompose=lambda g, x, gain: g.op("hyper" if gain else "tanh", x),
                 samples=[Sample([(3, 4)], {"gain": 0.0})])  # fmt: skip
        g = GraphBuilder()
        graph = g.build(g.op("hyper", g.input("x", (3, 4))))
        with Scheduler([stranger]) as scheduler, pytest.raises(PlanError, match="no device supp"):
            scheduler.plan(graph)

    def test_message_of_a_decomposition_that_fails_later(self, stranger, register):
        def odd(g, x, gain):
            assert x.shape[0] != 7, "seven rows"
            return g.tanh(x)

        register(decompose=odd)
        g = GraphBuilder()
        graph = g.build(g.op("hyper", g.input("x", (7, 4))))
        with (
            Scheduler([stranger]) as scheduler,
            pytest.raises(PlanError, match=re.escape("no device supports hyper:f32")),
        ):
            scheduler.plan(graph)
