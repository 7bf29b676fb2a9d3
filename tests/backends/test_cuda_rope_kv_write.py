"""Which neighbours become one kernel of rotations and copies into caches; no GPU is needed."""

from dataclasses import replace

import pytest

from ggsched.backend.base import BaseDevice, host_facts
from ggsched.backend.program import Group
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import BF16, F16, I32
from ggsched.passes import make_plan
from ggsched.plan.fusions import run_order
from ggsched_kernels import warp_profile
from ggsched_kernels.calls import CodeOf
from ggsched_llm.graph import build_model_graph
from ggsched_testing.eager import bound_nodes
from tests.passes.machines import device, machine
from tests.support.shapes import SMALL, SMALL_MOE, spec_of

H200 = warp_profile(132, 232448, True)
ROPE, STORE_K, STORE_V = 0, 2, 3


class Memory:
    """A buffer for lowering."""

    device = BaseDevice(host_facts("nowhere", ()), {})

    def __init__(self, nbytes):
        self.nbytes = nbytes


def layer(tokens=1, kind=F16):
    """Return the nodes between the products of a layer and its attention, bound: four, in order."""
    g = GraphBuilder("layer")
    positions, rows = g.input("positions", (tokens,), I32), g.input("rows", (tokens,), I32)
    q, k = g.input("q", (tokens, 8, 64)), g.input("k", (tokens, 2, 64))
    v = g.input("v", (tokens, 128))
    turned = g.rope(q, positions, n_dims=64)
    k = g.reshape(g.rope(k, positions, n_dims=64), tokens, 128)
    keys = g.set_rows(g.state("keys", (128, 128), kind), k, rows)
    graph = g.build(turned, keys, g.set_rows(g.state("values", (128, 128), kind), v, rows))
    nodes = bound_nodes(graph, {t.id: Memory(t.nbytes) for t in graph.tensors if not t.is_view})
    group = Group("rope+set_rows", (1, 2))
    return [replace(n, group=group) if n.node in group.nodes else n for n in nodes]


def lowered(nodes):
    from ggsched_cuda_kernels.kernel_selection import lower

    return lower(nodes, H200)[0]


def kernels(nodes):
    return [call.kernel for call in lowered(nodes)]


@pytest.mark.parametrize("tokens", [1, 5, 64])
def test_three_become_one(tokens):
    nodes = layer(tokens)
    (call,) = lowered(nodes)
    assert (call.source, call.kernel) == ("rope_kv_write", "rope_kv_write")
    assert call.groups == (tokens * (8 + 2 + 2), 1, 1), "heads of Q and K, and pieces of V"
    ends = [int.from_bytes(arg, "little") for arg in call.args[-2:]]
    assert ends == [8 * tokens, 10 * tokens]
    codes = [arg.label for arg in call.args if isinstance(arg, CodeOf)]
    assert codes == [nodes[i].label for i in (ROPE, STORE_K, STORE_V)], "each reports its own ids"


def test_two_become_one():
    nodes = layer()
    (call,) = lowered(nodes[:3])
    assert call.kernel == "rope_kv_write"
    ends = [int.from_bytes(arg, "little") for arg in call.args[-2:]]
    assert ends == [8, 10]
    assert call.groups == (10, 1, 1)
    assert len(call.args) == len(lowered(nodes)[0].args), "a job that is missing has arguments too"


def test_one_stays_what_it_was():
    nodes = layer()
    assert kernels(nodes[:1]) == ["rope_heads"]
    assert kernels(nodes[1:3]) == ["rope_heads"]
    assert kernels(nodes[3:]) == ["set_rows"]


def test_something_in_between():
    nodes = layer()
    assert kernels([nodes[0], nodes[3], *nodes[1:3]]) == ["rope_kv_write"]
    g = GraphBuilder("other")
    graph = g.build(g.silu(g.input("x", (4,))))
    (other,) = bound_nodes(graph, {t.id: Memory(t.nbytes) for t in graph.tensors})
    assert kernels([nodes[0], other, *nodes[1:]]) == ["rope_heads", "unary", "rope_kv_write"]


