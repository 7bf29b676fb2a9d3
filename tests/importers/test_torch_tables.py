"""Converters of PyTorch's ops, without PyTorch."""

import inspect

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from ggsched.errors import ModelError, UsageError
from ggsched.ir.ops import op_by_name
from ggsched_import.common.emit import Const, Emitter, widened
from ggsched_import.torch import ops_elements, ops_products, ops_reductions, walk
from ggsched_import.torch.call import CONVERTERS, Layout, convert
from ggsched_import.torch.dims import Dims
from ggsched_import.torch.export import WHOLE
from ggsched_import.torch.types import promoted
from ggsched_testing.oracle.interpreter import run_oracle
from tests.importers.torch_calls import called

X = np.array([[1.5, -2.0, 3.0], [0.0, 0.5, -1.0]], np.float32)

TABLES = [
    (ops_elements.FUNCTIONS, "", 1),
    (ops_elements.WHOLE, "", 1),
    (ops_elements.ANY_NUMBER, "", 1),
    (ops_elements.ARITHMETIC, "", 2),
    (ops_elements.COMPARISONS, "", 2),
    (ops_elements.LOGIC, "", 2),
    (ops_elements.BITS, "", 2),
    (ops_elements.BITS, "bit_", 2),
    (ops_products.MATRICES, "", 2),
    (ops_reductions.REDUCTIONS, "reduce_", 1),
]


@pytest.mark.parametrize(("table", "prefix", "operands"), TABLES)
def test_tables_name_ops_that_exist_and_take_as_many_operands(table, prefix, operands):
    for name, op in table.items():
        found = op_by_name(f"nd.{prefix}{op}")
        assert len(found.operands) == operands, name
        assert name in CONVERTERS


def test_converters_take_a_call_and_at_least_an_operand():
    for name, converter in CONVERTERS.items():
        parameters = list(inspect.signature(converter).parameters.values())
        assert parameters[0].name == "c", name
        assert len(parameters) > 1, name


def test_ops_that_stay_whole_have_converters():
    for name in WHOLE:
        assert name in CONVERTERS or name.partition(".")[0] in CONVERTERS, name


def test_names_of_ops_and_overloads():
    for name in walk.supported():
        assert name.replace(".", "").replace("_", "").isalnum(), name


def computed(target, *args, **kwargs):
    """Convert a call on an input and on a constant; both must compute the same."""
    emit = Emitter("one")
    x = emit.g.input("x", X.shape, "f32")
    made = convert(target, emit, "here", (x, *args), kwargs)
    folded = convert(target, Emitter("two"), "here", (Const(X), *args), kwargs)
    made = emit.tensor(made)
    graph = emit.g.build(made if made.storage else emit.g.op("nd.copy", made))
    found = run_oracle(graph, {"x": X, **emit.weights})[graph.outputs[0]]
    assert isinstance(folded, Const)
    np.testing.assert_allclose(found, folded.array, rtol=1e-5)
    return folded.array


