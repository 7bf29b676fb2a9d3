"""Axes of 1 change neither the work of a kernel of the library ``nd`` nor how it is shared out."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import I32
from ggsched_kernels import CPU, GPU, KernelCall
from ggsched_kernels.lower import lower_nodes
from ggsched_testing.eager import bound_nodes
from tests.backends.against_oracle import check, tame
from tests.backends.opencl_devices import opencl_device


@dataclass(frozen=True)
class Memory:
    """A buffer that nobody reads; those of one number are equal."""

    number: int
    nbytes: int = 1 << 40
    readonly: bool = False


def calls_of(graph, profile=GPU):
    """Return the calls of a graph's nodes, without labels."""
    memory = {t.id: Memory(t.id) for t in graph.tensors if not t.is_view}
    calls = lower_nodes(bound_nodes(graph, memory), profile).calls
    assert all(isinstance(call, KernelCall) for call in calls)
    return [(c.source, c.defines, c.kernel, c.args, c.groups, c.lanes) for c in calls]


def windows(op, axes, batch=2, channels=3, made=4):
    """Return a graph of an op on windows; axes of (extent, kernel, stride, dilation, pads)."""
    g = GraphBuilder()
    shape, kernel, strides, dilations, before, behind = zip(*axes, strict=True)
    how = {"strides": strides, "dilations": dilations, "pads": (*before, *behind)}
    x = g.input("x", (batch, channels, *shape))
    if op == "nd.conv":
        w = g.input("w", (made, channels, *kernel))
        return g.build(g.op(op, x, w, group=1, **how))
    return g.build(g.op(op, x, kernel=kernel, **how))


@pytest.mark.parametrize("profile", [CPU, GPU], ids=["cpu", "gpu"])
@pytest.mark.parametrize("op", ["nd.conv", "nd.max_pool", "nd.average_pool"])
def test_a_column_is_worked_on_as_a_row(op, profile):
    """A [5, 1] kernel over an image of width 1 used one lane of each group, and one result of 8."""
    long, flat = (512, 5, 1, 1, 0, 0), (1, 1, 1, 1, 0, 0)
    column, row = (
        calls_of(windows(op, axes, 4, 256, 512), profile) for axes in ((long, flat), (flat, long))
    )
    assert column == row
    if profile is CPU:
        (*_, groups, _) = row[0]
        assert groups[1] == 1, "no group for each element of the column"


@st.composite
def axes(draw):
    """Draw one or two axes that windows slide along."""
    count = draw(st.integers(1, 2))
    found = []
    for _ in range(count):
        kernel, pad = draw(st.integers(1, 3)), draw(st.integers(0, 1))
        pads = (min(pad, kernel - 1), min(draw(st.integers(0, 1)), kernel - 1))
        found.append((draw(st.integers(3, 9)), kernel, draw(st.integers(1, 2)), 1, *pads))
    return found


OPS = ["nd.conv", "nd.max_pool", "nd.average_pool"]


@settings(max_examples=40)
@given(st.sampled_from(OPS), axes(), st.integers(0, 2), st.integers(1, 3))
def test_windows_do_not_see_axes_of_one(op, drawn, place, stride):
    wider = list(drawn)
    wider.insert(min(place, len(drawn)), (1, 1, stride, 1, 0, 0))
    assert calls_of(windows(op, wider)) == calls_of(windows(op, drawn))


def elements(op, shape):
    """Return a graph of an op of the library on operands of a shape, or on its first axes."""
    g = GraphBuilder()
    x = g.input("x", shape)
    rest = tuple(range(2, len(shape)))
    match op:
        case "nd.add":
            made = g.op(op, x, g.input("y", shape))
        case "nd.transpose":
            made = g.op(op, x, perm=(1, 0, *rest))
        case "nd.slice":
            n = len(shape)
            made = g.op(op, x, starts=(1, *(0,) * (n - 1)), stops=shape, steps=(1,) * n)
        case "nd.concat":
            made = g.op(op, x, g.input("y", shape), axis=1)
        case "nd.gather":
            made = g.op(op, x, g.input("ids", (3,), I32), axis=0)
        case _:
            made = g.op(op, x, axes=(0,), keepdims=False)
    return g.build(made)


OTHERS = ["nd.add", "nd.transpose", "nd.slice", "nd.concat", "nd.gather", "nd.reduce_max"]


@settings(max_examples=40)
@given(
    st.sampled_from(OTHERS),
    st.tuples(st.integers(2, 9), st.integers(2, 9)),
    st.integers(1, 3),
)
def test_other_kernels_do_not_see_trailing_axes_of_one(op, shape, ones):
    assert calls_of(elements(op, (*shape, *(1,) * ones))) == calls_of(elements(op, shape))


@pytest.mark.opencl
@pytest.mark.parametrize("profile", ["cpu", "gpu"])
@settings(max_examples=20)
@given(op=st.sampled_from(OPS), drawn=axes(), places=st.lists(st.integers(0, 2), max_size=2))
def test_results(profile, op, drawn, places):
    for place in places[: 3 - len(drawn)]:
        drawn.insert(min(place, len(drawn)), (1, 1, 2, 1, 0, 0))
    device = opencl_device(profile=profile)
    try:
        graph = windows(op, drawn)
        check(device, graph, tame(graph))
    finally:
        device.close()
