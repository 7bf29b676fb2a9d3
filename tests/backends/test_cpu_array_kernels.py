"""Compiled kernels of the library for elements, conversions and indices against the oracle."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggsched import GgschedError, GraphBuilder, Scheduler
from ggsched.ir.tensor import Role
from ggsched.ops.record import SELECTED
from ggsched_cpu.kernels.casts import ELEMENTS, is_converted
from ggsched_cpu.kernels.elementwise import FORMULAS
from ggsched_cpu.native import library
from tests.backends.test_cpu_cells import check_and_tell

pytestmark = pytest.mark.skipif(library() is None, reason="no compiled kernels")

SPECIAL = np.array(
    [-np.inf, -90.0, -2.5, -1.0, -0.5, -1e-4, -1e-9, -0.0, 0.0, 1e-9, 1e-4, 0.5, 1.5, 20.0, np.inf,
     np.nan, 3e38],
    np.float32,
)  # fmt: skip
PARAMS = {"alpha": 0.3, "gamma": 1.5, "inner": 0.7, "negative": True, "positive": False}
LONG = np.array([1e30, -3.3e12, 2.0**-140, 7.0, -7.0, 0.1], np.float32)
"""Numbers whose quotients have more bits than a number."""
OF_LIBRARY = sorted(op for op in FORMULAS if op.startswith("nd."))


@pytest.mark.parametrize("op", OF_LIBRARY)
def test_formulas_of_special_numbers(op):
    """Also where the last operand has one element in each row, or one for all."""
    count, names, _ = FORMULAS[op]
    numbers = np.concatenate([SPECIAL, LONG]) if op == "nd.mod" else SPECIAL
    a = np.repeat(numbers, len(numbers)).reshape(len(numbers), -1)
    b = np.tile(numbers, len(numbers)).reshape(a.shape)
    params = {n: PARAMS.get(n, 0.25) for n in names}
    g = GraphBuilder()
    before = (g.input("m", a.shape, "bool"),) if count == 3 else ()
    x = g.input("a", a.shape)
    lasts = [g.input("b", b.shape), g.input("c", (len(b), 1)), g.input("d", (1, 1))]
    others = [(last,) for last in lasts] if count > 1 else [()]
    ways = [params | {"fmod": on} for on in (False, True)] if op == "nd.mod" else [params]
    graph = g.build(*(g.op(op, *before, x, *y, **p) for y in others for p in ways))
    values = {"m": a < b, "a": a, "b": b, "c": b[:1].T.copy(), "d": np.full((1, 1), 2.5, "f4")}
    assert check_and_tell(
        graph, {t.name: values[t.name] for t in graph.tensors if t.role is Role.INPUT}, 1e-6
    )


@pytest.mark.parametrize("op", ["nd.add", "nd.silu", "nd.less", "nd.where", "nd.mod"])
def test_formulas_of_halves(op):
    count = FORMULAS[op][0]
    x = np.resize(np.array([-3.5, -0.25, 0.0, 0.1, 2.0, 65504.0, np.nan], np.float16), (3, 35))
    g = GraphBuilder()
    more = [g.input("y", x.shape, "f16")] if count > 1 else []
    first = (g.input("m", x.shape, "bool"),) if count == 3 else ()
    graph = g.build(g.op(op, *first, g.input("x", x.shape, "f16"), *more))
    values = {"x": x, "y": np.roll(x, 5), "m": x > 0}
    used = {t.name: values[t.name] for t in graph.tensors if t.role is Role.INPUT}
    assert check_and_tell(graph, used, 2e-3)


@pytest.mark.parametrize("kind", ["f32", "i64", "i32"])
@pytest.mark.parametrize("op", ["nd.cum_sum", "nd.cum_prod"])
def test_totals_so_far(op, kind):
    x = np.resize(
        np.array([1, -2, 3, 1, -1], np.dtype(kind[0] + str(int(kind[1:]) // 8))), (2, 3, 11, 1)
    )
    g = GraphBuilder()
    a = g.input("x", x.shape, kind)
    graph = g.build(*(g.op(op, a, axis=2, reverse=turned) for turned in (False, True)))
    assert check_and_tell(graph, {"x": x}, 1e-6)


@pytest.mark.parametrize("op", ["nd.reduce_min", "nd.reduce_prod"])
def test_rows_to_one_number(op):
    x = np.resize(np.array([1.5, -2.0, 0.75, 1.25, -0.5], np.float32), (3, 2, 19))
    x[1, 1, 18] = np.nan
    g = GraphBuilder()
    graph = g.build(g.op(op, g.input("x", x.shape), axes=(1, 2), keepdims=False))
    assert check_and_tell(graph, {"x": x}, 1e-6)


def test_an_operand_of_many_axes_is_broadcast():
    """Axes that all operands step over alike count as one."""
    shape = (2, 3, 2, 3, 2, 5)
    g = GraphBuilder()
    x, m = g.input("x", shape), g.input("m", (2, 3, 1, 1, 1, 1), "bool")
    graph = g.build(g.op("nd.where", m, x, g.input("y", (1,))))
    rng = np.random.default_rng(0)
    values = {"x": rng.standard_normal(shape, "f4"), "m": rng.random((2, 3, 1, 1, 1, 1)) < 0.5}
    assert check_and_tell(graph, values | {"y": np.ones(1, "f4")}, 0)


def test_expm1_near_zero():
    x = np.array([[-1e-2, 3e-5, 1e-7, -1e-20]], np.float32)
    g = GraphBuilder()
    graph = g.build(g.op("nd.expm1", g.input("x", x.shape)))
    with Scheduler(["cpu:0"]) as scheduler:
        (found,) = scheduler.run(graph, {"x": x}).values()
    np.testing.assert_allclose(found, np.expm1(x.astype(np.float64)), rtol=1e-6)


@pytest.mark.parametrize("kind", ELEMENTS)
def test_conversions(kind):
    """Of numbers beyond every type, between its limits, and of rests of vectors."""
    g = GraphBuilder()
    host = g.input("kind", (1,), kind).dtype.host
    wide = [3e9, -3e9, 7e18, -7e18, 65520.0, 1e-8, *SPECIAL]
    with np.errstate(all="ignore"):
        values = np.array(wide, np.float32).astype(host)
    if kind[0] in "iu":
        values = np.array([np.iinfo(host).min, np.iinfo(host).max, 1, 0, 77], host)
    x = np.resize(values, 53)
    g = GraphBuilder()
    given_x = g.input("x", x.shape, kind)
    others = [to for to in ELEMENTS if is_converted(kind, to)]
    graph = g.build(*(g.op("nd.cast", given_x, to=to) for to in others))
    small = np.resize(np.array([-2.5 if kind[0] == "f" else 1, 100, 0]).astype(host), 53)
    assert check_and_tell(graph, {"x": x}, 0)
    assert check_and_tell(graph, {"x": small}, 0)


DTYPES = ("f32", "f16", "i64", "i32", "u8", "bool")


@st.composite
def indexed(draw):
    """Return a graph of one op that takes or puts by index, and what its indices are below."""
    g = GraphBuilder()
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    shape += (draw(st.sampled_from([1, 3, 8, 40])),)
    axis = draw(st.integers(0, len(shape) - 1))
    x = g.input("x", shape, draw(st.sampled_from(DTYPES)))
    how = {"reduction": draw(st.sampled_from(["none", "add", "max"]))}
    count = draw(st.integers(1, 7))
    match draw(st.sampled_from(["gather", "elements", "nd"])), draw(st.booleans()):
        case "gather", _:
            ids = g.input("ids", (count,), "i64")
            return g.build(g.op("nd.gather", x, ids, axis=axis)), (shape[axis],)
        case "elements", puts:
            ids = g.input("ids", (*shape[:axis], count, *shape[axis + 1 :]), "i64")
            updates = [g.input("updates", ids.shape, x.dtype)] if puts else []
            extents = (shape[axis],)
            op, how = f"nd.{'scatter' if puts else 'gather'}_elements", how if puts else {}
            return g.build(g.op(op, x, ids, *updates, axis=axis, **how)), extents
        case _, puts:
            extents = shape[: axis + 1]
            ids = g.input("ids", (count, len(extents)), "i64")
            updates = [g.input("updates", (count, *shape[axis + 1 :]), x.dtype)] if puts else []
            op, how = f"nd.{'scatter' if puts else 'gather'}_nd", how if puts else {}
            return g.build(g.op(op, x, ids, *updates, **how)), extents


def values_of(graph, extents, seed):
    rng = np.random.default_rng(seed)
    values = {
        t.name: (5 * rng.standard_normal(t.shape)).round().astype(t.dtype.host)
        for t in graph.tensors
        if t.name and not t.is_view
    }
    limits = np.broadcast_to(extents, values["ids"].shape)
    values["ids"] = rng.integers(-limits, limits)
    return values


@settings(max_examples=60)
@given(drawn=indexed(), seed=st.integers(0, 99))
@pytest.mark.parametrize("threads", ["1", "3"])
def test_indices(drawn, seed, threads):
    """Whole numbers, of which sums are exact in any order; some places are chosen twice."""
    graph, extents = drawn
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GGSCHED_THREADS", threads)
        patch.setattr("ggsched_cpu.lowering.tasks.PART_NBYTES", 64)
        patch.setattr("ggsched_cpu.lowering.tasks.SERIAL_NBYTES", 0)
        check_and_tell(graph, values_of(graph, extents, seed), 0)


@pytest.mark.parametrize("name", ["scatter", "gather"])
def test_elements_and_slices_are_compiled(name):
    g = GraphBuilder()
    x, ids = g.input("x", (9, 8)), g.input("ids", (4, 8), "i64")
    updates = [g.input("updates", (4, 8))] if name == "scatter" else []
    how = {"reduction": "add"} if updates else {}
    rows = g.input("rows", (4, 1), "i64")
    graph = g.build(
        g.op(f"nd.{name}_elements", x, ids, *updates, axis=0, **how),
        g.op(f"nd.{name}_nd", x, rows, *updates, **how),
    )
    values = values_of(graph, (9,), 0) | {"rows": np.array([[0], [-1], [7], [0]])}
    assert check_and_tell(graph, values, 1e-6)


@pytest.mark.parametrize(
    ("op", "more", "params"),
    [
        ("nd.gather_elements", (), {"axis": 0}),
        ("nd.gather_elements", (), {"axis": 1}),
        ("nd.scatter_elements", ((2, 12),), {"axis": 1, "reduction": "add"}),
        ("nd.scatter_elements", ((2, 12),), {"axis": 0}),
        ("nd.gather_nd", (), {}),
        ("nd.scatter_nd", ((2, 12),), {"reduction": "add"}),
    ],
)
@pytest.mark.parametrize("index", [12, -13, 1 << 40])
def test_indices_out_of_range_are_errors(op, more, params, index):
    g = GraphBuilder()
    by_tuple = op.endswith("nd")
    x, ids = g.input("x", (12, 12)), g.input("ids", (2, 1) if by_tuple else (2, 12), "i64")
    if not by_tuple and params["axis"] == 1:
        x = g.input("y", (2, 12))
    updates = [g.input("updates", shape) for shape in more]
    graph = g.build(g.op(op, x, ids, *updates, **params))
    values = values_of(graph, (2,), 0)
    values["ids"].flat[-1] = index
    with Scheduler(["cpu:0"]) as scheduler, pytest.raises(GgschedError):
        scheduler.run(graph, {t.name: values[t.name] for t in graph.roots(Role.INPUT)})


@pytest.mark.parametrize(("shape", "places"), [((2, 6, 5), (3, 4, 5)), ((2, 0), (2, 1))])
def test_indices_beside_the_operand_are_errors(shape, places):
    """Other axes may be shorter, but not as long by another shape; and nothing is in no slice."""
    g = GraphBuilder()
    x, ids = g.input("x", shape), g.input("ids", places, "i64")
    graph = g.build(g.op("nd.gather_elements", x, ids, axis=len(shape) - 1))
    values = {"x": np.ones(shape, np.float32), "ids": np.zeros(places, np.int64)}
    with Scheduler(["cpu:0"]) as scheduler, pytest.raises(GgschedError):
        scheduler.run(graph, values)


@settings(max_examples=30)
@given(data=st.data(), seed=st.integers(0, 99))
def test_the_best_of_rows(data, seed):
    """Of a few numbers, so that many are equal, and of NaN; best first, equal ones in order."""
    n = data.draw(st.sampled_from([1, 5, 16, 17, 70, 300]))
    k = data.draw(st.integers(1, n))
    g = GraphBuilder()
    x = g.input("x", (3, n))
    results = [g.op("nd.top_k", x, k=k, axis=-1, largest=largest) for largest in (True, False)]
    graph = g.build(*results, g.top_k(x, k))
    rng = np.random.default_rng(seed)
    values = rng.choice(SPECIAL, (3, n)) if seed % 2 else rng.standard_normal((3, n))
    values = values.astype(np.float32)
    is_compiled = check_and_tell(graph, {"x": np.sort(values) if seed % 3 else values}, 0)
    assert is_compiled == (k <= SELECTED)


@settings(max_examples=25)
@given(data=st.data(), seed=st.integers(0, 99))
def test_samples_of_images(data, seed):
    """Also at places beside the image, at its edges, and that are not numbers."""
    count, channels = data.draw(st.sampled_from([(1, 3), (2, 1)]))
    shape = tuple(data.draw(st.integers(1, 6)) for _ in range(2))
    made = data.draw(st.integers(1, 3)), data.draw(st.sampled_from([1, 8, 21]))
    params = {
        "padding": data.draw(st.sampled_from(["zeros", "border"])),
        "corners": data.draw(st.booleans()),
    }
    g = GraphBuilder()
    x, grid = g.input("x", (count, channels, *shape)), g.input("grid", (count, *made, 2))
    graph = g.build(g.op("nd.grid_sample", x, grid, **params))
    rng = np.random.default_rng(seed)
    values = {t.name: rng.standard_normal(t.shape).astype(np.float32) for t in (x, grid)}
    values["grid"][0, 0, 0] = [np.nan, 1] if seed % 2 else [-1, 1]
    assert check_and_tell(graph, values, 2e-5)


@pytest.mark.parametrize("columns", [1, 16, 37])
def test_logarithms_of_softmax(columns):
    x = np.resize(np.array([0.5, -3, 80, -80, 1], np.float32), (6, columns)).copy()
    for row, value in zip(x[2:], (np.nan, np.inf, -np.inf), strict=False):
        row[0] = value
    x[5] = -np.inf
    g = GraphBuilder()
    graph = g.build(g.op("nd.log_softmax", g.input("x", x.shape), axis=-1))
    assert check_and_tell(graph, {"x": x}, 2e-6)