@pytest.mark.parametrize(
    ("target", "args", "wanted"),
    [
        ("aten.relu.default", (), np.maximum(X, 0)),
        ("aten.add.Tensor", (2,), X + 2),
        ("aten.sub.Tensor", (Const(X),), X - X),
        ("aten.mul.Scalar", (0.5,), X / 2),
        ("aten.gt.Scalar", (0,), X > 0),
        ("aten.sum.dim_IntList", ([1], True), X.sum(1, keepdims=True)),
        ("aten.amax.default", ([-1],), X.max(-1)),
        ("aten.permute.default", ([1, 0],), X.T),
        ("aten.view.default", ([3, -1],), X.reshape(3, 2)),
        ("aten.unsqueeze.default", (-1,), X[..., None]),
        ("aten.slice.Tensor", (1, -2, 9223372036854775807), X[:, -2:]),
        ("aten.select.int", (0, -1), X[-1]),
        ("aten.expand.default", ([4, -1, 3],), np.broadcast_to(X, (4, 2, 3))),
        ("aten._softmax.default", (-1, False), np.exp(X) / np.exp(X).sum(-1, keepdims=True)),
        ("aten.mm.default", (Const(np.ascontiguousarray(X.T)),), X @ X.T),
        ("aten.linear.default", (Const(X),), X @ X.T),
        ("aten._to_copy.default", (), X),
        ("aten.index.Tensor", ([None, Const(np.array([2, 0]))],), X[:, [2, 0]]),
        ("aten.clamp.default", (-1, 1), np.clip(X, -1, 1)),
        ("aten.as_strided.default", ([2, 2, 2], [3, 1, 1]), X[:, [[0, 1], [1, 2]]]),
        ("aten.as_strided.default", ([3, 2], [1, 3]), X.T),
        ("aten.as_strided.default", ([2, 2], [2, 1], 1), X.reshape(-1)[1:5].reshape(2, 2)),
        ("aten.as_strided.default", ([2, 2], [0, 2], 1), X.reshape(-1)[[[1, 3]] * 2]),
        ("aten.as_strided.default", ([2, 0], [1, 1]), np.zeros((2, 0))),
        ("aten.histc.default", (4, -2, 2), [1, 1, 2, 1]),
        ("aten.copysign.Tensor", (Const(-X),), np.copysign(X, -X)),
        ("aten.hypot.default", (Const(X + 1),), np.hypot(X, X + 1)),
        ("aten.erfinv.default", (), [[np.nan, np.nan, np.nan], [0, 0.4769363, -np.inf]]),
        ("aten.logcumsumexp.default", (1,), np.logaddexp.accumulate(X, 1)),
        ("aten.median.default", (), 0.0),
        (
            "aten.scatter_reduce.two",
            (1, Const(X.argsort(1)[:, :1]), Const(X + 4), "mean"),
            [
                [1.5, 1.75, 3],
                [0, 0.5, 1.5],
            ],
        ),
        (
            "aten.masked_scatter.default",
            (Const(X > 0), Const(X.reshape(-1)[::-1].copy())),
            [
                [-1, -2, 0.5],
                [0, 0, -1],
            ],
        ),
        (
            "aten.put.default",
            (Const(np.array([1, -1])), Const(X[0, :2])),
            [
                [1.5, 1.5, 3],
                [0, 0.5, -2],
            ],
        ),
        ("aten.diagonal_scatter.default", (Const(X[0, :2]), 1), [[1.5, 1.5, 3], [0, 0.5, -2]]),
        ("aten.histc.default", (5,), np.histogram(X, 5)[0]),
        (
            "aten.bucketize.Tensor",
            (Const(np.array([-1.0, 1.5], np.float32)),),
            np.searchsorted([-1, 1.5], X),
        ),
    ],
)
def test_calls_compute_what_they_say(target, args, wanted):
    np.testing.assert_allclose(computed(target, *args), wanted, rtol=1e-5)


def test_running_sums_of_exponentials_far_apart():
    x = np.array([*[-np.inf] * 3, -200, -np.inf, 3, -np.inf, 90, np.inf], np.float32)
    made = convert("aten.logcumsumexp.default", Emitter("one"), "here", (Const(x), 0), {})
    np.testing.assert_allclose(made.array, np.logaddexp.accumulate(x), rtol=1e-6)


@pytest.mark.parametrize("exponent", [-2.0, -1.0, -0.5, 0.5, 2.0, 3.0, 4.0, 1.5, 7.0])
def test_powers_are_products_where_these_are_as_exact(exponent):
    emit = Emitter("power")
    x = emit.g.input("x", X.shape, "f32")
    graph = emit.g.build(convert("aten.pow.Tensor_Scalar", emit, "here", (x, exponent), {}))
    assert ("nd.pow" in [n.op for n in graph.nodes]) == (exponent in (1.5, 7.0))
    values = np.array([[1.5, 1e-3, 2e4], [0.0, np.inf, 1.0]], np.float32)
    values[1, 2] *= -1 if exponent == int(exponent) else 1
    found = run_oracle(graph, {"x": values, **emit.weights})[graph.outputs[0]]
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(found, values**exponent, rtol=5e-7)


