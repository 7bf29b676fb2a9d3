"""Kernels that write rows of bf16 beside their results, on the host; see ``test_fibers``.

What a product by cuBLAS takes is compared with what the kernel wrote as f32: each number is the
nearest of bf16.
"""

from dataclasses import replace

import numpy as np
import pytest

from ggsched.backend.program import Group
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import BF16, F16, F32, Q8_0
from ggsched.ir.tensor import Role
from ggsched_kernels import FACTOR, KernelCall
from ggsched_testing.oracle.interpreter import run_oracle
from tests.kernels.test_fibers import H200, NEEDS, Memory, drawn, laid_out

pytestmark = NEEDS

AUTO = replace(H200, activations="auto")
N = 64


def normed(g, rows, n):
    x = g.input("x", (rows, n))
    return [g.mul(g.rms_norm(x), g.weight("w", (n,)))], [("rms_norm+mul", 0, 2)]


def residual(g, rows, n):
    y = g.add(g.input("x", (rows, n)), g.input("z", (rows, n)))
    return [g.mul(g.rms_norm(y), g.weight("w", (n,))), y], [("rms_norm+mul", 1, 3)]


def gated(g, rows, n):
    """Of a row that has gate and up side by side."""
    both = g.input("both", (rows, 2 * n))
    parts = [g.view(both, (rows, n), both.strides, 4 * n * i) for i in range(2)]
    return [g.swiglu(*parts)], []


