"""What calls of a program prepare for later nodes: once, and again when its source was written."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggsched.backend.program import BoundNode, Operand
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import F32, I32, MXFP4
from ggsched_kernels import GPU, ROUTE, lower_nodes
from ggsched_kernels.retained import Retained
from ggsched_testing.eager import bound_nodes
from tests.kernels.test_fibers import NEEDS, Memory, Runner

EXPERTS, USED = 8, 4


def nodes_of(g, *outputs):
    graph = g.build(*outputs)
    return bound_nodes(graph, {t.id: Memory(t.nbytes) for t in graph.tensors if not t.is_view})


def layer(g, ids, x, dtype=F32):
    """Return three products of one choice of experts, as a layer has them."""
    width = x.shape[-1]
    w = [g.weight(f"{n}{id(ids)}", (EXPERTS, width, width), dtype) for n in ("up", "gate", "down")]
    hidden = g.swiglu(g.mul_mat_id(w[0], x, ids), g.mul_mat_id(w[1], x, ids))
    return g.mul_mat_id(w[2], hidden, ids)


@pytest.mark.parametrize("dtype", [F32, MXFP4], ids=str)
@pytest.mark.parametrize("tokens", [20, 256])
def test_products_of_one_choice_share_its_route(dtype, tokens):
    g = GraphBuilder("layers")
    x = g.input("x", (tokens, 1, 64))
    chosen = [g.input(f"ids{i}", (tokens, USED), I32) for i in range(2)]
    lowered = lower_nodes(nodes_of(g, *(layer(g, ids, x, dtype) for ids in chosen)), GPU)
    kernels = [call.kernel for call in lowered.calls]
    assert kernels.count("matmul_id") == 6
    assert kernels.count("list_rows") == 2
    assert list(lowered.memory) == [ROUTE]


def operand(buffer, offset, n):
    return Operand(buffer, offset, 4 * n, F32, (n,), (4,))


def test_an_operand_that_is_written_is_prepared_again():
    retained, buffer = Retained(), Memory(256)
    source = operand(buffer, 64, 16)
    assert retained.prepare(ROUTE, source, "how", 100)
    assert not retained.prepare(ROUTE, source, "how", 100)
    for elsewhere in (operand(buffer, 0, 16), operand(buffer, 128, 4), operand(Memory(9), 64, 16)):
        retained.forget(elsewhere)
    assert not retained.prepare(ROUTE, source, "how", 100)
    retained.forget(operand(buffer, 0, 17))
    assert retained.prepare(ROUTE, source, "how", 100)
    assert retained.prepare(ROUTE, source, "otherwise", 200)
    assert retained.prepare(ROUTE, operand(buffer, 68, 16), "otherwise", 50)
    assert retained.nbytes == {ROUTE: 200}


def test_ids_that_a_node_between_writes():
    ids, x, w, y = (
        Operand(Memory(4096), 0, 4096, dtype, shape, steps)
        for dtype, shape, steps in (
            (I32, (32, 2), (8, 4)), (F32, (32, 1, 4), (16, 16, 4)),
            (F32, (2, 4, 4), (64, 16, 4)), (F32, (32, 2, 4), (32, 16, 4)),
        )
    )  # fmt: skip
    product = BoundNode(0, "mul_mat_id", (w, x, ids), y, {}, "n0 mul_mat_id")
    again = BoundNode(1, "cpy", (ids, ids), ids, {}, "n1 cpy")
    for nodes, wanted in ([product, product], 1), ([product, again, product], 2):
        calls = lower_nodes(nodes, GPU).calls
        assert [call.kernel for call in calls].count("list_rows") == wanted


# --- the kernel -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runner(compiled_kernels):
    return Runner(compiled_kernels)


class TestListRows:
    pytestmark = NEEDS

    @given(
        tokens=st.integers(5, 90),
        used=st.integers(1, 5),
        experts=st.integers(1, 70),
        skew=st.sampled_from([0.0, 1.0, 4.0]),
        wrong=st.booleans(),
        seed=st.integers(0, 99),
    )
    def test_rows_by_expert(self, runner, tokens, used, experts, skew, wrong, seed):
        rng = np.random.default_rng(seed)
        drawn = (experts * rng.random((tokens, used)) ** (1 + skew)).astype(np.int32)
        if wrong:
            drawn[rng.random(drawn.shape) < 0.1] = experts
            drawn[-1, -1] = -1
        self.check(runner, drawn, experts)

    def check(self, runner, drawn, experts):
        memory, place = Memory(4 * drawn.size), Memory(1)
        memory.view[:] = drawn.reshape(-1).view(np.uint8)
        ids = Operand(memory, 0, memory.nbytes, I32, drawn.shape, (4 * drawn.shape[1], 4))
        call, pairs = listing(ids, place, experts), drawn.size
        if call.kernel != "list_rows":
            return
        tile = int(dict(call.defines)["BM"])
        runner.fault[:] = 0
        runner.run(call)
        count = experts + 1 + pairs // tile
        found = place.view.view(np.int32)
        tiles, rows = found[: 3 * count].reshape(-1, 3), found[3 * count :]
        known = np.where((drawn < 0) | (drawn >= experts), experts, drawn).reshape(-1)
        assert rows.tolist() == np.argsort(known, kind="stable").tolist()
        assert runner.fault[0] == (known == experts).any()
        seen = np.zeros(pairs, int)
        for expert, first, n in tiles:
            assert 0 <= n <= tile
            assert (known[rows[first : first + n]] == expert).all()
            seen[first : first + n] += 1
        assert (seen == 1).all()


def listing(ids, place, experts):
    """Return the first call of a product of these ids, with memory for its route."""
    (t, u), width = ids.shape, 4
    w = Operand(Memory(16), 0, 16, F32, (experts, width, width), (64, 16, 4))
    x = Operand(Memory(16), 0, 16, F32, (t, 1, width), (16, 16, 4))
    y = Operand(Memory(16), 0, 16, F32, (t, u, width), (16 * u, 16, 4))
    node = BoundNode(0, "mul_mat_id", (w, x, ids), y, {}, "n0 mul_mat_id")
    profile = replace(GPU, tile_lanes=64, tile_rows=16, lane_rows=4, few_rows=1)
    lowered = lower_nodes([node], profile)
    place.__init__(lowered.memory.get(ROUTE, 0))
    call = lowered.calls[0]
    return replace(call, args=tuple(place if arg is ROUTE else arg for arg in call.args))
