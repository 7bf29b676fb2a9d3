"""Sharded graphs compute what the graph computes, whatever is split, and parts are in place."""

from collections import Counter
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import event, given, reject
from hypothesis import strategies as st

from ggsched.errors import GraphError, PlanError
from ggsched.ir import GraphBuilder
from ggsched.ir.dtype import I32
from ggsched.ir.ops import op_by_name
from ggsched.ir.tensor import Role
from ggsched.passes.cost.work_size import node_work
from ggsched.sanitize import check_plan
from ggsched.topology import CopyPath, Topology
from ggsched_llm.weights import part_array
from ggsched_shard.calls import HEAVY
from ggsched_shard.layout import Cuts, Split, Whole, Window, even_parts
from ggsched_shard.names import name_of, part_of
from ggsched_shard.place import ByParticipant
from ggsched_shard.rewrite import Shards, shard_graph
from ggsched_shard.rules import KEEPS_ZEROS
from ggsched_testing.generators.expert_graphs import expert_graph, expert_names, expert_values
from ggsched_testing.generators.strategies import ATOL, RTOL, graphs, seeds, values_for
from ggsched_testing.generators.topologies import ALL_OPS
from ggsched_testing.oracle.interpreter import run_oracle
from ggsched_testing.plan_builder import fake_device
from tests.support.verified_plans import verified_plan


def parts_of(values, graph, shards):
    """Return the values of the new graph's leaves."""
    found = {}
    for name, value in values.items():
        root = graph.named(name)
        if root.role is Role.INPUT:
            found[name] = value
            continue
        layout = shards.layout(name)
        for new, p in shards.members(name):
            is_split = isinstance(layout, Split)
            found[new] = part_array(value, root.dtype, layout, p) if is_split else value
    return found


def machine(count):
    devices = tuple(fake_device(f"gpu:{i}", ops=ALL_OPS) for i in range(count))
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    return Topology(
        devices, {(a, b): CopyPath(a, b, a) for a, b in pairs}, dict.fromkeys(pairs, "native")
    )


# --- windows ------------------------------------------------------------------------------


