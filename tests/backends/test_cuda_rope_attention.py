"""Which layers one kernel takes from the rotations to the end of attention; no GPU is needed."""

from collections import Counter
from dataclasses import replace
from operator import attrgetter

import pytest

from ggsched.backend.program import BoundNode, Group, Operand, full_params
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import BF16, F16, F32, I32, MXFP4
from ggsched.ir.ops import OPS
from ggsched.passes import make_plan
from ggsched.plan.command import Launch
from ggsched.sanitize import check_plan
from ggsched_kernels import warp_profile
from ggsched_kernels.calls import FAULT, CodeOf
from ggsched_llm.graph import build_model_graph
from ggsched_testing.eager import bound_nodes
from tests.backends.test_cuda_rope_kv_write import Memory
from tests.passes.machines import device, machine
from tests.support.shapes import GPT_OSS_20B, LLAMA_1B, LLAMA_8B, SMALL, SMALL_MOE, spec_of

H200 = warp_profile(132, 232448, True)
TURN_Q, TURN_K, KEYS, VALUES, LAST = range(5)
K, V, Q, MASK = range(4)
APART = ["rope_kv_write", "attention"]
JOINED = ["heads_attention"]
NAME = attrgetter("name")


def layer(tokens=1, kind=F16, first=0, n=64, share=4, width=64, masked=True, other_k=None):
    """Return the nodes from the rotations of a layer to the end of its attention, bound."""
    g = GraphBuilder("layer")
    positions, rows = g.input("positions", (tokens,), I32), g.input("rows", (tokens,), I32)
    q, k = g.input("q", (tokens, 2 * share, width)), g.input("k", (tokens, 2, width))
    v = g.input("v", (tokens, 2 * width))
    turned = g.rope(q, positions, n_dims=width)
    k = g.rope(k, positions, **{"n_dims": width, **(other_k or {})})
    caches = [g.state(name, (128, 2 * width), kind) for name in ("keys", "values")]
    news = (g.reshape(k, tokens, 2 * width), v)
    stored = [g.set_rows(cache, new, rows) for cache, new in zip(caches, news, strict=True)]
    keys, values = (g.reshape(g.rows(s, first, first + n), n, 2, width) for s in stored)
    mask = g.input("mask", (tokens, n)) if masked else None
    made = g.attention(turned, keys, values, mask=mask, scale=0.125)
    graph = g.build(turned, *stored, made)
    nodes = bound_nodes(graph, {t.id: Memory(t.nbytes) for t in graph.tensors if not t.is_view})
    for i in (1, 2):
        nodes[i] = replace(nodes[i], group=Group("rope+set_rows", (1, 2)))
    return nodes


def kernels(nodes, profile=H200):
    from ggsched_cuda_kernels.kernel_selection import lower

    return [getattr(call, "kernel", "product") for call in lower(nodes, profile)[0]]


@pytest.mark.parametrize(
    "what",
    [
        {},
        {"tokens": 4},
        {"kind": F32},
        {"first": 7},
        {"n": 1, "masked": False},
        {"share": 12, "width": 80},
    ],
)
def test_one_kernel(what):
    from ggsched_cuda_kernels.kernel_selection import lower

    nodes = layer(**what)
    (call,), _ = lower(nodes, H200)
    assert [call.kernel] == JOINED
    assert call.label == nodes[LAST].label
    defines = {name: int(value) for name, value in call.defines}
    tokens, width = nodes[TURN_Q].output.shape[0], defines["WIDTH"]
    assert defines["TOKENS"] == tokens
    assert call.groups[0] == call.cluster == defines["SPLITS"]
    codes = [arg.label for arg in call.args if isinstance(arg, CodeOf)]
    assert codes == [nodes[KEYS].label, nodes[VALUES].label], "each reports its own ids"
    assert call.args.count(FAULT) == 1
    size = nodes[KEYS].output.dtype.block_nbytes
    (alone,), _ = lower(nodes[LAST:], H200)
    own = 4 * defines["ROWS"] * width + 2 * tokens * width * size
    assert call.shared_nbytes == alone.shared_nbytes + own
    assert own % 16 == 0
    assert call.groups == alone.groups


