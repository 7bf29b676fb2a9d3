"""Every op on NaN, infinities, zeros and the limits of integers means what the oracle says."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggsched import GraphBuilder, Scheduler
from ggsched.errors import PlanError
from ggsched.ir.dtype import dtype_by_name
from ggsched.ir.tensor import Role
from ggsched.ops.nd import library
from ggsched_testing.conformance.special_graphs import ELEMENTS, special_graphs
from ggsched_testing.generators.special_values import SPECIAL
from ggsched_testing.oracle.interpreter import run_oracle

ROWS, COLUMNS = 4, 6
SEEDS = st.integers(0, 2**32 - 1)
FEW_TYPES = ("f32", "f16", "i32", "i64", "i8", "u8", "u64", "bool")

FINITE_OPERANDS = {"lstm", "gru", "rnn", "conv", "conv_transpose", "grid_sample", "lrn", "det"}
"""Ops that are not drawn here: finite weights, and places in finite images, are what they take."""

AXIS = {"softmax", "log_softmax", "hardmax", "cum_sum", "cum_prod", "arg_max", "arg_min"}
WINDOWS = {"max_pool": {}, "average_pool": {"extra": (0, 0)}}
SIGNED_ZEROS = {"add", "sub", "mul", "div", "neg", "abs", "copy", "where", "reciprocal", "sqrt"}


@pytest.fixture(scope="module", params=["cpu", "sim"])
def scheduler(request):
    yield from opened(request.param)


@pytest.fixture(scope="module")
def opencl():
    pytest.importorskip("pyopencl", reason="pyopencl is in the extra 'opencl'")
    yield from opened("opencl")


def opened(backend):
    g = GraphBuilder()
    graph = g.build(g.silu(g.input("x", (1,))))
    with Scheduler([f"{backend}:0"]) as made:
        made.run(graph, {"x": np.ones(1, np.float32)})  # its threads are not those of a test
        yield made


@pytest.mark.parametrize("special", SPECIAL, ids=lambda s: s.op)
def test_the_oracle_has_the_meaning_of_the_table(special):
    graph, values = special.graph()
    assert special.differs(run_oracle(graph, values)[graph.outputs[0]]) == ""


def elements(rng, shape, dtype):
    """Return special elements, those of a row alike now and then, or numbers near 1."""
    kind = np.dtype(dtype.host)
    if kind.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if kind.kind == "f":
        drawn = np.where(rng.random(shape) < 0.5, rng.choice(ELEMENTS, shape), rng.random(shape))
        rows = rng.random((*shape[:-1], 1)) < 0.2
        return np.where(rows, rng.choice(ELEMENTS, rows.shape), drawn).astype(kind)
    limits = np.iinfo(kind)
    some = [limits.min, limits.max, 0, 1, 2, 3, limits.bits - 1, limits.bits, 100]
    some += [-1, -2, -7] if limits.min else []
    return rng.choice(np.array(some, kind), shape)


def call(rng, op, kind):
    """Return operands (name, type, shape) and parameters of a call of an op of the library."""
    n, name = (ROWS, COLUMNS), op.name.removeprefix("nd.")
    axis, flag = int(rng.integers(2)), bool(rng.integers(2))
    if name in AXIS:
        return [(kind, n)], {"axis": axis}
    if name.startswith("reduce_"):
        shape = ((ROWS, COLUMNS), (ROWS, 0), (0, COLUMNS))[rng.integers(3)]
        return [(kind, shape)], {"axes": ((0,), (1,), (0, 1))[rng.integers(3)], "keepdims": flag}
    if name in WINDOWS:
        window = {"kernel": (2, 2), "strides": (1, 1), "dilations": (1, 1), "pads": (1, 1, 0, 0)}
        return [(kind, (1, 1, *n))], {**window, **WINDOWS[name]}
    flags = {"mod": "fmod", "shift": "left"}
    if name in flags:
        return [(kind, n)] * 2, {flags[name]: flag}
    if name in ("matmul", "matmul_i32"):
        return [(kind, n), (kind, (COLUMNS, 3))], {}
    if name == "cast":
        return [(kind, n)], {"to": str(rng.choice([*library()["nd.copy"].types[0]]))}
    fixed = {
        "top_k": ([(kind, n)], {"k": 3, "axis": axis, "largest": flag}),
        "normalize": ([(kind, n)], {"axes": (axis,)}),
        "clip": ([(kind, n), (kind, ()), (kind, ())], {}),
        "pow": ([(kind, n), ("i32" if kind == "f32" and flag else kind, n)], {}),
        "where": ([(kind, n), ("f32", n), ("f32", n)], {}),
        "transpose": ([(kind, n)], {"perm": (1, 0)}),
    }
    return fixed.get(name, ([(kind, n)] * len(op.operands), {}))


DRAWN = [
    op.name
    for op in library().values()
    if not {o[-1] for o in op.operands} & set("?*")
    and "indices" not in op.operands
    and op.name.removeprefix("nd.")
    not in {*FINITE_OPERANDS, "along", "slice", "expand", "tile", "reverse_sequence", "lp_pool",
            "max_pool_indices"}
]  # fmt: skip


@given(name=st.sampled_from(DRAWN), seed=SEEDS)
def test_ops_of_the_library(scheduler, name, seed):
    compare(scheduler, name, seed)


@pytest.mark.opencl
@settings(max_examples=settings.default.max_examples // 10)  # it compiles a kernel for each
@given(name=st.sampled_from(DRAWN), seed=SEEDS)
def test_ops_of_the_library_on_opencl(opencl, name, seed):
    compare(opencl, name, seed)


def compare(scheduler, name, seed):
    """Run an op on special elements of some type, and compare with the oracle."""
    rng, op = np.random.default_rng(seed), library()[name]
    kind = str(rng.choice([t for t in library()[name].types[0] if t in FEW_TYPES]))
    operands, params = call(rng, op, kind)
    g, values, tensors = GraphBuilder(), {}, []
    for i, (dtype, shape) in enumerate(operands):
        tensors.append(g.input(f"x{i}", shape, dtype))
        values[f"x{i}"] = elements(rng, (1, *shape), dtype_by_name(dtype))[0]
    graph = g.build(g.op(name, *tensors, **params))
    try:
        found = scheduler.run(graph, values)[graph.outputs[0]]
    except PlanError:
        return  # this device has no kernel
    wanted = run_oracle(graph, values)[graph.outputs[0]]
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    if found.dtype.kind != "f":
        np.testing.assert_array_equal(found, wanted)
        return
    tolerance = 4e-3 if found.dtype == np.float16 else 1e-4
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(found, wanted, tolerance, tolerance)
    if name.removeprefix("nd.") in SIGNED_ZEROS:
        is_number = wanted == wanted
        np.testing.assert_array_equal(np.signbit(found[is_number]), np.signbit(wanted[is_number]))


@settings(max_examples=1)
@given(seed=SEEDS)
def test_built_in_ops_on_the_cpu(seed):
    """The kit does the same (LCH-8); whole plans are what this adds."""
    for _, drawn, values in special_graphs(np.random.default_rng(seed), 2):
        weights = {t.name: values[t.name] for t in drawn.graph.roots(Role.WEIGHT)}
        inputs = {name: v for name, v in values.items() if name not in weights}
        with Scheduler(["cpu:0"], weights=weights) as scheduler:
            found = scheduler.run(drawn.graph, inputs)
        for tid, value in run_oracle(drawn.graph, values).items():
            np.testing.assert_allclose(found[tid], value, 1e-4, 1e-4)
