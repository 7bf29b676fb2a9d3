"""Random graphs of the op library over random devices mean what the oracle says."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ggsched import GraphBuilder, Scheduler
from ggsched_testing.oracle.interpreter import run_oracle
from ggsched_testing.schedule_policy import RandomPolicy
from ggsched_testing.sim import SimConfig, SimWorld

UNARY = ("exp", "abs", "neg", "sigmoid", "relu", "copy", "floor")
BINARY = ("add", "mul", "max", "sub", "min")
TYPES = ("f32", "f64", "i64", "i32", "u8")


@st.composite
def graphs(draw):
    """Return a graph of up to twelve nodes and the values of its inputs."""
    g = GraphBuilder()
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=6)))
    values, known = {}, []
    for i in range(draw(st.integers(1, 2))):
        dtype = draw(st.sampled_from(TYPES))
        t = g.input(f"x{i}", shape, dtype)
        values[t.name] = rng.integers(0, 4, shape).astype(t.dtype.host)
        known.append(t)
    for _ in range(draw(st.integers(1, 12))):
        known.append(_node(draw, g, known))
    return g.build(*known[-2:]), values


def _node(draw, g, known):
    x = draw(st.sampled_from(known))
    n = len(x.shape)
    match draw(st.sampled_from(("unary", "binary", "turn", "sum", "cast", "join", "cut"))):
        case "unary" if x.dtype.name in ("f32", "f64"):
            return g.op("nd." + draw(st.sampled_from(UNARY)), x)
        case "binary" if x.dtype.kind != "bool":
            partners = [t for t in known if t.dtype is x.dtype and t.shape == x.shape]
            y = draw(st.sampled_from(partners))
            return g.op("nd." + draw(st.sampled_from(BINARY)), x, y)
        case "turn":
            return g.op("nd.transpose", x, perm=tuple(draw(st.permutations(range(n)))))
        case "sum" if n and x.dtype.kind != "bool":
            axis = draw(st.integers(0, n - 1))
            return g.op("nd.reduce_sum", x, axes=(axis,), keepdims=draw(st.booleans()))
        case "cast":
            return g.op("nd.cast", x, to=draw(st.sampled_from(TYPES)))
        case "join" if n and x.size < 200:
            return g.op("nd.concat", x, x, x, axis=draw(st.integers(0, n - 1)))
        case "cut" if n:
            steps = tuple(draw(st.sampled_from((1, -1))) for _ in range(n))
            pairs = list(zip(x.shape, steps, strict=True))
            starts = tuple(m - 1 if s < 0 else 0 for m, s in pairs)
            stops = tuple(-1 if s < 0 else m for m, s in pairs)
            return g.op("nd.slice", x, starts=starts, stops=stops, steps=steps)
    return g.op("nd.copy", x)


@given(drawn=graphs(), seed=st.integers(0, 1000), data=st.data())
def test_plans_over_devices_with_some_of_the_ops(drawn, seed, data):
    graph, values = drawn
    used = sorted({(n.op, graph.tensors[n.inputs[0]].dtype.name) for n in graph.nodes})
    some = data.draw(st.sets(st.sampled_from([f"{op}:{t}" for op, t in used])))
    configs = [SimConfig(ops=frozenset(some)), SimConfig()]
    world = SimWorld(configs, policy=RandomPolicy(seed))
    with np.errstate(all="ignore"):
        wanted = run_oracle(graph, values)
        with Scheduler([world.open(0), world.open(1)]) as scheduler:
            found = scheduler.run(graph, values)
    for tid, value in wanted.items():
        np.testing.assert_array_equal(found[tid], value)


@given(drawn=graphs())
def test_the_cpu_computes_as_the_oracle(drawn):
    graph, values = drawn
    with np.errstate(all="ignore"):
        wanted = run_oracle(graph, values)
    with Scheduler(["cpu:0"]) as scheduler:
        found = scheduler.run(graph, values)
    for tid, value in wanted.items():
        assert found[tid].dtype == value.dtype
        if value.dtype.kind == "f":
            np.testing.assert_allclose(found[tid], value, rtol=1e-5, atol=1e-6)
