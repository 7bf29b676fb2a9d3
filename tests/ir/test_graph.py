from dataclasses import replace

import pytest

from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import F16, F32, I32


def build(
    *, scale=2.0, dtype=F32, shape=(2, 4), bound="x", label="", offset=0, swap=False, output=1
):
    g = GraphBuilder("g" + label)
    x, s = g.input(bound, shape, dtype), g.state("s", (4, *shape[1:]))
    a = g.cont(x, F32, name=label)
    b = g.scale(a, scale, name=label)
    window = g.rows(s, offset, offset + shape[0])
    c = g.cpy(b, window)
    d = g.sub(a, c) if swap else g.sub(c, a)
    return g.build(*[a, b, c, d][:output], d)


def test_the_digest_ignores_labels():
    assert build(label="up").digest == build(label="down").digest


@pytest.mark.parametrize(
    "change",
    [
        {"scale": 3.0},
        {"dtype": F16},
        {"shape": (2, 5)},
        {"bound": "y"},
        {"offset": 1},
        {"swap": True},
        {"output": 2},
    ],
    ids=str,
)
def test_the_digest_sees(change):
    assert build(**change).digest != build().digest


def test_the_digest_sees_order_and_op():
    graph = build()
    other = replace(graph, nodes=(*graph.nodes[:-1], replace(graph.nodes[-1], op="add")))
    assert other.digest != graph.digest


def test_networkx_edges_follow_the_latest_writer():
    g = GraphBuilder()
    x, w, s = g.input("x", (2, 4)), g.weight("w", (4, 4)), g.state("s", (8, 4))
    ids = g.input("ids", (2,), I32)
    k = g.mul_mat(w, x, name="k")
    g.set_rows(s, k, ids)
    y = g.add(g.rows(s, 0, 2), k)
    out = g.build(y).to_networkx()
    edges = {(a, b, data["tensor"]) for a, b, data in out.edges(data=True)}
    assert {(a, b) for a, b, _ in edges} == {
        ("t1", "n0"),
        ("t0", "n0"),
        ("t2", "n1"),
        ("n0", "n1"),
        ("t3", "n1"),
        ("n1", "n2"),
        ("n0", "n2"),
    }
    assert out.nodes["n0"] == {"op": "mul_mat", "label": "k", "shape": (2, 4), "dtype": "f32"}
    assert out.nodes["t3"] == {"role": "input", "label": "ids", "shape": (2,), "dtype": "i32"}
