"""The reference for ggml's graph allocator, by hand, and that it never lets two results meet."""

import pytest
from hypothesis import given

from benchmarks.peers.bench_memory import DEMO, OUR_IN_PLACE, compare
from benchmarks.peers.gallocr import (
    IN_PLACE,
    FreeList,
    Placed,
    Request,
    conflicts,
    place,
    requests_of,
)
from ggsched.ir import GraphBuilder
from ggsched_llm.graph import build_model_graph
from ggsched_llm.load import load_model
from ggsched_testing.generators.strategies import graphs
from tests.support.model_mixes import ROOT


def test_the_smallest_block_that_fits_and_of_equals_the_last():
    free = FreeList()
    assert [free.take(n) for n in (64, 10, 32, 10, 32, 10)] == [0, 64, 74, 106, 116, 148]
    for offset, nbytes in ((0, 64), (74, 32), (116, 32)):
        free.give_back(offset, nbytes)
    assert free.take(32) == 116
    assert free.take(30) == 74
    assert free.take(33) == 0
    assert free.take(40) == 158
    assert free.top == 198


def test_the_endless_block_is_the_last_resort_even_if_its_neighbour_is_too_small():
    free = FreeList()
    assert [free.take(8), free.take(8)] == [0, 8]
    free.give_back(0, 8)
    assert free.take(9) == 16
    assert free.blocks[0] == (0, 8)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 0, 2)])
def test_neighbours_are_joined(order):
    free = FreeList()
    blocks = [(free.take(8), 8) for _ in range(3)]
    for i in order:
        free.give_back(*blocks[i])
    assert len(free.blocks) == 1
    assert free.blocks[0][0] == 0


def test_inputs_come_first_and_are_freed_when_read():
    requests = [Request(100, 0, 1), Request(60, -1, 0), Request(60, 1, 2)]
    placed = place(requests, 64)
    assert placed.offsets == [64, 0, 0]
    assert placed.total == 192


def test_a_result_is_there_before_its_operands_are_freed():
    assert place([Request(64, 0, 1), Request(64, 1, 2), Request(64, 2, 2)], 64).total == 128


def test_a_result_takes_over_what_dies_with_it():
    requests = [Request(64, 0, 1), Request(64, 1, 2, (0,)), Request(64, 2, 2)]
    placed = place(requests, 64)
    assert placed.offsets == [0, 0, 64]
    assert conflicts(requests, placed) == []


def test_conflicts_are_found():
    requests = [Request(64, 0, 2), Request(64, 1, 2)]
    assert conflicts(requests, Placed([0, 32], 96)) == [(0, 1)]
    assert conflicts(requests, Placed([0, 64], 128)) == []
    assert conflicts([Request(64, 0, 1), Request(64, 2, 2)], Placed([0, 0], 64)) == []


def test_what_a_graph_asks_for():
    g = GraphBuilder("g")
    x, w = g.input("x", (16,)), g.weight("w", (16,))
    a = g.add(x, w)  # over x
    b = g.mul(a, a)  # not over a, which it reads twice
    c = g.swiglu(b, w)  # not in place in ggml
    requests = requests_of(g.build(g.silu(c)))
    assert [r.birth for r in requests] == [-1, 0, 1, 2, 3]
    assert [r.over for r in requests] == [(), (0,), (), (), (3,)]
    assert requests[-1].death == 4
    assert requests_of(g.build(g.silu(c)), OUR_IN_PLACE)[3].over == (2,)
    assert "swiglu" not in IN_PLACE


@given(drawn=graphs(max_nodes=24))
def test_no_two_meet(drawn):
    for in_place in (IN_PLACE, OUR_IN_PLACE):
        requests = requests_of(drawn.graph, in_place)
        placed = place(requests, 64)
        assert conflicts(requests, placed) == []
        assert placed.total >= max((r.nbytes for r in requests), default=0)


def test_rows_of_the_demo_model():
    spec = load_model(ROOT / DEMO).spec
    graph = build_model_graph(spec, n_tokens=4, n_kv=32, n_out=1, n_ctx=32)
    rows = {row.what: row for row in compare("demo", spec, graph, rounds=1)}
    assert rows["demo: bytes / ggml's way"].verdict == "ok"
    ways = (rows[f"  {way} / bound"].value for way in ("ours", "ggml's way"))
    assert all(way >= 1 for way in ways)
