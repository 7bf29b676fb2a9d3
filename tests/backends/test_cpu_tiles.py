"""Compiled products of several matrices, transposed convolutions and means of windows."""

from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggsched import GraphBuilder
from ggsched_cpu import native
from ggsched_cpu.device import CpuDevice, CpuSettings
from ggsched_cpu.lowering.tasks import Task
from ggsched_cpu.program import compile_steps
from tests.backends import against_oracle
from tests.backends.test_cpu_moves import values_of

pytestmark = pytest.mark.skipif(native.library() is None, reason="no compiled kernels")

DEVICES = [CpuDevice(0, CpuSettings(threads=n)) for n in (1, 3)] if native.library() else []
TEAM = 3


def tasks_of(graph, device):
    """Run a graph, compare it with the oracle, and return the works of its programs."""
    made = []

    def keep(nodes, kernels=None):
        steps = compile_steps(nodes, kernels)
        made.extend(step.work for step in steps)
        return steps

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ggsched_cpu.device.compile_steps", keep)
        against_oracle.check(
            device, graph, values_of(graph, len(graph.nodes)), rtol=1e-4, atol=1e-4
        )
    return made


def check(graph):
    """Every node is compiled, for one thread and for several, and gives the oracle's results."""
    for device in DEVICES:
        works = tasks_of(graph, device)
        assert works
        assert all(isinstance(work, Task) for work in works)


@given(
    batches=st.sampled_from([(), (1,), (3,), (1, 4), (2, 3)]),
    m=st.sampled_from([9, 16, 40]),
    n=st.sampled_from([1, 15, 16, 47, 48, 100, 256]),
    k=st.sampled_from([1, 15, 33]),
    w_turned=st.booleans(),
    x_turned=st.booleans(),
    inside=st.booleans(),
)
@settings(max_examples=40)
def test_products_of_several_matrices(batches, m, n, k, w_turned, x_turned, inside):
    """Both operands by rows or by columns, heads beside each other or inside of rows."""
    g = GraphBuilder()

    def operand(name, rows, turned):
        shape = (*batches, k, rows) if turned else (*batches, rows, k)
        if inside and len(shape) > 2:  # rows of all heads, then the next row
            order = (*range(len(shape) - 3), len(shape) - 2, len(shape) - 3, len(shape) - 1)
            x = g.permute(g.input(name, tuple(shape[a] for a in order)), *order)
        else:
            x = g.input(name, shape)
        return g.transpose(x) if turned else x

    graph = g.build(g.mul_mat(operand("w", n, w_turned), operand("x", m, x_turned)))
    for device in DEVICES:
        works = tasks_of(graph, device)
        if batches or w_turned or x_turned:
            assert all(isinstance(work, Task) for work in works)


@given(
    kernel=st.lists(st.integers(1, 3), min_size=1, max_size=2),
    spatial=st.lists(st.integers(1, 37), min_size=2, max_size=2),
    images=st.integers(1, 2),
    groups=st.integers(1, 2),
    per=st.integers(1, 9),
    each=st.integers(1, 5),
    bias=st.booleans(),
)
@settings(max_examples=40)
def test_windows_that_do_not_overlap_are_spread(kernel, spatial, images, groups, per, each, bias):
    g = GraphBuilder()
    n = len(kernel)
    x = g.input("x", (images, groups * per, *spatial[:n]))
    operands = [x, g.weight("w", (groups * per, each, *kernel))]
    if bias:
        operands.append(g.weight("b", (groups * each,)))
    params = {"strides": tuple(kernel), "dilations": (1,) * n, "pads": (0,) * 2 * n,
              "more": (0,) * n, "group": groups, "bias": bias}  # fmt: skip
    check(g.build(g.op("nd.conv_transpose", *operands, **params)))


@given(
    kernel=st.lists(st.integers(1, 4), min_size=1, max_size=2),
    strides=st.lists(st.integers(1, 2), min_size=2, max_size=2),
    more=st.lists(st.integers(0, 40), min_size=2, max_size=2),
    pads=st.integers(0, 1),
)
@settings(max_examples=30)
def test_means_of_windows(kernel, strides, more, pads):
    g = GraphBuilder()
    n = len(kernel)
    shape = (2, 3, *(k + m for k, m in zip(kernel, more, strict=False)))
    params = {"kernel": tuple(kernel), "strides": tuple(strides[:n]), "dilations": (1,) * n,
              "pads": (min(pads, min(kernel) - 1),) * 2 * n, "counts_pads": True}  # fmt: skip
    check(g.build(g.op("nd.average_pool", g.input("x", shape), **params)))