def attention(g, rows, n):
    """Few queries and many keys: shares of these are joined."""
    q = g.input("q", (rows, n // 16, 16))
    k, v = (g.input(name, (600, n // 16, 16), F16) for name in ("k", "v"))
    made = g.attention(q, k, v, scale=0.25)
    return [g.reshape(made, rows, n)], []


def attention_of_many(g, rows, n):
    """Few enough keys that there are no shares, and more rows of queries than few."""
    q = g.input("q", (rows, n // 16, 16))
    k, v = (g.input(name, (40, n // 64, 16), F16) for name in ("k", "v"))
    return [g.reshape(g.attention(q, k, v, scale=0.25), rows, n)], []


MAKERS = {f.__name__: f for f in (normed, residual, gated, attention, attention_of_many)}


def built(maker, rows=33, n=N, dtype=BF16):
    """Return a graph of a product of what a kernel makes, its values, nodes and memory."""
    g = GraphBuilder(maker.__name__)
    (x, *more), groups = maker(g, rows, n)
    graph = g.build(x, *more, g.mul_mat(g.weight("matrix", (48, n), dtype), x))
    rng = np.random.default_rng(3)
    leaves = [*graph.roots(Role.INPUT), *graph.roots(Role.WEIGHT)]
    values = {t.name: drawn(t, rng) for t in leaves}
    nodes, memory = laid_out(graph, values)
    return graph, values, with_groups(nodes, groups), memory


def with_groups(nodes, groups):
    for name, first, end in groups:
        group = Group(name, tuple(n.node for n in nodes[first:end]))
        nodes[first:end] = [replace(n, group=group) for n in nodes[first:end]]
    return nodes


def kernels_of(nodes, profile=AUTO):
    from ggsched_cuda_kernels.kernel_selection import lower

    return [getattr(c, "kernel", "product") for c in lower(nodes, profile)[0]]


OF_WHOLE_ROWS = [name for name in MAKERS if name != "attention_of_many"]
"""Whose groups may have whole rows, which a scale of f16 needs."""

KERNELS = {
    "normed": ["rms_mul"],
    "residual": ["sum_norm"],
    "gated": ["gated_rows"],
    "attention": ["flash_attention", "flash_join"],
    "attention_of_many": ["flash_attention"],
}


@pytest.mark.parametrize(
    ("name", "rows"),
    [*((name, 33) for name in MAKERS), ("normed", 4), ("residual", 4), ("gated", 4)],
)
def test_rows_are_written_beside_the_result(runner, name, rows):
    from ggsched_cuda_kernels.kernel_selection import lower

    graph, values, nodes, memory = built(MAKERS[name], rows)
    calls, needed = lower(nodes, AUTO)
    assert [c.kernel for c in calls if isinstance(c, KernelCall)] == KERNELS[name]
    runner.memory = {place: Memory(nbytes) for place, nbytes in needed.items()}
    for call in calls[:-1]:
        runner.run(call)
    wanted = run_oracle(graph, values)
    for tid in graph.outputs[:-1]:
        t = graph.tensors[tid]
        made = memory[t.storage].view.view(np.float32).reshape(wanted[tid].shape)
        allowed = 2e-2 if name.startswith("attention") else 1e-5
        np.testing.assert_allclose(made, wanted[tid], allowed, allowed)
    x = memory[graph.tensors[graph.outputs[0]].storage].view.view(np.uint32)
    rounded = (x + 0x7FFF + (x >> 16 & 1) >> 16).astype(np.uint16)
    halves = runner.memory[FACTOR].view[: 2 * x.size].view(np.uint16)
    np.testing.assert_array_equal(halves, rounded)


@pytest.mark.parametrize("name", OF_WHOLE_ROWS)
def test_who_takes_no_rows_of_bf16_gets_none(name):
    maker, first = MAKERS[name], KERNELS[name]
    assert kernels_of(built(maker, n=80)[2])[: len(first) + 1] == [*first, "to_halves"]
    assert "to_halves" not in kernels_of(built(maker, dtype=F16)[2]), "scaled rows of f16"
    exact = kernels_of(built(maker)[2], replace(AUTO, activations="f32"))
    assert exact[: len(first) + 1] == [*first, "to_bf16"]
    assert kernels_of(built(maker, dtype=F32)[2]) == [*first, "product"]
    few = built(maker, rows=4, dtype=F16)
    assert kernels_of(few[2])[-1] == "matvec_rows"  # which takes rows as they are


def test_a_second_product_converts_nothing():
    """Queries, keys and values are products of the same rows."""
    g = GraphBuilder("three")
    (x,), groups = normed(g, 40, N)
    sizes = {"q": 48, "k": 32, "v": 64}
    graph = g.build(*(g.mul_mat(g.weight(name, (n, N), BF16), x) for name, n in sizes.items()))
    values = {t.name: drawn(t, np.random.default_rng(0)) for t in graph.tensors if t.name}
    nodes = with_groups(laid_out(graph, values)[0], groups)
    assert kernels_of(nodes) == ["rms_mul", *["product"] * 3]


def test_rows_are_converted_again_when_they_have_changed():
    """What a later node writes over is not what the kernel rounded."""
    g = GraphBuilder("changed")
    (x,), groups = normed(g, 40, N)
    first = g.mul_mat(g.weight("a", (48, N), BF16), x)
    twice = g.scale(x, 2.0, inplace=True)
    graph = g.build(first, g.mul_mat(g.weight("b", (48, N), BF16), twice))
    values = {t.name: drawn(t, np.random.default_rng(0)) for t in graph.tensors if t.name}
    nodes = with_groups(laid_out(graph, values)[0], groups)
    assert kernels_of(nodes) == ["rms_mul", "product", "unary", "to_halves", "product"]


@pytest.mark.parametrize("shift", [0, 1, -1])
@pytest.mark.parametrize("below", ["x", "z"])
def test_a_norm_may_lie_on_an_addend_but_not_beside(runner, below, shift):
    """On the same rows; a row further, another group may not have read what it writes over."""
    from ggsched_cuda_kernels.kernel_selection import lower

    graph, values, nodes, memory = built(residual, rows=34)
    place = next(t for t in graph.roots(Role.INPUT) if t.name == below)
    made, nbytes = graph.tensors[graph.outputs[0]], 4 * N * 34
    room = Memory(nbytes + 2 * 4 * N)
    room.view[4 * N : 4 * N + nbytes] = memory[place.id].view
    old, moved = memory[made.storage], 4 * N * (1 + shift)

    def at(o):
        if o.buffer is memory[place.id]:
            return replace(o, buffer=room, offset=o.offset + 4 * N)
        return replace(o, buffer=room, offset=o.offset + moved) if o.buffer is old else o

    nodes = [replace(n, inputs=tuple(map(at, n.inputs)), output=at(n.output)) for n in nodes]
    calls, needed = lower(nodes, AUTO)
    first = ["sum_norm"] if shift == 0 else ["binary", "rms_mul"]
    assert [c.kernel for c in calls if isinstance(c, KernelCall)] == first
    runner.memory = {name: Memory(n) for name, n in needed.items()}
    for call in calls[: len(first)]:
        runner.run(call)
    wanted = run_oracle(graph, values)[made.id]
    got = room.view[moved : moved + nbytes].view(np.float32).reshape(wanted.shape)
    np.testing.assert_allclose(got, wanted, 1e-5, 1e-5)


@pytest.mark.parametrize(("n", "rows"), [(4096, 1), (4096, 512), (128, 4), (16384, 512), (4, 200)])
def test_lanes_keep_a_row(n, rows):
    from ggsched_cuda_kernels.decode.fused import MAX_UNITS, lanes_of

    lanes, units = lanes_of(n, rows)
    assert 32 <= lanes <= 1024
    assert lanes & (lanes - 1) == 0
    assert 4 * lanes * (units - 1) < n <= 4 * lanes * units
    assert units <= MAX_UNITS


@pytest.mark.parametrize("name", OF_WHOLE_ROWS)
@pytest.mark.parametrize("scale", [1.0, 1e6, 1e-9, 0.0])
def test_rows_of_f16_with_a_scale_for_each(runner, name, scale, monkeypatch):
    """Those that a kernel of its own would make, to the bit."""
    from ggsched_cuda_kernels.kernel_selection import lower

    graph, _, nodes, memory = built(MAKERS[name], rows=19, dtype=Q8_0)
    scaled = next(t for t in graph.tensors if t.name in ("w", "both", "v"))
    data = memory[scaled.storage].view.view(np.float16 if scaled.dtype is F16 else np.float32)
    data[:] *= min(scale, 1e3) if scaled.dtype is F16 else scale
    profile = AUTO if name == "attention" else replace(AUTO, num_sms=1)
    monkeypatch.setattr("ggsched_cuda_kernels.tiles.MIN_SHARE", 0)
    calls, needed = lower(nodes, profile)
    first = calls[:-1]
    assert [c.kernel for c in calls] == [*KERNELS[name], "tile_product"]
    assert ("HALVES", "2") in first[-1].defines
    runner.memory = {place: Memory(nbytes) for place, nbytes in needed.items()}
    for call in first:
        runner.run(call)
    made = runner.memory[FACTOR].view.copy()
    (convert, _), more = lower(nodes[-1:], profile)
    assert (convert.kernel, dict(convert.defines)["UNITS"]) == ("to_halves", "1")
    for units in ("1", "0"):
        runner.memory = {place: Memory(nbytes) for place, nbytes in more.items()}
        defines = tuple(sorted({**dict(convert.defines), "UNITS": units}.items()))
        runner.run(replace(convert, defines=defines))
        alone = runner.memory[FACTOR].view
        assert len(alone) == len(made)
        np.testing.assert_array_equal(made, alone)
