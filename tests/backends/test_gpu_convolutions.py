"""Convolutions and reductions as GPUs run them, on OpenCL, against the oracle."""

import numpy as np
import pytest

from ggsched import GraphBuilder, Scheduler
from ggsched.ir.dtype import F16, F32
from ggsched_kernels import convolution as gpu
from ggsched_kernels.array_table import REDUCTIONS
from ggsched_kernels.convolution import TILES, Conv, choose_tile
from ggsched_kernels.lower import lower_nodes
from ggsched_testing.oracle.interpreter import run_oracle
from tests.backends.against_oracle import check, tame
from tests.backends.opencl_devices import opencl_device

pytestmark = pytest.mark.opencl


@pytest.fixture(scope="module")
def device():
    made = opencl_device(profile="gpu")
    yield made
    made.close()


def conv_graph(x, w, *, behind=(), bias=True, residual=False, dtype=F32, **params):
    """Return a graph; ``residual`` adds an operand of the shape of the result."""
    n = len(x) - 2
    how = {"strides": [1] * n, "dilations": [1] * n, "pads": [0] * 2 * n, "group": 1, **params}
    g = GraphBuilder()
    operands = [g.input("x", x, dtype), g.weight("w", w, dtype)]
    operands += [g.weight("b", w[:1], dtype)] if bias else []
    y = g.op("nd.conv", *operands, **how, bias=bias)
    if residual:
        y = g.add(y, g.input("r", y.shape))
    for op, own in behind:
        y = g.op(op, y, **own)
    return g.build(y)


def values_of(graph):
    rng = np.random.default_rng(7)
    named = [t for t in graph.tensors if t.name and not t.is_view]
    return {t.name: rng.standard_normal(t.shape).astype(np.float32) for t in named}


def case(tile, shares, x, w, **more):
    return tile, shares, {"x": x, "w": w, **more}


DEEP, SQUARE, NARROW, FLAT = TILES
RELU, CLAMP = [("nd.relu", {})], [("clamp", {"min": -0.5, "max": 0.75})]
CASES = {
    "3 x 3, pads, columns that fill no vector": case(
        SQUARE, 1, (2, 5, 7, 9), (70, 5, 3, 3), pads=[1, 1, 1, 1]
    ),
    "3 x 3 with a residual and relu, shared sums": case(
        DEEP, 3, (1, 24, 8, 8), (40, 24, 3, 3), pads=[1, 1, 1, 1], residual=True, behind=RELU
    ),
    "1 x 1 inside, whole vectors": case(
        DEEP, 1, (1, 32, 4, 40), (130, 32, 1, 1), bias=False, behind=CLAMP
    ),
    "groups, strides and dilations": case(
        FLAT, 2, (2, 12, 13, 11), (30, 4, 2, 3),
        group=3, strides=[2, 1], dilations=[1, 2], pads=[0, 1, 1, 2],
    ),
    "along time": case(
        FLAT, 1, (1, 8, 300), (20, 8, 5), pads=[4, 0],
        behind=[("silu", {}), ("scale", {"scale": 0.5, "bias": 1.0})],
    ),
    "in space": case(
        NARROW, 1, (1, 3, 5, 6, 7), (16, 3, 2, 3, 2), strides=[1, 2, 1], pads=[1, 0, 1, 0, 1, 0]
    ),
    "a column of an image": case(
        None, 1, (2, 6, 40, 1), (9, 6, 5, 1), pads=[2, 0, 2, 0], residual=True
    ),
    "depthwise": case(
        None, 1, (2, 6, 9, 9), (12, 1, 3, 3), group=6, strides=[2, 2], pads=[1, 1, 0, 0],
        behind=[("nd.hard_swish", {})],
    ),
}  # fmt: skip
"""Each cut once, with what else makes another program."""


def test_the_cases_have_every_tile():
    assert {tile for tile, *_ in CASES.values()} == {None, *TILES}


