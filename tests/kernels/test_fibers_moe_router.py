"""The kernels that choose experts and add up their results, on the host; see ``test_fibers``."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from ggsched.backend.program import Group
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.tensor import Role
from ggsched_testing.eager import bound_nodes
from ggsched_testing.oracle.interpreter import run_oracle
from tests.kernels.test_fibers import H200, NEEDS, Memory, laid_out

pytestmark = NEEDS


# --- routes -----------------------------------------------------------------------------------


def route(kind, tokens, experts, used, scale=1.0):
    """Return the graph of a route whose every result is looked at."""
    g = GraphBuilder("route")
    scores = g.input("logits", (tokens, experts))
    made = [g.soft_max(scores, scale=scale)] if kind == "all" else []
    scores = made[0] if made else scores
    ids = g.top_k(scores, used)
    picked = g.get_rows(g.reshape(scores, tokens, experts, 1), ids)
    flat = g.reshape(picked, tokens, used)
    if kind == "all":
        total = g.sum_rows(flat)
        return g.build(*made, ids, picked, total, g.div(flat, total))
    return g.build(ids, picked, g.soft_max(flat, scale=scale))


def drawn(what, tokens, experts, rng):
    """Return logits a sixteenth apart, so that rounding changes no order, many of them ties."""
    steps = 4 if what == "ties" else 64
    logits = rng.integers(-steps, steps, (tokens, experts)).astype(np.float32) / 16
    if what == "infinite":
        logits[rng.random(logits.shape) < 0.7] = -np.inf
        logits[:, experts // 2] = 0.5
    if what == "zeros":
        logits = np.where(rng.random(logits.shape) < 0.5, np.float32(0.0), np.float32(-0.0))
    if what == "not a number":
        logits[:, :: max(2, experts // 2)] = np.nan
    return logits


def lowered(nodes, kernel):
    from ggsched_cuda_kernels.kernel_selection import lower

    (call,), scratch = lower(nodes, H200)
    assert call.kernel == kernel
    assert call.groups == (1, 1, 1)
    assert not scratch
    return call


def check(graph, memory, expected, but=()):
    for tid, wanted in expected.items():
        t = graph.tensors[tid]
        if t.storage in but:
            continue
        got = memory[t.storage].view.view(wanted.dtype).reshape(wanted.shape)
        if wanted.dtype == np.int32:
            np.testing.assert_array_equal(got, wanted)
        else:
            np.testing.assert_allclose(got, wanted, 2e-6, 1e-7)
        behind = memory[t.storage].bytes[-32:]
        assert (behind == 0xFF).all(), "what lies behind is as it was"


SIZES = [
    # tokens, experts, chosen
    (1, 32, 4), (2, 32, 4), (1, 128, 8), (3, 33, 1), (8, 128, 8), (1, 7, 7), (1, 1, 1),
    (4, 256, 32), (5, 60, 3), (32, 8, 2), (1, 512, 10), (2, 300, 4),
]  # fmt: skip
FAST = 2


@pytest.mark.parametrize("kind", ["chosen", "all"])
@pytest.mark.parametrize(
    "size",
    [*SIZES[:FAST], *(pytest.param(s, marks=pytest.mark.slow) for s in SIZES[FAST:])],
    ids=str,
)
def test_routes(runner, kind, size):
    tokens, experts, used = size
    rng = np.random.default_rng(2)
    for what, scale in product(("plain", "ties", "infinite", "zeros", "not a number"), (1.0, 0.5)):
        if what == "not a number" and (kind == "all" or used > experts // 2):
            continue  # then results are none either
        graph = route(kind, tokens, experts, used, scale)
        values = {"logits": drawn(what, tokens, experts, rng)}
        nodes, memory = laid_out(graph, values)
        call = lowered(nodes, f"route_{kind}")
        assert call.lanes <= 1024
        runner.run(call)
        check(graph, memory, run_oracle(graph, values))


@pytest.mark.parametrize("kind", ["chosen", "all"])
def test_strided_logits(runner, kind):
    """Logits that are columns of something wider, every other one."""
    tokens, experts, used = 3, 33, 4
    graph, rng = route(kind, tokens, experts, used), np.random.default_rng(3)
    values = {"logits": drawn("plain", tokens, experts, rng)}
    nodes, memory = laid_out(graph, values)
    (root,) = (t.id for t in graph.roots(Role.INPUT))
    wide = Memory(4 * tokens * 80)
    wide.view.view(np.float32).reshape(tokens, 80)[:, 5 : 5 + 2 * experts : 2] = values["logits"]

    def moved(o):
        if o.buffer is not memory[root]:
            return o
        strides = (320, 8, *(4 for _ in o.shape[2:]))
        nbytes = 320 * (tokens - 1) + 8 * (experts - 1) + 4
        return replace(o, buffer=wide, offset=20, nbytes=nbytes, strides=strides)

    nodes = [replace(n, inputs=tuple(map(moved, n.inputs))) for n in nodes]
    runner.run(lowered(nodes, f"route_{kind}"))
    check(graph, memory, run_oracle(graph, values))


# Results by number; -1 are the logits. What lies on another result is what is left there.
PLACES = {
    "chosen": [{2: -1}, {2: 1}, {2: 0}],
    "all": [{0: -1}, {1: -1}, {4: 0}, {4: 2}, {4: 1}, {3: 1}, {2: -1, 3: 1, 4: 0}, {3: 0, 4: -1}],
}


@pytest.mark.parametrize("tokens", [1, 2])
@pytest.mark.parametrize(
    ("kind", "places"), [(kind, p) for kind, some in PLACES.items() for p in some], ids=str
)
def test_results_lie_on_what_is_dead(runner, kind, places, tokens):
    """As a planner may have it: nobody reads what was there once the nodes are done with it."""
    graph, rng = route(kind, tokens, 32, 4), np.random.default_rng(4)
    values = {"logits": drawn("plain", tokens, 32, rng)}
    _, memory = laid_out(graph, values)
    (root,) = (t.id for t in graph.roots(Role.INPUT))
    stored = [graph.tensors[tid].storage for tid in graph.outputs]
    roots = [*stored, root]
    for above, below in places.items():
        memory[roots[above]] = memory[roots[below]]
    nodes = bound_nodes(graph, memory)
    runner.run(lowered(nodes, f"route_{kind}"))
    gone = {roots[below] for below in places.values()}
    expected = {
        tid: wanted
        for tid, wanted in run_oracle(graph, values).items()
        if graph.tensors[tid].storage not in gone
    }
    assert expected
    for tid, wanted in expected.items():
        got = memory[graph.tensors[tid].storage].view[: wanted.nbytes].view(wanted.dtype)
        np.testing.assert_allclose(got.reshape(wanted.shape), wanted, 2e-6, 1e-7)


# --- sums -------------------------------------------------------------------------------------


def sums(shape, order, rest, flat):
    """Return the graph of sums over the last axis of a permuted x, and what they are added to."""
    g = GraphBuilder("sums")
    x = g.input("x", shape)
    x = g.permute(x, *order) if order else x
    total = g.sum_rows(x)
    total = g.reshape(total, *x.shape[:-1]) if flat else total
    z = g.input("z", rest)
    return g.build(g.add(total, z))


SUMS = [
    # x, axes, what it is added to
    ((1, 4, 2880), (0, 2, 1), (1, 2880)),
    ((3, 4, 70), (0, 2, 1), (3, 70)),
    ((2, 1, 64), (0, 2, 1), (64,)),
    ((2, 8, 33), (0, 2, 1), (1, 33)),
    ((5, 65, 3), None, (5, 65)),
    ((2, 3, 5, 32), None, (2, 3, 5)),
    ((2, 3, 5, 7), (1, 0, 3, 2), (3, 2, 7)),
    ((1, 2, 1), None, (1, 2)),
]


def is_whole(case):
    """Whether what is added has the shape of the sums, so that these may take its place."""
    shape, order, rest = case
    return rest == tuple(shape[axis] for axis in (order or range(len(shape)))[:-1])


@pytest.mark.parametrize(
    ("case", "is_over"),
    [(c, False) for c in SUMS] + [(c, True) for c in SUMS if is_whole(c)],
    ids=str,
)
def test_sums(runner, case, is_over):
    from ggsched_cuda_kernels.kernel_selection import lower

    shape, order, rest = case
    graph, rng = sums(shape, order, rest, flat=True), np.random.default_rng(5)
    values = {
        t.name: rng.integers(-64, 64, t.shape).astype(np.float32) / 16
        for t in graph.roots(Role.INPUT)
    }
    nodes, memory = laid_out(graph, values)
    if is_over:  # the result takes the place of what is added
        (z,) = (t for t in graph.roots(Role.INPUT) if t.name == "z")
        memory[graph.tensors[graph.outputs[0]].storage] = memory[z.id]
        nodes = bound_nodes(graph, memory)
    group = Group("sum_rows+add", tuple(n.node for n in nodes))
    (call,), _ = lower([replace(n, group=group) for n in nodes], H200)
    assert call.kernel == "sum_add"
    runner.run(call)
    check(graph, memory, run_oracle(graph, values))


def test_sums_that_do_not_fit_go_node_by_node():
    from ggsched_cuda_kernels.kernel_selection import lower

    cases = (((2, 5, 33), True, "sum_rows"), ((2, 5, 4), False, "sum_short_rows"))
    for shape, flat, kernel in cases:
        graph = sums(shape, None, (2, 5) if flat else (2, 5, 1), flat)
        nodes, _ = laid_out(
            graph, {"x": np.zeros(shape, np.float32), "z": np.zeros((2, 5), np.float32)}
        )
        group = Group("sum_rows+add", tuple(n.node for n in nodes))
        calls, _ = lower([replace(n, group=group) for n in nodes], H200)
        assert [call.kernel for call in calls] == [kernel, "binary"]


LAST = [((1, 4, 2880), (0, 2, 1)), ((4, 36), (1, 0)), ((1, 1, 68, 32), None)]


@pytest.mark.parametrize(("shape", "order"), LAST)
def test_sums_that_end_a_program_go_where_gpus_read_them(runner, shape, order):
    from ggsched_cuda_kernels.kernel_selection import lower

    graph = last_sums(shape, order)
    x = np.random.default_rng(6).integers(-64, 64, shape).astype(np.float32) / 16
    values = {"x": x}
    nodes, memory = laid_out(graph, values)
    (call,), _ = lower(nodes, replace(H200, reads_peers=True))
    assert (call.kernel, call.also.places) == ("sum_sent", 4)
    runner.run(call)
    check(graph, memory, run_oracle(graph, values))
    others = [Memory(call.also.nbytes) for _ in range(2)]
    args = [*call.args]
    for i, other in enumerate(others):
        args[call.also.arg + 2 * i] = other.view.ctypes.data.to_bytes(8, "little")
    runner.run(replace(call, args=tuple(args)))
    own = call.also.buffer.view[call.also.offset :][: call.also.nbytes]
    for other in others:
        assert other.view.tobytes() == own.tobytes()
        assert (other.bytes[-32:] == 0xFF).all()


def last_sums(shape, order):
    g = GraphBuilder("sums")
    x = g.input("x", shape)
    return g.build(g.sum_rows(g.permute(x, *order) if order else x))


@pytest.mark.parametrize(
    ("shape", "peers"), [((1, 64, 4), False), ((2, 64, 4), True), ((1, 64, 33), True)]
)
def test_other_sums_are_not_sent(shape, peers):
    from ggsched_cuda_kernels.kernel_selection import lower

    nodes, _ = laid_out(last_sums(shape, None), {"x": np.zeros(shape, np.float32)})
    (call,), _ = lower(nodes, replace(H200, reads_peers=peers))
    assert call.kernel in ("sum_rows", "sum_short_rows")
