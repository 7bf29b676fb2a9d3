"""Rotations, copies into caches and attention as one kernel, on the host; see ``test_fibers``."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from ggsched.backend.program import Group
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import F16, F32, I32, DType
from ggsched.ir.tensor import Role
from ggsched_testing.oracle.interpreter import run_oracle
from tests.kernels.test_fibers import H200, NEEDS, drawn, laid_out, seen_by

pytestmark = NEEDS

FIRST, BEHIND = 3, 5  # rows of the caches before those that attention looks at, and behind them


@dataclass(frozen=True)
class Case:
    """A layer; ``rows`` are where the tokens go, counted from the first position."""

    rows: tuple[int, ...]
    n: int = 40
    groups: int = 2
    share: int = 4
    width: int = 64
    dtype: DType = F16
    pairing: str = "adjacent"
    turned: int = 0  # elements that are rotated; 0: all
    mask: str | None = None
    factors: bool = False
    sinks: bool = False
    units: int = 132

    @property
    def tokens(self):
        return len(self.rows)


def layer(c):
    """Return the graph of what stands between the products of a layer, and the values."""
    g = GraphBuilder("layer")
    across, rows, heads = c.groups * c.width, FIRST + c.n + BEHIND, c.groups * c.share
    positions, ids = g.input("positions", (c.tokens,), I32), g.input("ids", (c.tokens,), I32)
    q, k = (g.input(name, (c.tokens, h, c.width)) for name, h in (("q", heads), ("k", c.groups)))
    v = g.input("v", (c.tokens, across))
    caches = [g.input(name, (rows, across), c.dtype) for name in ("keys", "values")]
    turn = {"n_dims": c.turned or c.width, "pairing": c.pairing}
    factors = g.input("factors", (turn["n_dims"] // 2,)) if c.factors else None
    q = g.rope(q, positions, factors, **turn)
    k = g.reshape(g.rope(k, positions, factors, **turn), c.tokens, across)
    stored = [g.set_rows(cache, new, ids) for cache, new in zip(caches, (k, v), strict=True)]
    keys, values = (
        g.reshape(g.rows(s, FIRST, FIRST + c.n), c.n, c.groups, c.width) for s in stored
    )
    mask = g.input("mask", (c.tokens, c.n)) if c.mask == "scattered" else None
    bounds = g.input("bounds", (c.tokens, 2), I32) if c.mask and mask is None else None
    sinks = g.input("sinks", (heads,)) if c.sinks else None
    scale = c.width**-0.5
    made = g.attention(q, keys, values, mask=mask, sinks=sinks, bounds=bounds, scale=scale)
    graph = g.build(q, *stored, made)
    rng = np.random.default_rng(len(c.rows))
    given = {t.name: drawn(t, rng) for t in graph.roots(Role.INPUT) if t.dtype is not I32}
    given |= seen_by(graph, c.mask, c.tokens, c.n, rng)
    if c.factors:
        given["factors"] = rng.uniform(0.5, 8, turn["n_dims"] // 2).astype(np.float32)
    given["positions"] = np.arange(1000, 1000 + c.tokens, dtype=np.int32)
    given["ids"] = np.array(c.rows, np.int32) + FIRST
    return graph, given


def bound(graph, values, in_place):
    """Return the nodes in their groups and the memory; the queries perhaps rotated in place."""
    nodes, memory = laid_out(graph, values)
    if in_place:
        made, x = nodes[0].output.buffer, nodes[0].inputs[0].buffer
        memory = {tid: x if m is made else m for tid, m in memory.items()}
        nodes = [
            replace(
                node,
                inputs=tuple(replace(o, buffer=x) if o.buffer is made else o for o in node.inputs),
                output=replace(node.output, buffer=x if node is nodes[0] else node.output.buffer),
            )
            for node in nodes
        ]
    for i in (1, 2):
        nodes[i] = replace(nodes[i], group=Group("rope+set_rows", (1, 2)))
    return nodes, memory


def results(graph, memory):
    """Return the bytes of each result."""
    return {tid: memory[graph.tensors[tid].storage].view.copy() for tid in graph.outputs}


CASES = [
    Case((20,)),
    Case((0,), mask="scattered", dtype=F32, pairing="halves"),
    Case((39, 0), mask="prefix", sinks=True, factors=True),
    Case((44, 7, -3, 39), mask="window", turned=48, pairing="halves"),
    Case((40,), n=40),
    Case((-1,), dtype=F32, mask="all"),
    Case((128,), n=256, width=128, mask="prefix"),
    Case((255,), n=256, share=8, sinks=True, pairing="halves"),
    Case((5, 4), n=70, share=3, width=80, dtype=F32, mask="window", factors=True),
    Case((3, 2, 1, 0), n=8, share=1, groups=3, dtype=F32, mask="scattered", sinks=True),
    Case((6, 2), n=7, share=12, groups=1, width=24, pairing="halves"),
    Case((599,), n=600, groups=1, width=256, units=4, mask="window"),
    Case((0,), n=1, width=8, share=2),
    Case((300, 17), n=1000, groups=1, share=2, units=2, mask="scattered"),
]
FAST = 4


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(
    "case",
    [*CASES[:FAST], *(pytest.param(c, marks=pytest.mark.slow) for c in CASES[FAST:])],
    ids=str,
)
def test_a_layer(runner, case, in_place):
    """The kernel does what the oracle says, and to the bit what two kernels do."""
    from ggsched_cuda_kernels.kernel_selection import lower
    from ggsched_cuda_kernels.pdl_prefetch import DEFINE

    graph, values = layer(case)
    profile = replace(H200, num_sms=case.units)
    nodes, memory = bound(graph, values, in_place)
    (call,), _ = lower(nodes, profile)
    assert call.kernel == "heads_attention"
    runner.fault[:] = 0
    runner.run(call)
    assert not runner.fault.any()
    got = results(graph, memory)
    for tid, wanted in run_oracle(graph, values).items():
        found = got[tid].view(wanted.dtype).reshape(wanted.shape)
        # A number that lies between two of f16 may become either.
        tolerance = 2e-3 if case.dtype is F16 else 1e-5
        np.testing.assert_allclose(found, wanted, tolerance, tolerance, err_msg=str(tid))
    early, early_memory = bound(graph, values, in_place)
    (call,), _ = lower(early, profile)
    runner.run(replace(call, defines=tuple(sorted((*call.defines, DEFINE)))))
    apart, memory = bound(graph, values, in_place)
    for some in (apart[:4], apart[4:]):
        (call,), _ = lower(some, profile)
        runner.run(call)
    for other in (early_memory, memory):
        for tid, wanted in results(graph, other).items():
            np.testing.assert_array_equal(got[tid], wanted, err_msg=str(tid))


@pytest.mark.parametrize("wrong", [-1, 48, 1 << 30])
def test_a_bad_id(runner, wrong):
    """It is reported with the code of the node, and attention sees the caches as they were."""
    from ggsched_cuda_kernels.kernel_selection import lower

    graph, values = layer(Case((20, 21), mask="scattered"))
    values["ids"][1] = wrong
    nodes, memory = bound(graph, values, in_place=False)
    (call,), _ = lower(nodes, H200)
    keys, stored = nodes[2].label, nodes[3].label
    runner.fault[:] = 0
    runner.run(call, {keys: 7, stored: 8})
    assert runner.fault[:3].tolist() == [7, wrong, 48]
    got = results(graph, memory)
    # The same, with the second token going to a row that nobody looks at.
    values["ids"][1] = 0
    nodes, memory = bound(graph, values, in_place=False)
    (call,), _ = lower(nodes, H200)
    runner.run(call)
    others = results(graph, memory)
    for tid in (graph.outputs[0], graph.outputs[3]):
        np.testing.assert_array_equal(got[tid], others[tid])
    for tid, name in zip(graph.outputs[1:3], ("keys", "values"), strict=True):
        found = got[tid].view(np.float16).reshape(values[name].shape)
        assert not np.array_equal(found[FIRST + 20], values[name][FIRST + 20])
        found[FIRST + 20] = values[name][FIRST + 20]
        np.testing.assert_array_equal(found, values[name])


def test_what_lies_behind_the_positions_counts_for_nothing(runner):
    """Also where a warp still reads: nothing times infinity would be no number."""
    from ggsched_cuda_kernels.kernel_selection import lower

    graph, values = layer(Case((41,), n=41))
    values["v"][:] = np.inf
    nodes, memory = bound(graph, values, in_place=False)
    (call,), _ = lower(nodes, H200)
    runner.run(call)
    got = results(graph, memory)
    assert np.isfinite(got[graph.outputs[3]].view(np.float32)).all()
    assert np.isinf(got[graph.outputs[2]].view(np.float16)).sum() == values["v"].size