@pytest.mark.parametrize("name", CASES)
def test_against_the_oracle(device, name, monkeypatch):
    """Ops behind a convolution are part of its last kernel."""
    tile, shares, how = CASES[name]
    monkeypatch.setattr(gpu, "choose_tile", lambda *_: (tile, shares))
    kernels = []

    def lowered(nodes, profile):
        found = lower_nodes(nodes, profile)
        kernels.extend(call.kernel for call in found.calls)
        return found

    monkeypatch.setattr("ggsched_opencl.program.lower_nodes", lowered)
    graph = conv_graph(**how)
    values = values_of(graph)
    inputs = {name: value for name, value in values.items() if name in "xr"}
    with Scheduler([device], weights=values) as scheduler:
        found = scheduler.run(graph, inputs)
    for tid, wanted in run_oracle(graph, values).items():
        np.testing.assert_allclose(found[tid], wanted, 1e-4, 1e-4)
    own = ["conv_each"] if tile is None else ["conv_tiles", "conv_sums"][: 1 + (shares > 1)]
    assert kernels == own


def test_windows_of_f16(device):
    """They are computed in f32, and their results rounded once."""
    g = GraphBuilder()
    x, w, each = (
        g.input(n, s, F16)
        for n, s in (("x", (1, 8, 7, 6)), ("w", (9, 8, 3, 3)), ("e", (8, 1, 2, 2)))
    )
    how = {"strides": [1, 2], "dilations": [1, 1], "pads": [1, 0, 1, 1]}
    outs = [
        g.op("nd.conv", x, w, bias=False, group=1, **how),
        g.op("nd.conv", x, each, bias=False, group=8, **how),
        g.op("nd.max_pool", x, kernel=[3, 2], **how),
        g.op("nd.average_pool", x, kernel=[3, 2], extra=(0, 0), counts_pads=False, **how),
    ]
    graph = g.build(*outs)
    values = {name: value.astype(np.float16) for name, value in values_of(graph).items()}
    with Scheduler([device]) as scheduler:
        found = scheduler.run(graph, values)
    for tid, wanted in run_oracle(graph, values).items():
        np.testing.assert_array_max_ulp(found[tid], wanted, 1)


RESNET = {
    "many positions": ((1, 64, 1, (1, 1, 1), (56, 56)), 1),
    "a deep sum": ((1, 512, 512, (1, 3, 3), (7, 7)), 16),
    "a batch": ((16, 256, 512, (1, 1, 1), (28, 28)), 1),
}


def test_few_positions_share_sums_and_many_do_not():
    """On 132 multiprocessors, as an H100 has."""
    for (images, channels, m, kernel, (h, w)), least in RESNET.values():
        one, pads = (1, 1, 1), tuple(k // 2 for k in kernel)
        m = max(m, 64)
        c = Conv(images, channels, m, 1, kernel, one, one, pads, (1, h, w), (1, h, w))
        tile, shares = choose_tile(c, 132)
        assert tile is not None
        assert (shares > 1) == (least > 1)


def test_windows_that_reach_beyond_31_bits_have_no_table():
    """Elements of x fit, places in the pads behind them do not."""
    image, one = (1, 16_000, 16_000), (1, 1, 1)
    c = Conv(1, 8, 8, 1, (5, 1, 1), one, one, (2, 0, 0), image, image)
    assert choose_tile(c, 132) == (None, 1)
    tile, _ = choose_tile(c._replace(kernel=(1, 5, 1), pads=(0, 2, 0)), 132)
    assert tile is not None


@pytest.mark.parametrize("op", REDUCTIONS)
def test_lanes_share_long_sums(device, op):
    """Along the last axis, along several, and along one in front of few others."""
    g = GraphBuilder()
    x, turned = g.input("x", (3, 5, 11, 7)), g.input("t", (3, 9, 40))
    own = {"keepdims": False}
    outs = [
        g.op(f"nd.{op}", x, axes=(2, 3), **own),
        g.op(f"nd.{op}", x, axes=(0, 1, 3), **own),
        g.op(f"nd.{op}", g.permute(turned, 1, 2, 0), axes=(1,), **own),
        g.op(f"nd.{op}", turned, axes=(2,), **own),
    ]
    graph = g.build(*outs)
    check(device, graph, tame(graph))