def test_many_positions():
    assert "rope_kv_write" not in kernels(layer(65))


def moved(nodes, k, **operands):
    """Return nodes of which one has its result, or its source, at the place of another operand."""
    node = nodes[k]
    inputs, output = list(node.inputs), node.output
    if "output" in operands:
        to = operands["output"]
        output = replace(output, buffer=to.buffer, offset=to.offset)
    if "source" in operands:
        at = 1 if node.op == "set_rows" else 0
        to = operands["source"]
        inputs[at] = replace(inputs[at], buffer=to.buffer, offset=to.offset)
    changed = replace(node, inputs=tuple(inputs), output=output)
    return [*nodes[:k], changed, *nodes[k + 1 :]]


def test_no_job_writes_what_another_reads():
    nodes = layer()
    v, k = nodes[STORE_V].inputs[1], nodes[1].inputs[0]
    assert kernels(moved(nodes, ROPE, output=v)) == ["rope_kv_write", "set_rows"]
    assert kernels(moved(nodes, ROPE, output=k)) == ["rope_heads", "rope_kv_write"]
    ids = nodes[STORE_V].inputs[2]
    assert kernels(moved(nodes, ROPE, output=ids))[0] != "rope_kv_write"


def test_no_job_reads_what_another_writes():
    nodes = layer()
    cache, result = nodes[STORE_K].output, nodes[ROPE].output
    assert kernels(moved(nodes, STORE_V, source=cache)) == ["rope_kv_write", "set_rows"]
    assert kernels(moved(nodes, STORE_V, source=result)) == ["rope_kv_write", "set_rows"]


def test_no_two_jobs_write_the_same():
    nodes = layer()
    cache = nodes[STORE_K].output
    assert kernels(moved(nodes, STORE_V, output=cache)) == ["rope_kv_write", "set_rows"]


def test_neighbours_in_one_buffer_are_apart():
    """Ranges that touch each other do not overlap."""
    nodes = layer()
    result = nodes[ROPE].output
    behind = replace(result, offset=result.offset + result.nbytes)
    assert kernels(moved(nodes, STORE_V, source=behind)) == ["rope_kv_write"]


def test_a_rotation_in_place():
    nodes = layer()
    assert kernels(moved(nodes, ROPE, output=nodes[ROPE].inputs[0])) == ["rope_kv_write"]


@pytest.mark.parametrize("hp", [SMALL, SMALL_MOE], ids=lambda hp: hp.name)
def test_a_layer_of_a_model(hp):
    """Between the products of a layer and that of its output there are two kernels, or one."""
    found = kernels_of(hp, n_tokens=5)
    places = [i for i, kernel in enumerate(found) if kernel == "rope_kv_write"]
    assert len(places) == hp.n_layer
    assert [found[i + 1] for i in places] == ["attention"] * hp.n_layer
    few = kernels_of(hp, n_tokens=1)
    assert few.count("heads_attention") == hp.n_layer
    assert not {"rope_heads", "set_rows", "rope"} & {*found, *few}
    assert not {"rope_kv_write", "attention"} & set(few)


def kernels_of(hp, n_tokens):
    """Return the kernels of a step, with every tensor in a place of its own."""
    from ggsched_cuda_kernels.kernel_selection import fusions_of

    graph = build_model_graph(spec_of(hp, BF16), n_tokens=n_tokens, n_kv=256, n_out=1, n_ctx=512)
    facts = replace(device("gpu:0", fusions=fusions_of(H200)), memory_nbytes=1 << 40)
    plan = make_plan(graph, machine(facts))
    nodes = bound_nodes(graph, {t.id: Memory(t.nbytes) for t in graph.tensors if not t.is_view})
    for f in plan.fusions:
        for k in f.nodes:
            nodes[k] = replace(nodes[k], group=Group(f.pattern, f.nodes))
    ordered = [nodes[k] for k in run_order(len(nodes), plan.fusions)]
    return [getattr(call, "kernel", "product") for call in lowered(ordered)]