def parts_of(graph):
    return [(work.parts, work.is_serial) for work in tasks_of(graph, DEVICES[-1])]


def test_one_run_of_memory_is_moved_by_all_threads():
    """Parts of a concatenation along the first axis have one row each."""
    g = GraphBuilder()
    parts = [g.input(name, (1, 24, 40, 40)) for name in "ab"]
    graph = g.build(g.op("nd.concat", *parts, axis=1))
    assert len(parts_of(graph)) == 2
    assert all(count >= TEAM and not serial for count, serial in parts_of(graph))


@pytest.mark.parametrize("times", range(1, 10))
@pytest.mark.parametrize("dtype", ["f32", "i32", "f16"])
def test_elements_are_repeated(times, dtype):
    """Pixels, as an image is made larger: along lines, and whole lines."""
    g = GraphBuilder()
    inputs = [g.input(f"x{n}", (3, 5, 1, n, 1), dtype) for n in (1, 15, 16, 37)]
    wider = [(3, 5, times, x.shape[3], times) for x in inputs]
    pairs = zip(inputs, wider, strict=True)
    check(g.build(*(g.op("nd.expand", x, shape=shape) for x, shape in pairs)))


def test_long_windows_are_work_for_all_threads():
    """However little memory they read; one line of sums is taken as several, and a rest."""
    g = GraphBuilder()
    params = {"strides": (2,), "dilations": (1,), "pads": (0, 0), "group": 1, "bias": False}
    x, w = g.input("x", (1, 1, 1210)), g.weight("w", (3, 1, 511))
    _, (parts, serial), _ = parts_of(g.build(g.op("nd.conv", x, w, **params)))
    assert parts >= TEAM
    assert not serial
    g = GraphBuilder()
    params = {"kernel": (5, 5), "strides": (1, 1), "dilations": (1, 1), "pads": (2,) * 4}
    x = g.input("x", (1, 16, 20, 20))
    assert prod(x.shape) * 4 < 32 << 10
    (_, (parts, serial)) = parts_of(g.build(g.op("nd.max_pool", x, **params)))
    assert parts >= TEAM
    assert not serial


@pytest.mark.parametrize("shape", [(5, 1), (2, 16, 4, 37), (3, 3, 2, 2, 16)])
@pytest.mark.parametrize("axis", [0, 1, -2])
def test_softmax_over_an_axis_before_the_last(shape, axis):
    g = GraphBuilder()
    axis = axis % len(shape) if axis % len(shape) < len(shape) - 1 else 0
    graph = g.build(g.op("nd.softmax", g.input("x", shape), axis=axis))
    check(graph)
    values = values_of(graph, 0)
    values["x"].flat[:4] = np.nan, np.inf, -np.inf, 200.0
    for device in DEVICES:
        against_oracle.check(device, graph, values, rtol=1e-5, atol=1e-6)


def test_panels_of_few_tokens_are_laid_out_by_all_threads():
    g = GraphBuilder()
    graph = g.build(g.mul_mat(g.weight("w", (64, 384)), g.input("x", (64, 384))))
    (parts, serial), _ = parts_of(graph)
    assert parts > 1
    assert not serial


def test_what_overlaps_has_no_kernel():
    g = GraphBuilder()
    params = {"strides": (2,), "dilations": (1,), "pads": (0, 0), "more": (0,), "group": 1,
              "bias": False}  # fmt: skip
    y = g.op("nd.conv_transpose", g.input("x", (1, 2, 9)), g.weight("w", (2, 3, 3)), **params)
    assert not any(isinstance(work, Task) for work in tasks_of(g.build(y), DEVICES[0]))


@pytest.mark.parametrize(
    ("few", "many"),
    [((1,), (3,)), ((2, 1), (2, 4)), ((1, 2), (3, 6)), ((1, 1), (2, 2)), ((2,), (4,))],
)
def test_products_that_share_matrices(few, many):
    """Neighbouring heads share one; then neighbouring batches."""
    g = GraphBuilder()
    check(g.build(g.mul_mat(g.input("w", (*few, 20, 7)), g.input("x", (*many, 11, 7)))))


def test_zeros_times_infinity_are_seen():
    """Panels have lanes that are not there; nothing comes from these."""
    g = GraphBuilder()
    graph = g.build(g.mul_mat(g.input("w", (2, 17, 5)), g.input("x", (2, 9, 5))))
    values = values_of(graph, 0)
    values["w"][0, 16, 4] = np.inf
    for device in DEVICES:
        against_oracle.check(device, graph, values)