@st.composite
def windows(draw):
    """A contiguous storage of f32, a split of it, and a window on it made as models make them."""
    count = draw(st.integers(1, 3))
    heads = [draw(st.integers(1, 3)) for _ in range(count)]
    width, rows = draw(st.sampled_from([1, 2, 4])), draw(st.integers(1, 4))
    members = draw(st.integers(2, 3))
    segments = []
    for n in heads:
        cut = sorted(draw(st.lists(st.integers(0, n), min_size=members - 1, max_size=members - 1)))
        ends = [*cut, n]
        parts = [b - a for a, b in zip([0, *ends], ends, strict=False)]
        segments.append(tuple(width * p for p in parts))
    g = GraphBuilder()
    root = g.input("x", (rows, sum(heads) * width))
    t = root
    for kind in draw(
        st.lists(st.sampled_from(["segment", "heads", "rows", "columns"]), max_size=3)
    ):
        if kind == "segment" and len(t.shape) == 2 and t is root:
            which = draw(st.integers(0, count - 1))
            start = sum(heads[:which]) * width
            t = g.view(t, (rows, heads[which] * width), t.strides, start * 4)
        elif kind == "heads" and len(t.shape) == 2 and t.shape[1] % width == 0:
            shape = (t.shape[0], t.shape[1] // width, width)
            t = g.view(t, shape, (t.strides[0], 4 * width, 4))
        elif kind == "rows" and t.shape[0] > 1:
            t = g.rows(t, 1, t.shape[0])
        elif kind == "columns" and len(t.shape) == 3 and t.shape[2] > 1:
            t = g.view(t, (*t.shape[:2], t.shape[2] - 1), t.strides, 4)
    if len(t.shape) == 3 and draw(st.booleans()):
        t = g.permute(t, *draw(st.permutations(range(3))))
    return root, Split(1, tuple(segments)), t


def strided(flat, window):
    return np.lib.stride_tricks.as_strided(
        flat[window.offset // 4 :], window.shape, window.strides, writeable=False
    )


@given(windows())
def test_a_window_on_a_part_holds_the_part_of_the_window(drawn):
    root, split, t = drawn
    whole = np.arange(root.size, dtype=np.float32).reshape(root.shape)
    cuts = Cuts(root, split)
    found = cuts.axis_of(Window.of(t))
    if found is None:
        return
    expected = strided(whole.reshape(-1), Window.of(t))
    assert sum(map(sum, found.segments)) == t.shape[found.axis]
    for p in range(len(split.segments[0])):
        part = np.concatenate([whole[:, a:b] for a, b in split.spans(p)], axis=1)
        window = cuts.part(Window.of(t), p)
        assert window.shape[found.axis] == found.extent(p)
        if 0 in window.shape:
            continue
        pieces = [expected.take(range(a, b), axis=found.axis) for a, b in found.spans(p)]
        flat = np.ascontiguousarray(part).reshape(-1)
        np.testing.assert_array_equal(
            strided(flat, window), np.concatenate(pieces, axis=found.axis)
        )


@pytest.mark.parametrize("rows", [1, 3])
def test_heads_of_a_storage_that_is_split_by_heads(rows):
    g = GraphBuilder()
    x = g.input("x", (rows, 6 * 4))
    cuts = Cuts(x, Split(1, ((8, 16),)))
    heads = g.view(x, (rows, 6, 4), (96, 16, 4))
    assert cuts.axis_of(Window.of(heads)) == Split(1, ((2, 4),))
    assert cuts.part(Window.of(heads), 1).shape == (rows, 4, 4)
    assert cuts.axis_of(Window.of(g.view(x, (rows, 12), x.strides, 0))) is None


@given(
    st.integers(1, 400),
    st.lists(st.floats(0, 8), min_size=1, max_size=4).filter(any),
    st.sampled_from([1, 4, 32]),
)
def test_parts_add_up_and_are_cut_at_units(total, shares, unit):
    parts = even_parts(total, shares, unit)
    assert sum(parts) == total
    assert all(n == 0 for n, share in zip(parts, shares, strict=True) if share == 0)
    ends = np.cumsum(parts)
    assert all(end % unit == 0 or end == total for end in ends)
    ideal = np.cumsum(shares) / sum(shares) * total
    assert np.abs(ends[:-1] - ideal[:-1]).max(initial=0) <= unit


# --- graphs -------------------------------------------------------------------------------


@st.composite
def sharings(draw, graph):
    """Split some weights and states of a graph along any axis, and leave the others whole."""
    members = draw(st.integers(2, 3))
    layouts = {}
    for t in graph.tensors:
        if t.is_view or t.role not in (Role.WEIGHT, Role.STATE) or not t.shape:
            continue
        if draw(st.integers(0, 2)) == 0:
            layouts[t.name] = Whole((draw(st.integers(0, members - 1)),))
            continue
        axis = draw(st.integers(0, len(t.shape) - 1))
        block = t.dtype.block if axis == len(t.shape) - 1 else 1
        shares = [draw(st.sampled_from([0.0, 1.0, 2.0])) for _ in range(members)]
        if not t.shape[axis] or not any(shares):
            continue
        split = Split(axis, (even_parts(t.shape[axis], shares, block),))
        layouts[t.name] = split if len(split.on) > 1 else Whole(split.on)
    peers = draw(st.frozensets(st.integers(0, members - 1)))
    return Shards(members, layouts, peers=peers)


@given(st.data(), seeds())
def test_random_graphs_compute_the_same(data, seed):
    drawn = data.draw(graphs(10, min_nodes=2))
    shards = data.draw(sharings(drawn.graph))
    try:
        sharded = shard_graph(drawn.graph, shards)
    except PlanError as error:
        event(error.one_line().partition(":")[0])
        return  # a split that an op cannot follow, with the reason; see below
    new, values = sharded.graph, values_for(drawn, seed)
    states, new_states = {}, {}
    for _ in range(2):
        wanted = run_oracle(drawn.graph, values, states=states)
        leaves = {k: v for k, v in parts_of(values, drawn.graph, shards).items() if k in new}
        found = run_oracle(new, leaves, states=new_states)
        for old, tid in sharded.tensor_of.items():
            if wanted[old].dtype == np.int32:
                np.testing.assert_array_equal(found[tid], wanted[old])
            else:
                np.testing.assert_allclose(found[tid], wanted[old], rtol=RTOL, atol=ATOL)


def two_layers(n_ctx=8, kv=2):
    """Return attention and a network, as models write them, and how two devices share them."""
    g = GraphBuilder("layer")
    tokens, width, d = 3, 16, 4
    x = g.input("x", (tokens, width))
    rows, bounds = g.input("rows", (tokens,), "i32"), g.input("bounds", (tokens, 2), "i32")
    layouts = {}
    half = ((width // 2, width // 2),)
    for layer in range(2):
        normed = g.mul(g.rms_norm(x), g.weight(f"{layer}.norm", (width,)), name="norm")
        q, k, v = (g.mul_mat(g.weight(f"{layer}.{n}", (width, width)), normed) for n in "qkv")
        layouts |= {f"{layer}.{n}": Split(0, half) for n in "qkv"}
        kept = []
        for name, row in (("k", k), ("v", v)):
            cache = g.state(f"{layer}.{name}_cache", (n_ctx, width))
            layouts[f"{layer}.{name}_cache"] = Split(1, half)
            kept.append(g.reshape(g.set_rows(cache, row, rows), n_ctx, width // d, d))
        kqv = g.attention(g.reshape(q, tokens, width // d, d), *kept, bounds=bounds)
        out = g.mul_mat(g.weight(f"{layer}.o", (width, width)), g.reshape(kqv, tokens, width))
        layouts[f"{layer}.o"] = Split(1, half)
        x = g.add(out, x, name="residual")
    return g.build(x), Shards(2, layouts)


def test_one_sum_for_each_output_matrix_and_the_rest_apart():
    graph, shards = two_layers()
    new = shard_graph(graph, shards).graph
    ops = Counter((n.op, part_of(n.name)[1]) for n in new.nodes)
    assert ops["mul_mat", 0] == ops["mul_mat", 1] == 2 * 4
    assert ops["attention", 0] == ops["attention", 1] == 2
    assert ops["concat", 0] == 0
    # Per layer one sum and one residual; only participant 0 needs those of the last layer.
    assert (ops["add", 0], ops["add", 1]) == (4, 2)


def test_summands_are_added_in_one_order_by_everyone():
    graph, shards = two_layers()
    new = shard_graph(graph, shards).graph
    sums = {}
    for n in new.nodes:
        base, part = part_of(n.name)
        if base.endswith("_sum"):
            names = [part_of(new.tensors[t].name) for t in n.inputs]
            sums.setdefault(part, []).append(names)
    assert sums[1] == sums[0][: len(sums[1])]


def test_a_bias_is_added_to_one_summand():
    """Then what adds up can add the hidden state and normalise, too, in one kernel."""
    g, rng = GraphBuilder(), np.random.default_rng(0)
    x, residual = g.input("x", (3, 8)), g.input("residual", (3, 4))
    w, bias, norm = g.weight("w", (4, 8)), g.weight("bias", (4,)), g.weight("norm", (4,))
    made = g.add(g.add(g.mul_mat(w, x), bias, name="biased"), residual, name="hidden")
    normed = g.mul(g.rms_norm(made, eps=1e-5), norm)
    graph = g.build(g.mul_mat(g.weight("next", (4, 4)), normed))
    both = dict.fromkeys(("bias", "norm"), Whole((0, 1)))
    cut = {"w": Split(1, ((4, 4),)), "next": Split(0, ((2, 2),))}
    shards = Shards(2, both | cut)
    sharded = shard_graph(graph, shards)
    names = Counter(part_of(n.name)[0] for n in sharded.graph.nodes)
    assert names["biased"] == 1
    assert names["hidden"] == 2
    adders = {n.output for n in sharded.graph.nodes if part_of(n.name)[0] == "biased_sum"}
    readers = [n.name for n in sharded.graph.nodes if adders & set(n.inputs)]
    assert sorted(part_of(name)[0] for name in readers) == ["hidden", "hidden"]
    values = {
        t: rng.normal(size=graph.named(t).shape).astype(np.float32)
        for t in ("x", "residual", "w", "bias", "norm", "next")
    }
    found = run_oracle(sharded.graph, parts_of(values, graph, shards))
    np.testing.assert_allclose(
        found[sharded.tensor_of[graph.outputs[0]]],
        run_oracle(graph, values)[graph.outputs[0]],
        rtol=RTOL,
        atol=ATOL,
    )


@st.composite
def expert_splits(draw):
    """Return a graph of experts, and how some participants have ranges of them."""
    members, experts = draw(st.integers(2, 4)), draw(st.integers(3, 6))
    graph = expert_graph(
        tokens=draw(st.integers(1, 3)),
        experts=experts,
        width=8,
        hidden=8,
        biases=draw(st.booleans()),
    )
    layouts = {}
    for layer in range(2):
        cuts = draw(st.lists(st.integers(0, experts), min_size=members - 1, max_size=members - 1))
        ends = [0, *sorted(cuts), experts]
        order = draw(st.permutations(range(members)))
        segments = tuple(
            tuple(stop - start if p == owner else 0 for p in range(members))
            for owner, start, stop in zip(order, ends, ends[1:], strict=False)
        )
        split = Split(0, segments)
        layout = split if len(split.on) > 1 else Whole(split.on)
        names = [n for n in expert_names(graph) if n.startswith(f"blk.{layer}.")]
        layouts |= dict.fromkeys(names, layout)
    return graph, Shards(members, layouts)


@given(expert_splits(), seeds())
def test_experts_are_computed_where_they_are_and_added_up_once(drawn, seed):
    """Whatever ranges participants have, in whatever order; ids stay those of all experts."""
    graph, shards = drawn
    sharded = shard_graph(graph, shards)
    values = expert_values(graph, seed)
    wanted = run_oracle(graph, values)
    found = run_oracle(sharded.graph, parts_of(values, graph, shards))
    for old, tid in sharded.tensor_of.items():
        np.testing.assert_allclose(found[tid], wanted[old], rtol=RTOL, atol=ATOL)
    sums = {part_of(n.name)[0] for n in sharded.graph.nodes if part_of(n.name)[0].endswith("_sum")}
    split_layers = sum(
        isinstance(shards.layout(f"blk.{i}.ffn_up_exps.weight"), Split) for i in range(2)
    )
    assert len(sums) == split_layers


@pytest.mark.parametrize("op", sorted(KEEPS_ZEROS))
def test_ops_that_keep_zeros(op):
    g = GraphBuilder()
    operands = [g.input(name, (2, 4)) for name in ("x", "y")[: len(op_by_name(op).operands)]]
    graph = g.build(g.op(op, *operands))
    (found,) = run_oracle(graph, {t.name: np.zeros((2, 4), "f") for t in operands}).values()
    assert not found.any()


@st.composite
def graphs_of_rows(draw):
    """Return a graph of experts of ids with any ops between, and who has which of them."""
    members, experts = draw(st.integers(2, 3)), draw(st.integers(3, 5))
    g, layouts = GraphBuilder(), {}
    shape = draw(st.integers(1, 3)), draw(st.integers(1, 2)), 4
    ids = [g.input(f"ids{i}", shape[:2], I32) for i in range(2)]
    whole = g.input("whole", shape)
    cut = draw(st.integers(1, experts - 1))
    ends = (cut, experts - cut), (experts - cut, cut)
    splits = [Split(0, (own + (0,) * (members - 2),)) for own in ends]

    def experts_of(*inner):
        name = f"w{len(layouts)}"
        layouts[name] = splits[not draw(st.integers(0, 4))]
        return g.weight(name, (experts, *inner))

    made = [g.mul_mat_id(experts_of(4, 4), g.input("x", (shape[0], 1, 4)), ids[0])]
    ways = {
        "product": lambda a, _, i: g.mul_mat_id(experts_of(4, 4), a, i),
        "bias": lambda a, _, i: g.add_id(a, experts_of(4), i),
        "shared bias": lambda a, *_: g.add(a, g.weight(f"b{len(g.tensors)}", (4,))),
        "scale": lambda a, *_: g.scale(a, 0.5, bias=draw(st.sampled_from([0.0, 1.0]))),
        "view": lambda a, *_: g.cont(g.permute(a, 0, 2, 1)),
        "back": lambda a, *_: g.permute(g.cont(g.permute(a, 0, 2, 1)), 0, 2, 1),
        **{op: lambda a, *_, op=op: g.op(op, a) for op in ("silu", "tanh", "sigmoid", "cont")},
        **{op: lambda a, b, _, op=op: g.op(op, a, b) for op in ("add", "mul", "swiglu_oai")},
        **{f"whole {op}": lambda a, *_, op=op: g.op(op, a, whole) for op in ("add", "mul", "div")},
    }
    for _ in range(draw(st.integers(1, 6))):
        way = ways[draw(st.sampled_from(sorted(ways)))]
        with suppress(GraphError):  # of another shape
            chosen = ids[not draw(st.integers(0, 4))]
            a, b = (draw(st.sampled_from(made)) for _ in range(2))
            made.append(way(a, b, chosen))
    return g.build(made[-1]), Shards(members, layouts), experts


@given(graphs_of_rows(), seeds())
def test_ops_between_experts_change_no_result(drawn, seed):
    """Rows of experts that are elsewhere are used as 0 only as long as they are 0."""
    graph, shards, experts = drawn
    try:
        sharded = shard_graph(graph, shards)
    except PlanError:
        reject()  # parts of weights are not joined
    rng = np.random.default_rng(seed)
    values = {
        t.name: rng.integers(0, experts, t.shape).astype(np.int32)
        if t.dtype is I32
        else rng.uniform(0.5, 1.5, t.shape).astype(np.float32)
        for t in (*graph.roots(Role.INPUT), *graph.roots(Role.WEIGHT))
    }
    wanted = run_oracle(graph, values)
    found = run_oracle(sharded.graph, parts_of(values, graph, shards))
    for old, tid in sharded.tensor_of.items():
        np.testing.assert_allclose(found[tid], wanted[old], rtol=RTOL, atol=ATOL)


def test_experts_of_which_a_participant_has_two_ranges_are_refused():
    graph = expert_graph(1, experts=4)
    layouts = dict.fromkeys(expert_names(graph), Split(0, ((1, 1), (1, 1))))
    with pytest.raises(PlanError, match="participant 0 has 2 ranges"):
        shard_graph(graph, Shards(2, layouts))


def test_experts_of_others_are_neither_read_nor_counted():
    """The bytes and operations of a participant are its share of the chosen ones."""
    graph = expert_graph(1, tokens=1, experts=8, used=4)
    layouts = dict.fromkeys(expert_names(graph), Split(0, ((2, 6),)))
    new = shard_graph(graph, Shards(2, layouts)).graph
    (whole, *_) = (node_work(graph, n) for n in graph.nodes if n.op == "mul_mat_id")
    up = {part_of(n.name)[1]: node_work(new, n) for n in new.nodes if n.op == "mul_mat_id"}
    assert up[0].flops == whole.flops / 4
    assert up[1].flops == 3 * whole.flops / 4
    assert up[0].nbytes < up[1].nbytes < whole.nbytes


@given(st.integers(2, 9), st.integers(1, 7), st.sampled_from([1, 64, 4096]), st.data())
def test_sums_of_many_participants_have_the_same_bits(members, rows, piece, data):
    """Whoever adds up, and however many rows each of them: in the order of participants."""
    g, rng = GraphBuilder(), np.random.default_rng(rows)
    x, w = g.input("x", (rows, 2 * members)), g.weight("w", (8, 2 * members))
    made = g.mul_mat(w, x, name="made")
    peers = frozenset(range(members)) if data.draw(st.booleans()) else frozenset()
    graph = g.build(g.rms_norm(made, eps=1e-5))
    shards = Shards(members, {"w": Split(1, ((2,) * members,))}, peers=peers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ggsched_shard.rewrite._PIECE_NBYTES", piece)
        patch.setattr("ggsched_shard.rewrite.SCATTERED_NBYTES", 4 * piece)
        sharded = shard_graph(graph, shards)
    values = {t.name: rng.normal(size=t.shape).astype(np.float32) for t in (x, w)}
    found = run_oracle(sharded.graph, parts_of(values, graph, shards))
    wanted = run_oracle(graph, values)
    for old, tid in sharded.tensor_of.items():
        np.testing.assert_allclose(found[tid], wanted[old], rtol=RTOL, atol=ATOL)
    adding = [n for n in sharded.graph.nodes if part_of(n.name)[0] == "made_sum"]
    assert {n.op for n in adding} == {"add"}
    if members > 4 and not peers:
        assert len(adding) <= (members - 1) * max(1, round((32 * rows / piece) ** 0.5))


def test_what_is_received_is_enqueued_before_the_next_product():
    """A copy may stand on its sender's queue: behind a product it would be late."""
    graph, shards = two_layers()
    new = shard_graph(graph, shards).graph
    plan = verified_plan(new, machine(2), placement=ByParticipant("two", lambda t: (0, 1)))
    assert check_plan(plan).is_clean
    heavy_by = {0: 0, 1: 0}
    for s in plan.splits.splits:
        heavy = sum(new.nodes[i].op in HEAVY for i in range(s.first, s.end))
        received = [t for t in plan.splits.transfers if t.before == s.id]
        if any(plan.splits.values[t.src].device not in (-1, s.device) for t in received):
            assert not heavy
            assert len(set(heavy_by.values())) == 1  # nobody is ahead by a product
        heavy_by[s.device] += heavy


def test_a_plan_places_parts_where_participants_are():
    graph, shards = two_layers()
    new = shard_graph(graph, shards).graph
    homes = {name: p for source in shards.layouts for name, p in shards.members(source)}
    plan = verified_plan(new, machine(3), placement=ByParticipant("two", lambda t: (2, 0)))
    for node, choice in zip(new.nodes, plan.placement.choices, strict=True):
        assert choice.device == {0: 2, 1: 0}[part_of(node.name)[1]]
    assert homes["0.q#1"] == 1


@pytest.mark.parametrize(
    ("layout", "what"),
    [
        (Split(2, ((4, 12),)), "axis 2"),
        (Split(0, ((4, 4),)), "parts of 8"),
        (Split(1, ((16, 48),)), "cut a block"),
    ],
)
def test_refused_splits(layout, what):
    g = GraphBuilder()
    w = g.weight("w", (16, 64), "q8_0")
    graph = g.build(g.mul_mat(w, g.input("x", (2, 64))))
    with pytest.raises(PlanError, match=what):
        shard_graph(graph, Shards(2, {"w": layout}))


def test_a_weight_that_is_needed_whole_is_refused_with_the_reason():
    g = GraphBuilder()
    table = g.weight("table", (16, 8))
    graph = g.build(g.get_rows(table, g.input("ids", (2,), "i32")))
    with pytest.raises(PlanError, match="'table' is split where a whole one is needed"):
        shard_graph(graph, Shards(2, {"table": Split(0, ((8, 8),))}))


@given(st.text(max_size=8), st.integers(0, 9))
def test_names(name, part):
    assert part_of(name_of(name, part)) == (name, part)
    assert part_of(name_of(name, part) + "@3") == (name + "@3", part)


def test_names_of_wholes():
    assert part_of("blk.0.attn_q.weight") == ("blk.0.attn_q.weight", None)
    assert part_of("a#b") == ("a#b", None)


def test_constants_are_copied_and_never_split():
    row, w = np.arange(8, dtype=np.float32), np.ones((8, 4), np.float32)
    g = GraphBuilder()
    x = g.input("x", (2, 4))
    graph = g.build(g.add(g.mul_mat(g.weight("w", (8, 4)), x), row))
    values = {"x": np.ones((2, 4), np.float32), "w": w}
    shards = Shards(2, {"w": Split(0, ((4, 4),))})
    made = shard_graph(graph, shards)
    (name,) = graph.constants
    assert set(made.graph.constants) <= {name_of(name, p) for p in range(2)}
    found = run_oracle(made.graph, parts_of(values, graph, shards))
    np.testing.assert_array_equal(
        found[made.tensor_of[graph.outputs[0]]], run_oracle(graph, values)[graph.outputs[0]]
    )
    with pytest.raises(PlanError, match="constant .* is split"):
        shard_graph(graph, Shards(2, {name: Split(0, ((4, 4),))}))
