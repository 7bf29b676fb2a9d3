"""Sums over devices with residual and norm as one kernel, on the host; see ``test_fibers``."""

from dataclasses import replace

import numpy as np
import pytest

from ggsched.backend.program import Group
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.tensor import Role
from ggsched_kernels.calls import MAX_PEERS
from ggsched_kernels.fault_words import FaultCodes
from ggsched_testing.eager import bound_nodes
from ggsched_testing.oracle.interpreter import run_oracle
from tests.kernels.test_fibers import H200, NEEDS, laid_out
from tests.kernels.test_fibers_moe_router import check

pytestmark = NEEDS


def sums(shape, *, is_first=True, has_norm=True, rest=None):
    """Return the graph of a + b, z added to it, and the norm of that with its weight."""
    g = GraphBuilder("sums")
    a, b, z = g.input("a", shape), g.input("b", shape), g.input("z", rest or shape)
    total = g.add(a, b)
    y = g.add(total, z) if is_first else g.add(z, total)
    if not has_norm:
        return g.build(y)
    return g.build(y, g.mul(g.rms_norm(y), g.weight("w", shape[-1:])))


def lowered(graph, nodes, sums=2):
    from ggsched_cuda_kernels.kernel_selection import lower

    groups = [("add+add", nodes[k : k + 2]) for k in range(0, sums, 2)]
    groups.append(("rms_norm+mul", nodes[sums:]))
    members = [
        replace(n, group=Group(pattern, tuple(m.node for m in some)))
        for pattern, some in groups
        for n in some
    ]
    return lower(members, H200)[0]


def drawn(graph):
    rng = np.random.default_rng(5)
    leaves = [*graph.roots(Role.INPUT), *graph.roots(Role.WEIGHT)]
    return {t.name: rng.integers(-64, 64, t.shape).astype(np.float32) / 16 for t in leaves}


@pytest.mark.parametrize("has_norm", [True, False])
@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("shape", [(1, 4100), (3, 132)], ids=str)
def test_one_kernel(runner, shape, is_first, has_norm):
    graph = sums(shape, is_first=is_first, has_norm=has_norm)
    values = drawn(graph)
    nodes, memory = laid_out(graph, values)
    (call,) = lowered(graph, nodes)
    assert (call.kernel, dict(call.defines)["NORM"]) == ("sum_norm", str(int(has_norm)))
    runner.run(call)
    check(graph, memory, run_oracle(graph, values))


@pytest.mark.parametrize("below", ["a", "b", "z"])
@pytest.mark.parametrize("which", [0, 1], ids=["sum", "norm"])
def test_results_lie_on_what_is_dead(runner, below, which):
    graph = sums((3, 132))
    values = drawn(graph)
    _, memory = laid_out(graph, values)
    (place,) = (t for t in graph.roots(Role.INPUT) if t.name == below)
    memory[graph.tensors[graph.outputs[which]].storage] = memory[place.id]
    (call,) = lowered(graph, bound_nodes(graph, memory))
    runner.run(call)
    check(graph, memory, run_oracle(graph, values))


def test_what_does_not_fit_is_more_kernels():
    """Rows of no vectors, a broadcast residual, and a norm that lies elsewhere on an addend."""
    for graph in (sums((2, 33)), sums((2, 132), rest=(1, 132))):
        calls = lowered(graph, laid_out(graph, drawn(graph))[0])
        assert [c.kernel for c in calls][:2] == ["binary", "binary"]
    graph = sums((3, 132))
    nodes, memory = laid_out(graph, drawn(graph))
    b = next(t for t in graph.roots(Role.INPUT) if t.name == "b")
    row = 4 * 132
    made = nodes[-1].output
    moved = replace(made, buffer=memory[b.id], offset=row)
    nodes[-1] = replace(nodes[-1], output=moved)
    assert [c.kernel for c in lowered(graph, nodes)] == ["sum_norm", "rms_mul"]


PATIENCE_MS = 3


