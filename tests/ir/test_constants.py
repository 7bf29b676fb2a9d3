"""Arrays as operands: constants whose data travels with the graph."""

import array
import pickle
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ggsched.errors import GraphError
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.constants import read_array
from ggsched.ir.dtype import ARRAY_DTYPES, dtype_by_name
from ggsched.ir.join import join_graphs
from ggsched.ir.text import parse_graph, print_graph
from ggsched.scheduler import Scheduler
from ggsched_testing.oracle.interpreter import run_oracle

X = np.arange(12, dtype=np.float32).reshape(3, 4) + 1
ROW = np.array([1.0, 2.0, 4.0, 0.5])

CASES = {
    "right": lambda x: x + ROW - ROW / 2 * x,
    "left": lambda x: ROW - x,
    "quotient": lambda x: ROW / x,
    "the larger": lambda x: x + np.ones((2, 3, 4), np.float32),
    "product": lambda x: x @ np.eye(4, 5),
    "product from the left": lambda x: np.ones((2, 3)) @ x,
    "comparison": lambda x: x > ROW,
    "comparison from the left": lambda x: ROW >= x,  # noqa: SIM300
    "whole numbers": lambda x: x * np.arange(4),
    "half": lambda x: x * ROW.astype(np.float16),
    "scalar of numpy": lambda x: x + np.float32(0.5),
    "strided": lambda x: x + np.arange(8, dtype=np.float32)[::2],
}


def built(function, shape=(3, 4), dtype="f32"):
    g = GraphBuilder()
    return g.build(function(g.input("x", shape, dtype)))


@pytest.mark.parametrize("name", CASES)
def test_as_in_numpy(name):
    graph = built(CASES[name])
    wanted = CASES[name](X)
    for found in (run_oracle(graph, {"x": X}), run(graph)):
        np.testing.assert_allclose(next(iter(found.values())), wanted, rtol=1e-6)


def run(graph):
    with Scheduler(["cpu:0"]) as scheduler:
        return scheduler.run(graph, {"x": X})


def test_methods_of_the_builder():
    g = GraphBuilder()
    x = g.input("x", (3, 4))
    y = g.get_rows(x, np.array([2, 0]))  # i64 becomes i32
    y = g.mul_mat(np.eye(4, dtype=np.float16), g.add(y, ROW))  # f16 is kept
    graph = g.build(g.op("add", y, array.array("f", [1, 2, 3, 4])))
    kinds = sorted(t.dtype.name for t in graph.tensors if t.name in graph.constants)
    assert kinds == ["f16", "f32", "f32", "i32"]
    for found in (run_oracle(graph, {"x": X}), run(graph)):
        (y,) = found.values()
        np.testing.assert_allclose(y, X[[2, 0]] + ROW + [1, 2, 3, 4], rtol=1e-6)


def test_equal_constants_are_one_and_others_differ():
    def graph(*values):
        return built(lambda x: x + np.array(values) + np.array(values))

    assert len(graph(1.0, 2.0, 3.0, 4.0).constants) == 1
    assert graph(1.0, 2.0, 3.0, 4.0).digest == graph(1.0, 2.0, 3.0, 4.0).digest
    assert graph(1.0, 2.0, 3.0, 4.0).digest != graph(1.0, 2.0, 3.0, 5.0).digest
    with Scheduler(["cpu:0"]) as scheduler:
        for last in (4.0, 5.0, 4.0):
            made = graph(1.0, 2.0, 3.0, last)
            (y,) = scheduler.run(made, {"x": X}).values()
            np.testing.assert_array_equal(y, X + 2 * np.array([1, 2, 3, last], np.float32))


def test_the_array_is_copied():
    values = ROW.copy()
    graph = built(lambda x: x + values)
    values[:] = 0
    np.testing.assert_array_equal(next(iter(run(graph).values())), X + ROW)


def test_graphs_made_of_it_keep_it():
    graph = built(lambda x: x + ROW)
    assert pickle.loads(pickle.dumps(graph)).constants == graph.constants
    assert join_graphs([graph, graph]).graph.constants == graph.constants
    assert parse_graph(print_graph(graph)) == graph  # names say what the content is


def test_settings_of_a_scheduler_do_not_matter():
    graph = built(lambda x: x + ROW)
    with Scheduler(["cpu:0"], weights={"other": X}) as scheduler:
        scheduler.run(graph, {"x": X})
        scheduler.reload_weights(list(graph.constants))
        scheduler.reset()
        np.testing.assert_array_equal(scheduler.run(graph, {"x": X})[graph.outputs[0]], X + ROW)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x: x + np.array([0.1, 0, 0, 0]), "0.1 in an array of f64 is not exact in f32"),
        (lambda x: x + np.array([1e300, 0, 0, 0]), "1e+300 in an array of f64 is not exact"),
        (lambda x: x * np.array([2**24 + 1, 0, 0, 0]), "16777217 in an array of i64 is not exact"),
        (lambda x: x + np.array([True] * 4), "bool is not converted to f32"),
        (lambda x: x + np.array(["a"] * 4), "no array could be read|an array of the type"),
        (lambda x: x + np.array([None] * 4), "an array of the type 'O'"),
        (lambda x: x + ROW.astype(">f4"), "an array of the type '>f'"),
        (lambda x: x + np.zeros(3, np.float32), "broadcast|fit"),
        (lambda x: x.builder.constant(3.0), "is not an array"),
        (lambda x: x.builder.constant(ROW, "q8_0"), "not converted to q8_0"),
        (lambda x: x.builder.add(np.zeros((3, 4)), x, inplace=True), "would write the weight"),
    ],
)
def test_refused(function, said):
    with pytest.raises(GraphError, match=said.replace("+", r"\+")):
        built(function)


@given(
    hnp.arrays(
        st.sampled_from([np.dtype(t.host) for t in ARRAY_DTYPES]),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
    ),
    st.sampled_from(ARRAY_DTYPES),
)
@settings(max_examples=300)
def test_conversion_is_exact_or_refused(values, dtype):
    constant = read_array(values)
    assert constant.data == values.tobytes()
    assert constant.shape == values.shape
    assert np.dtype(constant.dtype.host) == values.dtype
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cast = values.astype(dtype.host)
    source = constant.dtype
    exact = all(
        a == b or (a != a and b != b)
        for a, b in zip(values.ravel().tolist(), cast.ravel().tolist(), strict=True)
    )
    bools = (source.kind == "bool") != (dtype.kind == "bool")
    if bools or not exact:
        with pytest.raises(GraphError, match="not exact|not converted"):
            constant.as_type(dtype)
    else:
        found = np.frombuffer(constant.as_type(dtype).data, dtype.host).reshape(values.shape)
        np.testing.assert_array_equal(found, cast)


def test_large_arrays_in_pieces():
    values = np.arange(200_001, dtype=np.int64)
    found = read_array(values).as_type(dtype_by_name("f32"))
    np.testing.assert_array_equal(np.frombuffer(found.data, np.float32), values)