def test_more_tokens_stay_two_kernels():
    assert kernels(layer(tokens=5)) == APART


def test_a_part_stays_what_it_was():
    nodes = layer()
    assert kernels(nodes[:LAST]) == ["rope_kv_write"]
    assert kernels(nodes[LAST:]) == ["attention"]
    assert "heads_attention" not in kernels([nodes[0], nodes[3], *nodes[1:3], *nodes[4:]])


def test_older_gpus():
    assert "heads_attention" not in kernels(layer(), warp_profile(108, 166912, False))


@pytest.mark.parametrize(
    "other", [{"pairing": "halves"}, {"base": 5.0}, {"n_dims": 32}, {"attn_factor": 2.0}]
)
def test_keys_that_turn_otherwise(other):
    assert kernels(layer(other_k=other)) == APART


def changed(nodes, k, at, **fields):
    """Return nodes of which one has another operand; ``at`` is -1 for its result."""
    node, inputs = nodes[k], list(nodes[k].inputs)
    if at < 0:
        node = replace(node, output=replace(node.output, **fields))
    else:
        inputs[at] = replace(inputs[at], **fields)
        node = replace(node, inputs=tuple(inputs))
    return [*nodes[:k], node, *nodes[k + 1 :]]


ELSEWHERE = {"buffer": Memory(1 << 20)}


@pytest.mark.parametrize(
    ("k", "at"),
    [
        (TURN_K, 1),  # positions of its own
        (VALUES, 2),  # rows of its own
        (LAST, K),  # keys of another cache
        (LAST, Q),  # queries from elsewhere
        (LAST, V),  # values of another cache
    ],
)
def test_operands_that_belong_to_something_else(k, at):
    assert kernels(changed(layer(), k, at, **ELSEWHERE)) == APART