def test_unknown_ops_and_arguments_that_do_not_fit_are_named():
    emit = Emitter("one")
    with pytest.raises(ModelError, match=r"node 'a': the op 'aten.fft.default' is.*register_op"):
        convert("aten.fft.default", emit, "node 'a'", (Const(X),), {})
    with pytest.raises(ModelError, match="node 'a': its arguments do not fit"):
        convert("aten.relu.default", emit, "node 'a'", (Const(X), 1, 2), {})
    with pytest.raises(ModelError, match="node 'a': axis 4 of 3"):
        convert("aten.unsqueeze.default", emit, "node 'a'", (Const(X), 4), {})
    with pytest.raises(ModelError, match="node 'a': it reads memory beside"):
        convert("aten.as_strided.default", emit, "node 'a'", (Const(X), [2, 3], [3, 1], 1), {})
    with pytest.raises(ModelError, match="node 'a'"):
        convert("aten.mm.default", emit, "node 'a'", (Const(X), Const(X)), {})


@pytest.mark.parametrize(
    ("operands", "wanted"),
    [
        (("f32", "i64"), "f32"),
        (("f16", "i64", 1.5), "f16"),
        (("i32", "i64"), "i64"),
        (("i8", "u8"), "i16"),
        (("i32", 1), "i32"),
        (("i32", 1.5), "f32"),
        (("bool", 1), "i64"),
        (("bool", True), "bool"),
        (("f16", "f32"), "f32"),
        ((2, "f64"), "f64"),
    ],
)
def test_operands_are_joined_as_pytorch_does(operands, wanted):
    assert promoted(*operands) == wanted


def test_bfloat16_is_widened_exactly():
    x = np.array([1.0, -0.5, 3.0, np.inf], np.float32)
    np.testing.assert_array_equal(widened((x.view(np.uint32) >> 16).astype(np.uint16)), x)


@settings(max_examples=10)
@given(
    extents=st.lists(st.integers(0, 4), max_size=3),
    size=st.integers(0, 12),
    fill=st.integers(-2, 2),
    seed=st.integers(0, 99),
)
def test_a_bounded_number_of_places_is_those_of_numpy_and_a_filler(extents, size, fill, seed):
    x = np.random.default_rng(seed).integers(-1, 2, extents).astype(np.float32)
    found = called("nonzero_static.default", x, size=size, fill_value=fill)
    places = np.argwhere(x)[:size] if extents else np.empty((0, 0))
    np.testing.assert_array_equal(found[: len(places)], places)
    assert (found[len(places) :] == fill).all()
    assert found.shape == (size, len(extents))


@settings(max_examples=25)
@given(st.data())
def test_views_of_memory_are_those_of_numpy(data):
    """Any view of any strided tensor has the elements that its addresses have."""
    extents = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    order = data.draw(st.permutations(range(len(extents))))
    gap = data.draw(st.sampled_from([1, 1, 2]))
    strides = [0] * len(extents)
    count = gap
    for axis in order:
        strides[axis], count = count, count * extents[axis]
    memory = np.arange(count, dtype=np.float32)
    x = as_strided(memory, extents, [4 * s for s in strides])
    size = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    steps = [gap * data.draw(st.integers(0, 4)) for _ in size]
    span = sum((n - 1) * s for n, s in zip(size, steps, strict=True))
    assume(span <= (x.size - 1) * gap)
    offset = gap * data.draw(st.integers(0, x.size - 1 - span // gap))
    emit = Emitter("view")
    given_x = emit.g.input("x", x.shape, "f32")
    layout = Layout(tuple(extents), tuple(strides), 0)
    name, args = "aten.as_strided.default", (given_x, size, steps, offset)
    made = convert(name, emit, "here", args, {}, layout=layout)
    graph = emit.g.build(emit.g.op("nd.copy", made))
    plain = np.ascontiguousarray(x)
    found = run_oracle(graph, {"x": plain, **emit.weights})[graph.outputs[0]]
    np.testing.assert_array_equal(found, as_strided(memory[offset:], size, [4 * s for s in steps]))


class Range:
    lower, upper = 0, 8


def test_extents_are_solved_and_checked():
    sympy = pytest.importorskip("sympy")
    n = sympy.Symbol("n", integer=True)
    dims = Dims({n: Range}, "model")
    assert dims.solve([(2 * n + 1, 7), (n, 3)], {}) == {"n": 3}
    assert dims.solve([(2 * n + 1, 7)], {}) == {"n": 3}
    for pairs, words in (
        ([(n, 3), (n, 4)], "n is 3, not 4"),
        ([(2 * n, 7)], "cannot be 7"),
        ([(n, 9)], "outside 0 to 8"),
    ):
        with pytest.raises(UsageError, match=words):
            dims.solve(pairs, {})