def rendezvous(rows, signals):
    """Return a call that meets those of other GPUs, its words and theirs, and its memory.

    Args:
        rows: Of the sum.
        signals: How often each other one has signalled so far.
    """
    graph = sums((rows, 132))
    nodes, memory = laid_out(graph, drawn(graph))
    (call,) = lowered(graph, nodes)
    own = np.repeat(np.array(signals, np.uint32)[:, None], rows, axis=1)
    peers = np.zeros_like(own)
    pairs = [(a.ctypes.data, b.ctypes.data) for a, b in zip(own, peers, strict=True)]
    pairs += [(0, 0)] * (MAX_PEERS - len(signals))
    values = [*(address for pair in pairs for address in pair), PATIENCE_MS * 1_000_000]
    args = list(call.args)
    args[call.meets : call.meets + len(values)] = [v.to_bytes(8, "little") for v in values]
    return replace(call, args=tuple(args)), own, peers, (graph, memory)


@pytest.mark.parametrize("others", range(1, MAX_PEERS + 1))
def test_a_kernel_meets_those_of_other_gpus(runner, others):
    """It signals each other one for each row, and its own words are zeros again."""
    call, own, peers, (graph, memory) = rendezvous(3, [1] * others)
    runner.fault[:] = 0
    runner.run(call)
    assert not own.any()
    assert peers.all()
    assert not runner.fault.any()
    check(graph, memory, run_oracle(graph, drawn(graph)))


@pytest.mark.parametrize("signals", [[0], [1, 0], [0, 1, 1]])
def test_one_whom_somebody_does_not_meet_gives_up(runner, signals):
    call, own, peers, _memory = rendezvous(2, signals)
    runner.fault[:] = 0
    runner.run(call, {call.label: 1})
    assert peers.all(), "the others are signalled all the same"
    assert not own.any()
    codes = FaultCodes("cuda:0.q0")
    codes.argument(call.label)
    fault = codes.fault(runner.fault.tolist())
    runner.fault[:] = 0
    assert call.label in str(fault)
    assert f"was not ready within {PATIENCE_MS / 1e3:g} s" in str(fault)


def test_many_rows_do_not_meet():
    """Groups that wait have to be on the GPU at once."""
    graph = sums((33, 132))
    (call,) = lowered(graph, laid_out(graph, drawn(graph))[0])
    assert call.meets < 0


def sums_of_four(shape, has_norm):
    """Return the graph of ((a + b) + c) + d, z added to it, and the norm of that."""
    g = GraphBuilder("sums of four")
    a, b, c, d, z = (g.input(name, shape) for name in "abcdz")
    part = g.add(g.add(a, b), c)
    y = g.add(z, g.add(part, d))
    if not has_norm:
        return g.build(part, y)
    return g.build(part, y, g.mul(g.rms_norm(y), g.weight("w", shape[-1:])))


@pytest.mark.parametrize("has_norm", [True, False])
@pytest.mark.parametrize("shape", [(1, 4100), (3, 132), (40, 132)], ids=str)
def test_a_sum_of_four_is_one_kernel(runner, shape, has_norm):
    """With what the first group gives to others."""
    graph = sums_of_four(shape, has_norm)
    values = drawn(graph)
    nodes, memory = laid_out(graph, values)
    (call,) = lowered(graph, nodes, sums=4)
    assert (call.kernel, dict(call.defines)["PARTS"]) == ("sum_norm", "4")
    runner.run(call)
    check(graph, memory, run_oracle(graph, values))


def test_sums_that_do_not_follow_each_other_are_two_kernels():
    g = GraphBuilder("two sums")
    a, b, c, d, e, f = (g.input(name, (1, 132)) for name in "abcdef")
    graph = g.build(g.add(g.add(a, b), c), g.add(g.add(d, e), f))
    nodes, _ = laid_out(graph, drawn(graph))
    assert [c.kernel for c in lowered(graph, nodes, sums=4)] == ["sum_norm", "sum_norm"]
