"""Ops of the library that take and put elements, pad and scan, on OpenCL against the oracle."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggsched.errors import DeviceFault
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import dtype_by_name
from ggsched.scheduler import Scheduler
from ggsched_kernels.array_table import EVERY
from tests.backends.against_oracle import check
from tests.backends.opencl_devices import opencl_device

pytestmark = pytest.mark.opencl

COMMON = {"cpu": ("f32", "i64", "bool"), "gpu": ("f32",)}
"""Each type is a program of its own, which takes a second to compile."""


def on_devices(names, cases, common):
    """Return parameters for each profile; those that are not common are slow."""
    return pytest.mark.parametrize(
        ("device", *names),
        [
            pytest.param(profile, *case, marks=() if case in few else pytest.mark.slow)
            for profile, few in common.items()
            for case in cases
        ],
        indirect=["device"],
    )


TYPES = on_devices(
    ["dtype"],
    [(t,) for t in (*EVERY, "f64")],
    {profile: [(t,) for t in few] for profile, few in COMMON.items()},
)

REDUCTIONS = ("none", "add", "mul", "max", "min")
FEW = [("none", "f32"), ("add", "f32"), ("mul", "i16"), ("max", "f16"), ("min", "bool")]
UPDATES = on_devices(
    ["reduction", "dtype"], [*product(REDUCTIONS, (*EVERY, "f64"))], {"cpu": FEW, "gpu": FEW[1:2]}
)


@pytest.fixture(scope="module", params=["cpu", "gpu"])
def device(request):
    """The same device with kernels cut for processors, and with groups of many work-items."""
    made = opencl_device(profile=request.param)
    yield made
    made.close()


def elements(shape, dtype, rng):
    """Return small whole numbers, of which any order of sums and products is exact."""
    low = 0 if dtype == "bool" or dtype.startswith("u") else -2
    found = rng.integers(low, 3, shape).astype(dtype_by_name(dtype).host)
    if dtype in ("f32", "f16", "f64") and found.size:
        found.flat[0] = -0.0
    return found


class Drawn:
    """A graph of one node after another, and values of its inputs."""

    def __init__(self, dtype, seed=0):
        self.g, self.values, self.outs = GraphBuilder("indexed"), {}, []
        self.rng, self.dtype = np.random.default_rng(seed), dtype

    def x(self, *shape):
        return self._input(elements(shape, self.dtype, self.rng), self.dtype)

    def ids(self, extent, *shape, dtype="i64"):
        array = self.rng.integers(-extent, extent, shape)
        return self._input(array.astype(dtype_by_name(dtype).host), dtype)

    def places(self, extents, *shape, dtype="i64"):
        array = np.stack([self.rng.integers(-n, n, shape) for n in extents], -1)
        return self._input(array.astype(dtype_by_name(dtype).host), dtype)

    def _input(self, array, dtype):
        name = f"v{len(self.values)}"
        self.values[name] = array
        return self.g.input(name, array.shape, dtype)

    def op(self, name, *inputs, **params):
        self.outs.append(self.g.op(f"nd.{name}", *inputs, **params))

    def check(self, device):
        check(device, self.g.build(*self.outs), self.values)


def skip_without_f64(device, dtype):
    if dtype == "f64" and "nd.cum_sum:f64" not in device.facts.ops:
        pytest.skip("the device does not compute with f64")


@TYPES
def test_elements_at_indices(device, dtype):
    d = Drawn(dtype)
    x = d.x(3, 4, 5)
    d.op("gather_nd", x, d.places((3, 4), 6))
    d.op("gather_nd", x, d.places((3, 4, 5), 2, 3, dtype="i32"))
    d.op("gather_nd", x, d.places((4,), 3, 2), batch_dims=1)
    d.op("gather_nd", d.g.op("nd.transpose", x, perm=(2, 0, 1)), d.places((5,), 3))
    d.op("gather_elements", x, d.ids(4, 3, 6, 5), axis=1)
    d.op("gather_elements", x, d.ids(5, 2, 3, 4, dtype="i32"), axis=-1)
    d.op("gather_elements", x, d.ids(3, 0, 4, 5), axis=0)
    d.check(device)


@UPDATES
def test_updates_at_indices(device, dtype, reduction):
    skip_without_f64(device, dtype)
    d = Drawn(dtype, seed=1)
    x = d.x(3, 4, 5)
    # Several updates of one place come in their order.
    d.op("scatter_elements", x, d.ids(4, 3, 6, 5), d.x(3, 6, 5), axis=1, reduction=reduction)
    d.op("scatter_elements", d.x(6), d.ids(6, 40, dtype="i32"), d.x(40), reduction=reduction)
    d.op("scatter_nd", x, d.places((3, 4), 7), d.x(7, 5), reduction=reduction)
    d.op("scatter_nd", x, d.places((3,), 2, 2, dtype="i32"), d.x(2, 2, 4, 5), reduction=reduction)
    d.op("scatter_nd", x, d.places((3, 4, 5), 9), d.x(9), reduction=reduction)
    d.op("scatter_nd", x, d.places((3,), 0), d.x(0, 4, 5), reduction=reduction)
    d.check(device)


@TYPES
def test_padding(device, dtype):
    d = Drawn(dtype)
    x = d.x(3, 4, 5)
    d.op("pad", x, d.x(1), pads=(1, 0, 2, 0, 3, 0), value=True)
    d.op("pad", x, pads=(0, -1, 2, -1, 0, -2))
    for mode in ("reflect", "edge", "wrap"):
        d.op("pad", d.g.op("nd.transpose", x, perm=(1, 2, 0)), pads=(3, 2, 1, 0, 4, 2), mode=mode)
    d.check(device)


@TYPES
def test_order_and_sums_along_an_axis(device, dtype):
    skip_without_f64(device, dtype)
    d = Drawn(dtype)
    x = d.x(3, 7, 2)
    for axis in (0, 1, -1):
        d.op("top_k", x, k=2, axis=axis, largest=axis != 0)
        d.op("arg_max", x, axis=axis, keepdims=axis == 1, last=axis == 0)
        d.op("arg_min", x, axis=axis, keepdims=axis != 1, last=axis == 1)
        if dtype != "bool":
            d.op("cum_sum", x, axis=axis, exclusive=axis == 1, reverse=axis == 0)
            d.op("cum_prod", x, axis=axis, exclusive=axis == 0, reverse=axis == 1)
    d.check(device)


def test_nan_is_the_largest_and_the_best(device):
    d = Drawn("f32")
    x = d.x(2, 300)
    d.values["v0"][:, ::7] = np.nan
    d.values["v0"][:, 1::50] = [[np.inf], [-np.inf]]
    for flag in (True, False):
        d.op("top_k", x, k=300, largest=flag)
        d.op("arg_max", x, axis=1, last=flag)
        d.op("arg_min", x, axis=1, last=flag)
    d.check(device)


@settings(max_examples=6)
@given(
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    dtype=st.sampled_from(["f32", "bool"]),
    seed=st.integers(0, 99),
    data=st.data(),
)
def test_drawn_shapes(device, shape, dtype, seed, data):
    d = Drawn(dtype, seed)
    x, n = d.x(*shape), len(shape)
    axis, named = data.draw(st.integers(0, n - 1)), data.draw(st.integers(1, n))
    ids = [data.draw(st.integers(1, m)) if a != axis else 3 for a, m in enumerate(shape)]
    lead = data.draw(st.lists(st.integers(1, 3), min_size=0, max_size=2))
    how = "add" if dtype == "f32" else "none"
    chosen, places = d.ids(shape[axis], *ids), d.places(shape[:named], *lead)
    d.op("gather_elements", x, chosen, axis=axis)
    d.op("gather_nd", x, places)
    d.op("scatter_elements", x, chosen, d.x(*ids), axis=axis, reduction=how)
    d.op("scatter_nd", x, places, d.x(*lead, *shape[named:]), reduction=how)
    d.check(device)


@pytest.mark.parametrize("op", ["gather_nd", "gather_elements", "scatter_nd", "scatter_elements"])
@pytest.mark.parametrize("bad", [-6, 5])
def test_an_index_out_of_range_is_a_fault(device, op, bad):
    g = GraphBuilder("bad")
    x, ids = g.input("x", (5,)), g.input("i", (2, 1) if op.endswith("_nd") else (2,), "i64")
    more = [g.input("u", (2,))] if op.startswith("scatter") else []
    graph = g.build(g.op(f"nd.{op}", x, ids, *more))
    values = {"x": np.zeros(5, np.float32), "i": np.array([-5, bad]).reshape(ids.shape)}
    values |= {"u": np.ones(2, np.float32)} if more else {}
    with Scheduler([device]) as scheduler, pytest.raises(DeviceFault, match=f"row {bad} .*5 rows"):
        scheduler.run(graph, values)