def test_caches_seen_from_another_row():
    nodes = layer(first=2)
    row = nodes[KEYS].output.strides[0]
    for at in (K, V):
        offset = nodes[LAST].inputs[at].offset + row
        assert kernels(changed(nodes, LAST, at, offset=offset)) == APART
    both = changed(nodes, LAST, K, offset=nodes[LAST].inputs[K].offset + row)
    both = changed(both, LAST, V, offset=nodes[LAST].inputs[V].offset + row)
    assert kernels(both) == JOINED
    for between in (row // 2, -4 * row, 127 * row):
        moved = nodes
        for at in (K, V):
            offset = nodes[LAST].inputs[at].offset + between
            moved = changed(moved, LAST, at, offset=offset)
        assert kernels(moved) == APART


def test_heads_in_another_order():
    nodes = layer()
    for at in (K, Q):
        rows, heads, d = nodes[LAST].inputs[at].strides
        assert kernels(changed(nodes, LAST, at, strides=(rows, 2 * heads, d))) == APART


def place(o):
    return {"buffer": o.buffer, "offset": o.offset}


def test_queries_may_be_turned_in_place():
    nodes = layer(tokens=2)
    x = place(nodes[TURN_Q].inputs[0])
    in_place = changed(changed(nodes, TURN_Q, -1, **x), LAST, Q, **x)
    assert kernels(in_place) == JOINED
    x["offset"] += 256
    assert kernels(changed(changed(nodes, TURN_Q, -1, **x), LAST, Q, **x)) == APART


@pytest.mark.parametrize(
    ("k", "at"),
    [(TURN_Q, 0), (TURN_Q, 1), (TURN_K, 0), (VALUES, 1), (VALUES, 2), (LAST, MASK)],
)
def test_the_result_lies_on_nothing_that_is_read(k, at):
    """Groups of other clusters may not have begun when it is written."""
    nodes = layer()
    assert kernels(changed(nodes, LAST, -1, **place(nodes[k].inputs[at]))) == APART


def test_nothing_else_that_is_written_lies_on_what_is_read():
    nodes = layer()
    mask = place(nodes[LAST].inputs[MASK])
    assert kernels(changed(changed(nodes, TURN_Q, -1, **mask), LAST, Q, **mask)) == APART
    cache = place(nodes[VALUES].output)
    assert kernels(changed(nodes, LAST, -1, **cache)) == APART
    assert kernels(changed(nodes, TURN_K, 0, **cache)) != JOINED


def step_of(hp, n_tokens=1, kv_dtype=F16):
    """Return the nodes of a step, bound to the places of its plan; caches are f16 by default."""
    from ggsched_cuda_kernels.kernel_selection import fusions_of, neighbours_of

    spec = spec_of(hp, BF16, MXFP4 if hp.n_expert else None)
    graph = build_model_graph(
        spec, n_tokens=n_tokens, n_kv=256, n_out=1, n_ctx=512, kv_dtype=kv_dtype
    )
    gpu = device("gpu:0", fusions=fusions_of(H200), neighbours=neighbours_of(H200))
    plan = make_plan(graph, machine(replace(gpu, memory_nbytes=1 << 40)))
    assert check_plan(plan).is_clean
    arenas = [Memory(arena.nbytes) for arena in plan.memory.arenas]
    groups = {n: Group(f.pattern, f.nodes) for f in plan.fusions for n in f.nodes}
    (launch,) = (c for c in plan.commands if isinstance(c, Launch))
    nodes = []
    for step in launch.steps:
        node, operands = graph.nodes[step.node], []
        for tid, region in zip(node.tensors, step.operands, strict=True):
            t, at = graph.tensors[tid], (arenas[region.arena], region.offset, region.nbytes)
            operands.append(Operand(*at, t.dtype, t.shape, t.strides))
        *inputs, output = operands
        params, label = full_params(node.op, node.params), graph.label(node)
        group = groups.get(node.id)
        nodes.append(BoundNode(node.id, node.op, tuple(inputs), output, params, label, group))
    return nodes


@pytest.mark.parametrize("kv_dtype", [F16, F32], ids=str)
@pytest.mark.parametrize("n_tokens", [1, 4])
@pytest.mark.parametrize("hp", [SMALL, LLAMA_1B, LLAMA_8B, SMALL_MOE, GPT_OSS_20B], ids=NAME)
def test_places_of_a_plan(hp, n_tokens, kv_dtype):
    """What a plan lays on what is not an obstacle."""
    from ggsched_cuda_kernels.kernel_selection import lower

    nodes = step_of(hp, n_tokens, kv_dtype)
    calls = [call for call in lower(nodes, H200)[0] if "blk." in call.label]
    found = [call.label for call in calls if call.kernel == "heads_attention"]
    assert [f"'blk.{k}.kqv'" for k in range(hp.n_layer)] == [at.split()[-1] for at in found]
    assert not {"rope_kv_write", "attention"} & {call.kernel for call in calls}


def test_kernels_of_a_step():
    """Sums of experts begin the next layer, or what gives the logits."""
    around = Counter({"get_rows": 1, "warp_specialized_rows": 1})
    llama = Counter(kernels(step_of(LLAMA_1B)))
    each = {"warp_specialized_rows": 4, "heads_attention": 1}
    assert llama - around == Counter({k: n * LLAMA_1B.n_layer for k, n in each.items()})
    gpt_oss = Counter(kernels(step_of(GPT_OSS_20B)))
    each = {"warp_specialized_rows": 3, "heads_attention": 1, "warp_specialized_experts": 2}
    assert gpt_oss - around == Counter({k: n * GPT_OSS_20B.n_layer for k, n in each.items()})


def test_what_is_declared_has_a_meaning():
    from ggsched_cuda_kernels.kernel_selection import fusions_of, neighbours_of

    known = fusions_of(H200) | OPS.keys()
    for names in neighbours_of(H200):
        assert set(names.split(", ")) <= known
    assert not neighbours_of(warp_profile(108, 166912, False)), "nothing is joined there"
