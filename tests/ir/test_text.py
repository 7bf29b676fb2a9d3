import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggsched.errors import GraphError
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import F16, I32, Q8_0
from ggsched.ir.text import parse_graph, print_graph, quote
from ggsched_testing.generators.strategies import graphs


def example():
    g = GraphBuilder("two layers")
    x, w = g.input("x", (4, 64)), g.weight("w", (32, 64), Q8_0)
    cache, ids = g.state("kv", (8, 32), F16), g.input("ids", (4,), I32)
    up = g.mul_mat(w, x, name="up")
    g.rms_norm(g.rows(up, 2, 4), 1e-6)
    g.op("silu", up, inplace=True, name="act")
    g.set_rows(cache, up, ids)
    return g.build(g.clamp(up, -2, 1), cache)


TEXT = r"""graph "two layers"
t0 = input f32[4, 64] "x"
t1 = weight q8_0[32, 64] "w"
t2 = state f16[8, 32] "kv"
t3 = input i32[4] "ids"
t4 = temp f32[4, 32] "up"
n0 t4 = mul_mat(t1, t0) "up"
t5 = view t4 f32[2, 32] strides=(128, 4) offset=256 "up"
t6 = temp f32[2, 32]
n1 t6 = rms_norm(t5; eps=1e-06)
t7 = view t4 f32[4, 32] strides=(128, 4) offset=0 "up"
n2 t7 = silu(t4; inplace=true) "act"
t8 = view t2 f16[8, 32] strides=(64, 2) offset=0 "kv"
n3 t8 = set_rows(t2, t4, t3)
t9 = temp f32[4, 32]
n4 t9 = clamp(t4; min=-2.0, max=1.0)
outputs t9, t2
"""


def test_the_form():
    assert print_graph(example()) == TEXT


def test_it_parses_back():
    graph = parse_graph(TEXT)
    assert graph == example()
    assert graph.digest == example().digest


@given(drawn=graphs())
def test_round_trip(drawn):
    text = print_graph(drawn.graph)
    graph = parse_graph(text)
    assert graph == drawn.graph
    assert print_graph(graph) == text


def any_text():
    return st.text(st.characters(codec=None), max_size=20)


@given(graph_name=any_text(), bound=any_text().filter(bool), label=any_text())
def test_every_name_survives(graph_name, bound, label):
    g = GraphBuilder(graph_name)
    graph = g.build(g.silu(g.input(bound, (2,)), name=label))
    assert parse_graph(print_graph(graph)) == graph


@given(st.lists(st.integers(0xD800, 0xDFFF), min_size=1))
def test_lone_surrogates_survive(points):
    name = "".join(map(chr, points))
    graph = GraphBuilder(name)
    graph = graph.build(graph.input("x", ()))
    assert parse_graph(print_graph(graph)).name == name


@given(name=any_text())
def test_a_quoted_name_is_one_printable_line(name):
    assert quote(name).isprintable()


@given(scale=st.floats(allow_nan=False), bias=st.floats(allow_nan=False))
def test_floats_are_exact(scale, bias):
    g = GraphBuilder()
    graph = g.build(g.scale(g.input("x", (2,)), scale, bias))
    again = parse_graph(print_graph(graph))
    assert again == graph
    assert again.digest == graph.digest


def test_the_kinds_of_parameters():
    g = GraphBuilder()
    x = g.input("x", (2, 4, 6))
    order = g.argsort(x, descending=True)
    y = g.repeat(g.concat(x, x, axis=1), (4, 8, 6))
    z = g.rope(y, g.input("p", (4,), I32), pairing="halves", n_ctx_orig=4096)
    graph = g.build(order, z)
    assert parse_graph(print_graph(graph)) == graph


def test_comments_blank_lines_and_other_line_ends():
    lines = TEXT.replace("t4 = temp", "# the projection\n\n   t4   =temp").replace("\n", "\r\n")
    assert parse_graph(lines) == example()


