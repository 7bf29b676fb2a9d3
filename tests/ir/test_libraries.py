"""Ops of libraries: found by their prefix, of up to eight axes, on devices that declare them."""

import subprocess
import sys

import numpy as np
import pytest

from ggsched import GraphBuilder, Scheduler
from ggsched.errors import GraphError, PlanError
from ggsched.ir.dtype import ARRAY_DTYPES
from ggsched.ir.ops import BUILT_IN, LIBRARY_KEYS, OPS
from ggsched.ir.text import parse_graph, print_graph
from ggsched.ops.nd import library
from ggsched.topology.caps import offers
from ggsched_testing.oracle.interpreter import run_oracle
from ggsched_testing.sim import SimConfig, SimWorld


def test_ops_are_found_by_name_and_not_listed():
    assert "nd.add" in OPS
    assert OPS["nd.add"].version
    assert "nd.no_such_op" not in OPS
    assert "other.add" not in OPS
    assert set(OPS).isdisjoint(library())
    assert tuple(OPS)[: len(BUILT_IN)] == BUILT_IN


def test_planning_other_graphs_does_not_load_a_library():
    code = (
        "import sys; import ggsched.plan, ggsched.passes, ggsched.sanitize;"
        "from ggsched.ir import GraphBuilder; g = GraphBuilder();"
        "g.build(g.silu(g.input('x', (2,)))); assert 'ggsched.ops.nd' not in sys.modules;"
        "assert 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("dtype", ARRAY_DTYPES, ids=str)
def test_each_type_is_moved_and_computed_with(dtype):
    g = GraphBuilder()
    x = g.input("x", (2, 1, 3, 1, 2, 1, 2), dtype)
    y = g.op("nd.transpose", x, perm=(6, 5, 4, 3, 2, 1, 0))
    graph = g.build(g.op("nd.equal", y, y), y)
    rng = np.random.default_rng(0)
    value = rng.integers(0, 2, x.shape).astype(dtype.host)
    with Scheduler(["cpu:0"]) as scheduler:
        same, moved = scheduler.run(graph, {"x": value}).values()
    assert same.dtype == np.bool_
    assert same.all()
    assert moved.dtype == value.dtype
    np.testing.assert_array_equal(moved, value.transpose())


@pytest.mark.parametrize(("images", "channels"), [(0, 2), (1, 0), (0, 0)])
@pytest.mark.parametrize(("op", "more"), [("conv", {}), ("conv_transpose", {"more": (0, 0)})])
def test_a_convolution_of_nothing_is_its_bias(op, more, images, channels):
    w = (4, channels, 3, 3) if op == "conv" else (channels, 4, 3, 3)
    bias = np.arange(4, dtype=np.float32)
    values = [np.zeros((images, channels, 5, 5), np.float32), np.zeros(w, np.float32), bias]
    how = {"strides": (1, 1), "dilations": (1, 1), "pads": (1,) * 4, "group": 1, "bias": True}
    found = library()[f"nd.{op}"].reference(*values, **how, **more)
    np.testing.assert_array_equal(found, np.broadcast_to(bias[:, None, None], (images, 4, 5, 5)))


@pytest.mark.parametrize("op", ["max_pool", "max_pool_indices", "average_pool", "lp_pool"])
def test_pools_without_images_or_channels_have_no_results(op):
    declared, window = library()[f"nd.{op}"], {"kernel": (3, 3), "pads": (1,) * 4}
    how = {**declared.defaults, "strides": (1, 1), "dilations": (1, 1), **window}
    for shape in ((0, 2, 5, 5), (1, 0, 5, 5)):
        assert declared.reference(np.zeros(shape, np.float32), **how).shape == shape


def test_built_in_ops_take_four_axes():
    g = GraphBuilder()
    x = g.input("x", (1,) * 5)
    with pytest.raises(GraphError, match="at most 4 axes"):
        g.silu(x)


def test_the_text_form_keeps_the_name():
    g = GraphBuilder()
    graph = g.build(g.op("nd.concat", g.input("x", (2, 3), "i64"), g.input("y", (1, 3), "i64")))
    assert parse_graph(print_graph(graph)) == graph


def test_a_device_declares_a_library_or_single_ops():
    assert offers(LIBRARY_KEYS, "nd.exp", "f64")
    assert offers(frozenset({"nd.exp:f32"}), "nd.exp", "f32")
    assert not offers(frozenset({"nd.exp:f32"}), "nd.exp", "f64")
    assert not offers(frozenset({"add:f32"}), "add", "i64")


def test_nodes_run_where_the_library_is():
    g = GraphBuilder()
    graph = g.build(g.op("nd.exp", g.silu(g.input("x", (4,)))))
    world = SimWorld([SimConfig(ops=frozenset({"silu:f32"})), SimConfig()])
    devices = [world.open(0), world.open(1)]
    with (
        Scheduler(devices[:1]) as scheduler,
        pytest.raises(PlanError, match=r"no device supports nd\.exp:f32"),
    ):
        scheduler.plan(graph)
    value = np.linspace(-1, 1, 4, dtype=np.float32)
    with Scheduler(devices, placement="ggml") as scheduler:
        plan = scheduler.plan(graph)
        assert [c.device for c in plan.placement.choices] == [0, 1]
        (found,) = scheduler.run(graph, {"x": value}).values()
    wanted = run_oracle(graph, {"x": value})[graph.outputs[0]]
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize("name", sorted(library()))
def test_a_definition_is_complete(name):
    op = library()[name]
    assert op.version
    assert op.reference.__doc__ or name.removeprefix("nd.").isidentifier()
    assert {o.rstrip("?*") for o in op.operands if o.endswith("?")} <= set(op.defaults)


@pytest.mark.parametrize(
    ("op", "shapes", "dtype", "params", "words"),
    [
        ("nd.add", [(2,), (3,)], "f32", {}, "do not broadcast"),
        ("nd.exp", [(2,)], "i64", {}, "operand 0 must be f32 or f16 or f64"),
        ("nd.transpose", [(2, 3)], "f32", {"perm": (0, 0)}, "not a permutation"),
        ("nd.concat", [(2, 3), (2, 4)], "f32", {"axis": 0}, "must agree"),
        ("nd.reduce_sum", [(2, 3)], "f32", {"axes": (2,)}, "axis 2 of 2"),
        ("nd.matmul", [(2, 3), (2, 3)], "f32", {}, "do not meet"),
        ("nd.conv", [(1, 2, 5), (1, 3, 3)], "f32", {"strides": (1,)}, "needs x"),
        ("nd.expand", [(1,)], "f32", {"shape": (1 << 40, 1 << 40)}, "would have shape"),
        ("nd.tile", [(1,)], "f32", {"repeats": (-1,)}, "a count for each axis"),
        ("nd.cast", [(1,)], "f32", {"to": "f8"}, "unknown element type"),
    ],
)
def test_refused(op, shapes, dtype, params, words):
    g = GraphBuilder()
    operands = [g.input(f"x{i}", s, dtype) for i, s in enumerate(shapes)]
    with pytest.raises(GraphError, match=words):
        g.op(op, *operands, **params)
