import numpy as np
import pytest

from ggsched.errors import GraphError
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import F16, F32, I32, Q8_0
from ggsched.ir.tensor import Role


@pytest.fixture
def g():
    return GraphBuilder("g")


def test_a_fresh_result_is_a_contiguous_temporary(g):
    y = g.silu(g.input("x", (2, 3)))
    assert (y.role, y.is_view, y.is_contiguous, y.nbytes) == (Role.TEMP, False, True, 24)


def test_writes_through_return_the_window_of_the_operand(g):
    kv = g.state("kv", (8, 4), F16)
    rows = g.rows(kv, 2, 6)
    out = g.set_rows(rows, g.input("x", (2, 4)), g.input("ids", (2,), I32))
    assert (out.storage, out.offset, out.strides, out.dtype) == (kv.id, 16, (8, 2), F16)
    node = g.build(out).nodes[0]
    assert node.modes == "-rrp"


@pytest.mark.parametrize(
    ("make", "modes"),
    [
        (lambda g, x, s: g.add(x, x), "rrw"),
        (lambda g, x, s: g.add(s, x, inplace=True), "rrw"),
        (lambda g, x, s: g.cpy(x, s), "r-w"),
        (lambda g, x, s: g.cpy(x, g.transpose(g.reshape(s, 3, 2))), "r-p"),
        (lambda g, x, s: g.scale(g.transpose(s), 2.0, inplace=True), "rp"),
    ],
)
def test_access_modes(g, make, modes):
    result = make(g, g.input("x", (2, 3)), g.state("s", (2, 3)))
    assert g.build(result).nodes[-1].modes == modes


def test_views(g):
    x = g.input("x", (4, 6))
    assert g.rows(x, 1, 3).offset == 24
    assert g.reshape(x, 2, -1).shape == (2, 12)
    assert g.reshape(x, 24).strides == (4,)
    t = g.transpose(x)
    assert (t.shape, t.strides, t.nbytes) == ((6, 4), (4, 24), x.nbytes)
    p = g.permute(g.reshape(x, 2, 2, 6), 1, 2, 0)
    assert (p.shape, p.strides) == ((2, 6, 2), (24, 4, 48))
    # A view of a view counts from the window, not from the storage.
    assert g.view(g.rows(x, 1, 3), (6,), offset=24).offset == 48


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda g, x: g.rows(x, 2, 1), "rows 2:1"),
        (lambda g, x: g.rows(x, 0, 5), "rows 0:5"),
        (lambda g, x: g.rows(g.state("scalar", ()), 0, 0), "rows 0:0"),
        (lambda g, x: g.reshape(g.transpose(x), 24), "strided"),
        (lambda g, x: g.reshape(x, 5, -1), "another size"),
        (lambda g, x: g.reshape(x, 25), "another size"),
        (lambda g, x: g.permute(x, 0, 0), "not a permutation"),
        (lambda g, x: g.transpose(g.reshape(x, 24)), "not a permutation"),
        (lambda g, x: g.transpose(g.state("q", (32, 32), Q8_0)), "last axis"),
        (lambda g, x: g.view(x, (4, 7)), "outside the storage"),
        (lambda g, x: g.view(x, (1,), offset=-4), "outside the storage"),
        (lambda g, x: g.view(x, (1,), offset=2), "not aligned"),
        (lambda g, x: g.view(x, (1,) * 9), "at most 8 axes"),
        (lambda g, x: g.view(x, (-2, -3)), "negative"),
        (lambda g, x: g.input("big", (1,) * 9), "at most 8 axes"),
        (lambda g, x: g.weight("w", (2, 33), Q8_0), "whole q8_0 blocks"),
        (lambda g, x: g.view(GraphBuilder().input("y", (2,)), (1,)), "another builder"),
        (lambda g, x: g.silu(GraphBuilder().input("y", (2,))), "another builder"),
        (lambda g, x: g.build(GraphBuilder().input("y", (2,))), "another builder"),
        (lambda g, x: g.build(), "at least one output"),
        (lambda g, x: g.build(g.input("x", (1,))), "names of their own"),
        (lambda g, x: g.build(g.input("", (1,))), "names of their own"),
        (lambda g, x: g.op("silu", x, eps=1.0), "no parameter 'eps'"),
        (lambda g, x: g.op("silu"), "takes 1 operands"),
        (lambda g, x: g.op("soft_max", x, x), "takes 1 operands"),
        (lambda g, x: g.op("soft_max", x, mask=True), "takes 2 operands"),
        (lambda g, x: g.op("cont", x, inplace=True), "in place"),
        (lambda g, x: g.op("get_rows", x, x, inplace=True), "in place"),
        (lambda g, x: g.silu(g.weight("w", (2,)), inplace=True), "write the weight"),
        (lambda g, x: g.cpy(x, g.weight("w", (4, 6))), "write the weight"),
    ],
)
def test_refusals_leave_the_builder_as_it_was(g, make, words):
    x = g.input("x", (4, 6))
    with pytest.raises(GraphError, match=words):
        make(g, x)
    assert g.build(x).nodes == () if words != "names of their own" else True
    made = {t.id for t in g._tensors if t.role is Role.TEMP}
    assert not made, "the result of a refused op was left behind"