def test_parameters_at_their_default_and_integers_for_floats():
    text = TEXT.replace("min=-2.0, max=1.0", "min=-2, max=1").replace("eps=1e-06", "eps=1e-5")
    graph = parse_graph(text)
    assert graph.nodes[4] == example().nodes[4]
    assert graph.nodes[1].params == {}


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ('graph "two layers"', "graph two", 1, "expected string, found two"),
        ('graph "two layers"', 'graf "two"', 1, "expected graph"),
        ('graph "two layers"', 'graph "two" 2', 1, "expected the end of line"),
        ('graph "two layers"', 'graph "two', 1, "cannot read"),
        ('"two layers"', r'"\n"', 1, "unknown escape"),
        ('"two layers"', r'"\u{110000}"', 1, "unknown escape"),
        ('"two layers"', r'"\u{zz}"', 1, "unknown escape"),
        ("t1 = weight", "t2 = weight", 3, "next tensor must be t1"),
        ("t1 = weight", "x1 = weight", 3, "expected an id like t12"),
        ("t1 = weight", "t01 = weight", 3, "expected an id like t12"),
        ("t1 = weight", "t1 = wait", 3, "unknown kind"),
        ("q8_0[32, 64]", "q9[32, 64]", 3, "unknown element type"),
        ("q8_0[32, 64]", "q8_0[32, 65]", 3, "whole q8_0 blocks"),
        ("q8_0[32, 64]", "q8_0[32, 64.0]", 3, "expected an integer"),
        ("q8_0[32, 64]", "q8_0[32 64]", 3, "expected ,"),
        ("q8_0[32, 64]", "q8_0[1, 1, 1, 1, 1, 1, 1, 1, 32]", 3, "9 axes"),
        ("q8_0[32, 64]", f"q8_0[{'9' * 5000}]", 3, "too long"),
        ("f32[4, 64]", "f32[-4, 64]", 2, "negative"),
        ("view t4 f32[2", "view t9 f32[2", 8, "not defined above"),
        ("strides=(128, 4) offset=256", "strides=(128, 4)", 8, "expected offset"),
        ("strides=(128, 4) offset=256", "offset=256", 8, "expected strides"),
        ("strides=(128, 4) offset=256", "strides=(4) offset=256", 8, "one stride for each"),
        ("n1 t6", "n7 t6", 10, "next node must be n1"),
        ("n1 t6", "n1 t66", 10, "not defined above"),
        ("rms_norm(t5", "rms_nrom(t5", 10, "unknown op"),
        ("rms_norm(t5", "rms_norm(t5, t5", 10, "takes 1 operands"),
        ("eps=1e-06", "eps=nan", 10, "expected number"),
        ("eps=1e-06", 'eps="a"', 10, "must be float"),
        ("eps=1e-06", "eps=(1, 2)", 10, "must be float"),
        ("eps=1e-06", "bias=1.0", 10, "no parameter"),
        ("eps=1e-06", "eps=1.0, eps=2.0", 10, "given twice"),
        ("eps=1e-06)", "eps=1e-06", 10, "expected )"),
        ("outputs t9", "outputs t99", 17, "not defined above"),
        ("outputs t9, t2", "outputs t9 t2", 17, "expected the end of line"),
        ("t9, t2\n", "t9, t2\noutputs t2", 18, "must be the last"),
        ("t5 = view", "? = view", 8, "cannot read"),
    ],
)
def test_errors_name_the_line_and_a_remedy(old, new, line, words):
    with pytest.raises(GraphError) as caught:
        parse_graph(TEXT.replace(old, new))
    assert re.fullmatch(f"line {line}", caught.value.where)
    assert words in caught.value.what + caught.value.why
    assert caught.value.hint


@pytest.mark.parametrize(
    "text", ["", "\n# nothing\n", 'graph "g"', 'graph "g"\nt0 = input f32[] "x"']
)
def test_half_a_graph(text):
    with pytest.raises(GraphError, match="there is no line"):
        parse_graph(text)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("offset=256", "offset=4096", "outside the storage"),
        ("offset=256", "offset=255", "not aligned"),
        ("n0 t4 = mul_mat(t1, t0)", "n0 t4 = mul_mat(t1, t4)", "needs w"),
        ("f32[4, 32]", "f32[4, 33]", "must be f32"),
        ('"ids"', '"x"', "names of their own"),
        ("n1 t6 = rms_norm(t5; eps=1e-06)", "", "next node must be n1"),
    ],
)
def test_what_parses_is_verified(old, new, words):
    with pytest.raises(GraphError, match=words):
        parse_graph(TEXT.replace(old, new, 1))


def test_sizes_are_bounded():
    with pytest.raises(GraphError, match="characters"):
        parse_graph(" " * ((1 << 26) + 1))
    with pytest.raises(GraphError, match="words in one line"):
        parse_graph('graph "g"\noutputs ' + "t0," * 70_000)


@given(st.text() | st.text('graphtn0123=()[];,. "\\{}uviewinput\n#-+e_', max_size=200))
def test_garbage_is_refused(text):
    with suppress(GraphError):
        parse_graph(text)


PIECES = re.findall(r'"[^"]*"|\w+|[^\w]', TEXT)


@st.composite
def damaged(draw):
    """The example with a few tokens deleted, doubled, exchanged or replaced."""
    pieces = list(PIECES)
    for _ in range(draw(st.integers(1, 6))):
        if not pieces:
            break
        at = draw(st.integers(0, len(pieces) - 1))
        other = draw(st.integers(0, len(pieces) - 1))
        match draw(st.sampled_from(["delete", "double", "swap", "number", "piece", "any"])):
            case "delete":
                del pieces[at]
            case "double":
                pieces.insert(at, pieces[at])
            case "swap":
                pieces[at], pieces[other] = pieces[other], pieces[at]
            case "number":
                pieces[at] = draw(st.sampled_from(["0", "-1", "1e9", "inf", "4294967296", "5"]))
            case "piece":
                pieces[at] = pieces[other]
            case _:
                pieces[at] = draw(st.text(max_size=3))
    return "".join(pieces)


@given(damaged())
def test_damaged_texts_parse_to_sound_graphs_or_are_refused(text):
    try:
        graph = parse_graph(text)
    except GraphError:
        return
    assert parse_graph(print_graph(graph)) == graph


def test_ids_beyond_the_nodes_are_printed_too():
    g = GraphBuilder()
    x = g.input("x", (4,))
    y = g.silu(x)
    graph = g.build(g.rows(y, 1, 3))
    assert parse_graph(print_graph(graph)) == graph
