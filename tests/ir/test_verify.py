"""verify_graph refuses whatever the builder would never make."""

from dataclasses import replace

import pytest

from ggsched.errors import GraphError
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import F16, I32
from ggsched.ir.graph import Graph, Node, verify_graph
from ggsched.ir.tensor import Role


@pytest.fixture
def graph():
    """t0 input, t1 weight, t2 state, t3 ids; n0 t4 = mul_mat, n1 t5 = set_rows(t2, t4, t3)."""
    g = GraphBuilder("g")
    x, w, s = g.input("x", (2, 4)), g.weight("w", (3, 4)), g.state("s", (8, 3))
    ids = g.input("ids", (2,), I32)
    return g.build(g.set_rows(s, g.mul_mat(w, x), ids))


def with_tensor(graph, number, **changes):
    tensors = list(graph.tensors)
    tensors[number] = replace(tensors[number], **changes)
    return replace(graph, tensors=tuple(tensors))


def with_node(graph, number, **changes):
    nodes = list(graph.nodes)
    nodes[number] = replace(nodes[number], **changes)
    return replace(graph, nodes=tuple(nodes))


def extra_tensor(graph, **changes):
    root = graph.tensors[4]
    made = replace(root, id=6, storage=6, name="extra")
    return replace(graph, tensors=(*graph.tensors, replace(made, **changes)))


def test_the_builder_makes_sound_graphs(graph):
    verify_graph(graph)


def through_input(g):
    """The product of x goes to a window on x: shapes fit, but nothing says that x is written."""
    x = g.tensors[0]
    wide = replace(x, name="y", shape=(2, 3), strides=(12, 4), nbytes=24)
    return with_node(replace(g, tensors=(*g.tensors, replace(wide, id=6))), 0, output=6)


def with_weight_written(g):
    tensors = [replace(t, role=Role.WEIGHT) if t.storage == 2 else t for t in g.tensors]
    return replace(g, tensors=tuple(tensors))


def twice(g):
    again = replace(g.nodes[1], id=2)
    return replace(g, nodes=(*g.nodes, again))


def swapped(g):
    first, second = g.nodes
    return replace(g, nodes=(replace(second, id=0), replace(first, id=1)))


def overlapping(g):
    s = g.tensors[2]
    rows = replace(s, id=6, name="r", shape=(2, 3), nbytes=24)
    return with_node(replace(g, tensors=(*g.tensors, rows)), 1, inputs=(2, 6, 3))


BROKEN = {
    "tensor id": (lambda g: with_tensor(g, 1, id=7), "ids are not dense"),
    "no such storage": (lambda g: with_tensor(g, 5, storage=99), "not an earlier tensor"),
    "later storage": (lambda g: with_tensor(g, 2, storage=5), "not an earlier tensor"),
    "view of a view": (
        lambda g: extra_tensor(g, storage=5, role=Role.STATE, shape=(8, 3), nbytes=96),
        "must be a root",
    ),
    "role of a view": (lambda g: with_tensor(g, 5, role=Role.TEMP), "of its role"),
    "type of a view": (lambda g: with_tensor(g, 5, dtype=F16), "a window of f16"),
    "outside": (lambda g: with_tensor(g, 5, offset=12), "outside the storage"),
    "wrong nbytes": (lambda g: with_tensor(g, 0, nbytes=4), "not those of the strides"),
    "wrong strides": (lambda g: with_tensor(g, 0, strides=(4, 8)), "not those|contiguous"),
    "no name": (lambda g: with_tensor(g, 0, name=""), "names of their own"),
    "same name": (lambda g: with_tensor(g, 0, name="w"), "names of their own"),
    "temp without a node": (extra_tensor, "no node makes t6"),
    "node id": (lambda g: with_node(g, 1, id=0), "ids are not dense"),
    "no such operand": (lambda g: with_node(g, 0, inputs=(1, 9)), "does not exist"),
    "negative operand": (lambda g: with_node(g, 0, inputs=(1, -1)), "does not exist"),
    "no such op": (lambda g: with_node(g, 0, op="conv"), "unknown op"),
    "too few operands": (lambda g: with_node(g, 0, inputs=(1,)), "takes 2 operands"),
    "unknown parameter": (lambda g: with_node(g, 0, params={"eps": 1.0}), "no parameter"),
    "in place": (lambda g: with_node(g, 0, params={"inplace": True}), "in place"),
    "not canonical": (lambda g: with_node(g, 0, params={"inplace": False}), "canonical"),
    "modes": (lambda g: with_node(g, 0, modes="rrp"), "access modes"),
    "type of the result": (lambda g: with_node(g, 0, output=0), r"the result must be f32\[2, 3\]"),
    "result in an input": (through_input, "a temporary of its own"),
    "through another window": (
        lambda g: with_node(extra_tensor(g, shape=(8, 3), strides=(12, 4), nbytes=96), 1, output=6),
        "write through operand 0",
    ),
    "writes a weight": (with_weight_written, "writes the weight"),
    "one result twice": (twice, "of its own"),
    "operand is the result": (lambda g: with_node(g, 1, inputs=(5, 4, 3)), "of its own"),
    "used before it is made": (swapped, "before it is written"),
    "no such output": (lambda g: replace(g, outputs=(17,)), "does not exist"),
    "negative output": (lambda g: replace(g, outputs=(-1,)), "does not exist"),
    "overlap": (overlapping, "overlaps"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_graphs_are_refused(graph, case):
    breaks, words = BROKEN[case]
    with pytest.raises(GraphError, match=words):
        verify_graph(breaks(graph))


def test_parameters_decide_the_number_of_operands():
    g = GraphBuilder()
    graph = g.build(g.soft_max(g.input("x", (2, 3)), g.input("mask", (2, 3))))
    with pytest.raises(GraphError, match="takes 1 operands"):
        verify_graph(with_node(graph, 0, params={}))


def test_named_and_roots(graph):
    assert graph.named("w").id == 1
    assert [t.name for t in graph.roots(Role.INPUT)] == ["x", "ids"]
    with pytest.raises(GraphError, match="'y'"):
        graph.named("y")


def test_an_empty_graph_is_sound():
    verify_graph(Graph("empty", (), (), ()))


def test_a_node_prints_its_label(graph):
    node = replace(graph.nodes[0], name="up")
    assert graph.label(node) == "n0 mul_mat 'up'"
    assert graph.label(graph.nodes[0]) == "n0 mul_mat"
    assert isinstance(node, Node)


def test_calls_that_are_known_to_be_sound_are_told_from_those_that_equal_them():
    """1 is True and 1.0 in Python; the digests of such graphs would differ."""
    g = GraphBuilder("g")
    graph = g.build(g.concat(g.input("a", (2, 4)), g.input("b", (2, 4)), axis=1))
    verify_graph(graph)
    for same in (True, 1.0):
        with pytest.raises(GraphError):
            verify_graph(with_node(graph, 0, params={"axis": same}))
    verify_graph(with_node(graph, 0, params={"axis": 1}))


def test_what_is_known_is_bounded(graph, monkeypatch):
    monkeypatch.setattr("ggsched.ir.graph.KNOWN", 1)
    known = set()
    monkeypatch.setattr("ggsched.ir.graph._SOUND", known)
    verify_graph(graph)
    assert len(known) == 1
    with pytest.raises(GraphError):
        verify_graph(with_node(graph, 0, modes="rrp"))
    verify_graph(graph)