@pytest.mark.parametrize(
    "make",
    [
        lambda g, s: g.add(g.rows(s, 0, 2), g.rows(s, 1, 3), inplace=True),
        lambda g, s: g.cpy(g.rows(s, 0, 2), g.rows(s, 1, 3)),
        lambda g, s: g.add(g.reshape(s, 2, 2, 3), g.rows(s, 0, 2), inplace=True),
        lambda g, s: g.op(
            "swiglu",
            g.reshape(s, 2, 2, 3),
            g.permute(g.reshape(s, 2, 2, 3), 1, 0, 2),
            inplace=True,
        ),
        lambda g, s: g.set_rows(s, g.rows(s, 0, 2), g.input("ids", (2,), I32)),
        lambda g, s: g.scale(g.view(s, (2, 3), (0, 4)), 2.0, inplace=True),
        lambda g, s: g.cpy(g.input("x", (2, 3)), g.view(s, (2, 3), (4, 4))),
    ],
)
def test_results_that_overlap_what_is_read_are_refused(g, make):
    s = g.state("s", (4, 3))
    with pytest.raises(GraphError, match="overlap"):
        make(g, s)
    assert not g._nodes


def test_the_very_same_window_may_be_read_and_overwritten(g):
    s = g.state("s", (4, 3))
    top = g.rows(s, 0, 2)
    g.mul(top, g.rows(s, 0, 2), inplace=True)
    g.add(top, g.rows(s, 2, 4), inplace=True)
    g.op("rms_norm", s, inplace=True)
    assert [n.modes for n in g.build(s).nodes] == ["rrw", "rrw", "rw"]


def test_scopes_prefix_labels(g):
    x = g.input("x", (2,))
    with g.scope("blk.0"), g.scope("ffn"):
        y = g.silu(x, name="act")
        z = g.silu(y)
    w = g.silu(z, name="last")
    assert [n.name for n in g.build(w).nodes] == ["blk.0.ffn.act", "blk.0.ffn", "last"]


def test_outputs_are_listed_once(g):
    x = g.input("x", (2,))
    y = g.silu(x)
    assert g.build(y, x, y).outputs == (y.id, x.id)


def test_numbers_of_numpy_become_plain(g):
    x = g.input("x", tuple(np.array([2, 4])))
    y = g.scale(x, np.float32(0.5), bias=np.float64(2))
    z = g.repeat(y, [np.int64(4), 4])
    graph = g.build(z)
    assert repr(graph.tensors[0].shape) == "(2, 4)"
    assert repr(graph.nodes[0].params) == "{'scale': 0.5, 'bias': 2.0}"
    assert repr(graph.nodes[1].params) == "{'shape': (4, 4)}"


@pytest.mark.parametrize(
    ("op", "params"),
    [
        ("scale", {"scale": "2"}),
        ("scale", {"scale": True}),
        ("scale", {"scale": float("nan")}),
        ("scale", {"scale": 10**400}),
        ("top_k", {"k": 1.0}),
        ("top_k", {"k": True}),
        ("argsort", {"descending": 1}),
        ("repeat", {"shape": "ab"}),
        ("repeat", {"shape": 3}),
        ("cont", {"dtype": F32}),
        ("silu", {"inplace": "yes"}),
    ],
)
def test_parameters_of_another_type_are_refused(g, op, params):
    with pytest.raises(GraphError):
        g.op(op, g.input("x", (2, 4)), **params)


def test_parameters_at_their_default_are_left_out(g):
    x = g.input("x", (2, 4))
    graph = g.build(g.soft_max(g.rms_norm(g.silu(x, inplace=False), eps=1e-5), scale=1))
    assert [n.params for n in graph.nodes] == [{}, {}, {}]
    assert graph.nodes[1].param("eps") == 1e-5
