"""User-defined ops: what can be registered, and what graphs make of it."""

import numpy as np
import pytest

from ggsched.errors import GraphError, UsageError
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import F16, I32
from ggsched.ir.ops import BUILT_IN, OPS
from ggsched.ir.user_ops import Sample, SourceKernel, register_op, unregister_op

pytestmark = pytest.mark.usefixtures("registries_restored")


def register(name="sqr", **changes):
    given = {
        "version": "1",
        "operands": ("x",),
        "reference": lambda x: x * x,
        "samples": [Sample([(3, 4)])],
    }
    register_op(name, **{**given, **changes})


def test_a_graph_with_it():
    register(in_place=(0,), params={"gain": 1.0}, reference=lambda x, gain: gain * x * x)
    g = GraphBuilder()
    x = g.input("x", (3, 4))
    y = g.op("sqr", x, gain=2)
    z = g.op("sqr", y, inplace=True)
    graph = g.build(z)
    assert (y.dtype.name, y.shape) == ("f32", (3, 4))
    assert graph.nodes[0].params == {"gain": 2.0}
    assert [n.modes for n in graph.nodes] == ["rw", "rw"]
    assert z.storage == y.storage


def test_shapes_and_types():
    register(
        "pairs",
        operands=("x", "ids:i32", "w:f16|f32"),
        shape=lambda x, ids, w, k: (*ids, x[-1] // k),
        dtype=lambda x, ids, w, k: w,
        params={"k": 2},
        samples=[Sample([(3, 4), (2,), (1,)])],
        reference=lambda *a, **k: a[0],
    )
    g = GraphBuilder()
    made = g.op("pairs", g.input("x", (3, 8)), g.input("i", (5,), I32), g.weight("w", (1,), F16))
    assert (made.dtype, made.shape) == (F16, (5, 4))
    with pytest.raises(GraphError, match="operand 1 must be i32"):
        g.op("pairs", g.input("a", (3, 8)), g.input("b", (5,)), g.weight("c", (1,), F16))


def test_operands_broadcast_to_the_first_by_default():
    register("both", operands=("a", "b"), reference=np.add, samples=[Sample([(3, 4), (4,)])])
    g = GraphBuilder()
    a, b = g.input("a", (3, 4)), g.input("b", (3,))
    with pytest.raises(GraphError, match="do not broadcast"):
        g.op("both", a, b)


def test_an_error_of_the_shape_rule_names_op_and_operands():
    def shape(x):
        raise ValueError("rows must come in pairs")

    register(shape=shape)
    g = GraphBuilder()
    with pytest.raises(GraphError, match=r"sqr: ValueError: rows .* pairs, given x:f32\[3"):
        g.op("sqr", g.input("x", (3, 4)))


def graph_of_sqr():
    g = GraphBuilder()
    return g.build(g.op("sqr", g.input("x", (3, 4))))


def test_the_version_is_part_of_the_digest():
    register()
    first = graph_of_sqr().digest
    assert graph_of_sqr().digest == first
    unregister_op("sqr")
    register(version="2")
    assert graph_of_sqr().digest != first


def test_built_in_ops_stay():
    register()
    assert set(OPS) == {*BUILT_IN, "sqr"}
    unregister_op("sqr")
    assert tuple(OPS) == BUILT_IN
    with pytest.raises(UsageError, match="not a user-defined op"):
        unregister_op("add")
    with pytest.raises(TypeError):
        OPS["add"] = None


CUDA = SourceKernel("", "f", ("x", "out"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "add"}, "the name is taken: a built-in op"),
        ({"name": "Sqr!"}, "invalid name"),
        ({"version": ""}, "the version is empty"),
        ({"operands": ()}, "needs an operand"),
        ({"operands": ("x:f33",)}, "f33"),
        ({"operands": ("x", "x")}, "invalid name of an operand"),
        ({"operands": ("out",)}, "invalid name of an operand"),
        ({"in_place": (1,)}, "there is no operand 1"),
        ({"rows": (0, 1)}, "there is no operand 1"),
        ({"samples": []}, "needs a sample"),
        ({"samples": [Sample([(3,), (4,)])]}, "2 shapes for 1 operands"),
        ({"samples": [Sample([(3,)], kinds={"y": "ids"})]}, "names 'y'"),
        ({"kernels": {"cpu": 3}}, "must be callable"),
        ({"kernels": {"opencl": "square"}}, "must be a SourceKernel or a function"),
        ({"kernels": {"cuda": SourceKernel("", "f", ("x", "y"))}}, "argument 'y'"),
        ({"kernels": {"cuda": SourceKernel("", "f", ("x", "size:y"))}}, "argument 'size:y'"),
        ({"kernels": {"cuda": SourceKernel("", "f", ("x",), lanes=0)}}, "0 lanes"),
    ],
)
def test_what_is_refused(changes, message):
    with pytest.raises(UsageError, match=message):
        register(**changes)
    assert tuple(OPS) == BUILT_IN


def test_a_name_is_registered_once():
    register()
    with pytest.raises(UsageError, match="registered already"):
        register()
