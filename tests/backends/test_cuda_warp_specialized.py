"""Which products of one row, and of chosen experts, become warp-specialised calls."""

from dataclasses import replace

import pytest

from ggsched.backend.base import BaseDevice, host_facts
from ggsched.backend.program import Group
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import BF16, F16, Q8_0
from ggsched_kernels import GPU, warp_profile
from ggsched_testing.eager import bound_nodes
from tests.kernels.warp_specialized_programs import calls_of
from tests.support.shapes import GPT_OSS_20B, LLAMA_1B

H200 = warp_profile(132, 232448, True)
OLDER = warp_profile(108, 166912, False)
WARP_SPECIALIZED = {"warp_specialized_rows", "warp_specialized_experts"}


class Memory:
    """A buffer for lowering."""

    device = BaseDevice(host_facts("nowhere", ()), {})

    def __init__(self, nbytes):
        self.nbytes = nbytes


def bound(*made, groups=(), builder, constant=True):
    graph = builder.build(*made)
    memory = {t.id: Memory(t.nbytes) for t in graph.tensors if not t.is_view}
    nodes = bound_nodes(graph, memory, constant_weights=constant)
    for pattern, members in groups:
        for i in members:
            nodes[i] = replace(nodes[i], group=Group(pattern, members))
    return nodes


def lowered(nodes, profile=H200):
    from ggsched_cuda_kernels.kernel_selection import lower

    return lower(nodes, profile)[0]


def kernels(nodes, profile=H200):
    return [getattr(call, "kernel", "product") for call in lowered(nodes, profile)]


def defines(call):
    return dict(call.defines)


# --- products of a row ------------------------------------------------------------------------

NORM = ("rms_norm+mul", (0, 1))
K = 2048


def norm_of(g, k=K):
    return g.mul(g.rms_norm(g.input("x", (1, k))), g.weight("norm", (k,)))


def normed(*weights, constant=True):
    """Return nodes: a norm, its weight, and products of it with weights of (rows, type)."""
    g = GraphBuilder("normed")
    x = norm_of(g)
    made = [g.mul_mat(g.weight(f"w{i}", (n, K), t), x) for i, (n, t) in enumerate(weights)]
    return bound(x, *made, groups=[NORM], builder=g, constant=constant)


def products(count, tokens=1, dtype=BF16, constant=True):
    """Return products of one x."""
    g = GraphBuilder("products")
    x = g.input("x", (tokens, K))
    made = [g.mul_mat(g.weight(f"w{i}", (64, K), dtype), x) for i in range(count)]
    return bound(*made, builder=g, constant=constant)


def test_a_norm_and_three_products():
    (call,) = lowered(normed((2048, BF16), (512, BF16), (512, BF16)))
    assert call.kernel == "warp_specialized_rows"
    assert call.groups == (132, 1, 1)
    known = defines(call)
    assert (known["NORM"], known["GATED"], known["CONSTANT_W"]) == ("1", "0", "1")
    assert call.shared_nbytes == int(known["LOCAL_NBYTES"])
    assert call.lanes == int(known["LANES"]) + 32


def test_no_more_than_three():
    assert kernels(products(3)) == ["warp_specialized_rows"]
    assert kernels(products(4)) == ["warp_specialized_rows"] * 2
    assert kernels(products(7)) == ["warp_specialized_rows"] * 3


def test_other_types_go_by_themselves():
    assert kernels(normed((64, BF16), (64, BF16), (64, F16))) == ["warp_specialized_rows"] * 2


def test_a_norm_without_products_is_left_to_others():
    nodes = normed((64, BF16))
    assert kernels(nodes[:2]) == ["rms_mul"]
    assert "warp_specialized_rows" not in kernels(nodes[:1])


def test_other_rows_go_by_themselves():
    nodes = products(2)
    moved = replace(nodes[1].inputs[1], buffer=Memory(4 * K))
    nodes[1] = replace(nodes[1], inputs=(nodes[1].inputs[0], moved))
    assert kernels(nodes) == ["warp_specialized_rows"] * 2
    nodes = normed((64, BF16), (64, BF16))
    nodes[2] = replace(nodes[2], inputs=(nodes[2].inputs[0], moved))
    assert kernels(nodes)[0] == "rms_mul"


def with_constants(nodes, *which):
    """Return nodes of which only some have constant weights, by number."""
    return [
        node if i in which else replace(
            node, inputs=tuple(replace(o, is_constant=False) for o in node.inputs)
        )
        for i, node in enumerate(nodes)
    ]  # fmt: skip


def test_what_is_fetched_early_is_constant():
    nodes = normed((64, BF16), (64, BF16))
    for which, wanted in (
        ((0, 1, 2, 3), ["1"]), ((2, 3), ["0"]), ((), ["0"]), ((1,), ["0"]), ((1, 2), ["1", "0"]),
        ((1, 3), ["0", "1"]),
    ):  # fmt: skip
        calls = lowered(with_constants(nodes, *which))
        assert [defines(call)["CONSTANT_W"] for call in calls] == wanted, which
    assert [defines(c)["CONSTANT_W"] for c in lowered(products(2, constant=False))] == ["0"]


def test_few_stages_are_fetched_one_after_the_other():
    """As long as the predecessor runs, which reads as well; many are requested at once."""
    few, many = (defines(*lowered(products_of(rows))) for rows in (2048, 16384))
    assert (few["STAGES"], few["FLIGHT"]) == ("4", "1")
    assert many["FLIGHT"] == many["STAGES"]


def test_a_gate_of_which_one_side_may_be_written():
    nodes = gated()
    assert [defines(c)["CONSTANT_W"] for c in lowered(nodes)] == ["1"]
    assert [defines(c)["CONSTANT_W"] for c in lowered(with_constants(nodes, 1, 2))] == ["0"]
    assert [defines(c)["CONSTANT_W"] for c in lowered(with_constants(nodes, 0, 2))] == ["0"]


def gated(extents=(64, 64), dtype=BF16):
    g = GraphBuilder("gated")
    x = g.input("x", (1, K))
    gate, up = (g.mul_mat(g.weight(f"w{i}", (n, K), dtype), x) for i, n in enumerate(extents))
    made = g.swiglu(gate, up)
    return bound(made, groups=[("mul_mat*2+swiglu", (0, 1, 2))], builder=g)


def test_a_gate():
    (call,) = lowered(gated())
    assert (call.kernel, defines(call)["GATED"]) == ("warp_specialized_rows", "1")
    assert kernels([*gated()[:2], gated()[2]])[-1] != "warp_specialized_rows", (
        "a group that is not all there"
    )


def added(*, twice=False):
    g = GraphBuilder("added")
    y = g.mul_mat(g.weight("w", (K, K), BF16), g.input("x", (1, K)))
    y = g.add(y, g.weight("b", (K,))) if twice else y
    y = g.add(g.input("z", (1, K)), y)
    pattern = "mul_mat+add+add" if twice else "mul_mat+add"
    return bound(y, groups=[(pattern, tuple(range(2 + twice)))], builder=g)


@pytest.mark.parametrize("twice", [False, True])
def test_what_is_added(twice):
    (call,) = lowered(added(twice=twice))
    assert call.kernel == "warp_specialized_rows"
    counts = [int.from_bytes(arg, "little") for arg in call.args[-1:]]
    assert counts == [1 + twice]


# --- what may go to the host while it is computed ---------------------------------------------


def test_long_results_can_be_sent():
    (call,) = lowered(normed((16384, BF16)))
    also = call.also
    assert (also.nbytes, call.args[also.arg], defines(call)["ALSO"]) == (65536, bytes(8), "1")
    assert also.buffer.nbytes == 65536


@pytest.mark.parametrize("nodes", [normed((16383, BF16)), normed((16384, BF16), (16, BF16))])
def test_no_others_can(nodes):
    (call,) = lowered(nodes)
    assert call.also is None
    assert defines(call)["ALSO"] == "0"


# --- who writes what others read --------------------------------------------------------------


def at(operand, to, by=0):
    """Return an operand at the place of another one, or some bytes behind its begin."""
    return replace(operand, buffer=to.buffer, offset=to.offset + by)


def result_at(nodes, k, to, by=0):
    return [replace(n, output=at(n.output, to, by)) if i == k else n for i, n in enumerate(nodes)]


def test_a_result_on_the_row():
    nodes = added()
    x, z = nodes[0].inputs[1], nodes[1].inputs[0]
    assert kernels(result_at(nodes, 1, z)) == ["warp_specialized_rows"], (
        "number by number in its place"
    )
    assert "warp_specialized_rows" not in kernels(result_at(nodes, 1, x))[-1:], (
        "others still read the row"
    )
    assert "warp_specialized_rows" not in kernels(result_at(nodes, 1, z, by=64))[-1:]
    assert kernels(result_at(nodes, 1, z, by=4 * K)) == ["warp_specialized_rows"], "behind it"


def test_results_on_what_another_job_reads_or_writes():
    nodes = products(2)
    (w0, x), (w1, _) = nodes[0].inputs, nodes[1].inputs
    for to in (x, w0, w1, nodes[0].output):
        assert len(kernels(result_at(nodes, 1, to))) == 2
    assert len(kernels(result_at(nodes, 0, w1))) == 2
    assert len(kernels(result_at(nodes, 1, nodes[0].output, by=128))) == 2
    assert len(kernels(result_at(nodes, 1, nodes[0].output, by=256))) == 1, "side by side"


def test_an_addend_that_another_job_writes():
    g = GraphBuilder("chain")
    x = g.input("x", (1, K))
    first = g.mul_mat(g.weight("w0", (K, K), BF16), x)
    second = g.add(g.mul_mat(g.weight("w1", (K, K), BF16), x), first)
    nodes = bound(first, second, groups=[("mul_mat+add", (1, 2))], builder=g)
    assert kernels(nodes) == ["warp_specialized_rows"] * 2


def test_a_norm_in_place():
    nodes = normed((64, BF16))
    x = nodes[0].inputs[0]
    moved = at(nodes[1].output, x)
    nodes[1] = replace(nodes[1], output=moved)
    nodes[2] = replace(nodes[2], inputs=(nodes[2].inputs[0], moved))
    assert kernels(nodes) == ["rms_mul", "warp_specialized_rows"], (
        "other groups still read what it is made of"
    )


def test_a_result_on_what_the_norm_reads_or_writes():
    nodes = normed((K, BF16), (K, BF16))
    for to in (nodes[0].inputs[0], nodes[1].output, nodes[1].inputs[1]):
        found = lowered(result_at(nodes, 3, to))
        assert len(found) == 2
        assert found[0].kernel == "warp_specialized_rows"


# --- sums before a norm ------------------------------------------------------------------------

SUM = ("sum_rows+add", (0, 1))


def summed(count=4, k=K):
    """Return nodes: sums of some rows, what they are added to, a norm of that, and a product."""
    g = GraphBuilder("summed")
    terms = g.permute(g.input("terms", (1, count, k)), 0, 2, 1)
    y = g.add(g.reshape(g.sum_rows(terms), 1, k), g.input("base", (1, k)))
    x = g.mul(g.rms_norm(y), g.weight("norm", (k,)))
    out = g.mul_mat(g.weight("w", (64, k), BF16), x)
    groups = [SUM, ("rms_norm+mul", (2, 3))]
    return bound(y, x, out, groups=groups, builder=g, constant=True)


def test_sums_begin_a_product():
    (call,) = lowered(summed())
    assert call.kernel == "warp_specialized_rows"
    assert (defines(call)["NORM"], defines(call)["ADDENDS"]) == ("1", "4")
    assert defines(lowered(normed((64, BF16)))[0])["ADDENDS"] == "0"


def test_many_sums_are_a_kernel_of_their_own():
    assert kernels(summed(count=16)) == ["warp_specialized_rows"]
    assert kernels(summed(count=17)) == ["sum_add", "warp_specialized_rows"]


def test_sums_on_what_they_are_made_of():
    """Every group adds them up, and the first one writes them, perhaps before others have read."""
    for k in (0, 1):
        nodes = summed()
        source = nodes[0].inputs[0] if k == 0 else nodes[1].inputs[1]
        moved = at(nodes[1].output, source)
        nodes[1] = replace(nodes[1], output=moved)
        nodes[2] = replace(nodes[2], inputs=(moved,))
        assert kernels(nodes) == ["sum_add", "warp_specialized_rows"]


def test_a_norm_of_something_else():
    nodes = summed()
    nodes[2] = replace(nodes[2], inputs=(at(nodes[1].output, nodes[1].inputs[1]),))
    assert kernels(nodes) == ["sum_add", "warp_specialized_rows"]


def test_a_result_on_sums_or_what_they_are_made_of():
    nodes = summed()
    for to in (nodes[0].inputs[0], nodes[1].inputs[1], nodes[1].output):
        assert kernels(result_at(nodes, 4, to)) != ["warp_specialized_rows"]


@pytest.mark.parametrize(
    ("rows", "groups"), [(4096, 128), (2048, 128), (132, 132), (1, 1), (133, 67)]
)
def test_no_more_groups_than_make_the_longest_share_shorter(rows, groups):
    (call,) = lowered(products_of(rows))
    assert call.groups == (groups, 1, 1)


def products_of(rows):
    g = GraphBuilder("product")
    return bound(g.mul_mat(g.weight("w", (rows, K), BF16), g.input("x", (1, K))), builder=g)


# --- what is left to other ways ---------------------------------------------------------------


@pytest.mark.parametrize("profile", [GPU, OLDER], ids=["no warps", "no producer warp"])
def test_gpus_without_bulk_copies(profile):
    for nodes in (normed((64, BF16)), products(2), added(), gated()):
        assert not WARP_SPECIALIZED & set(kernels(nodes, profile))


def test_many_rows():
    for nodes in (products(2, tokens=2), products(1, tokens=512, dtype=Q8_0)):
        found = kernels(nodes)
        assert found
        assert not WARP_SPECIALIZED & set(found)


def test_groups_with_many_rows_go_node_by_node():
    g = GraphBuilder("many")
    y = g.mul_mat(g.weight("w", (64, K), BF16), g.input("x", (3, K)))
    nodes = bound(g.add(y, g.input("z", (3, 64))), groups=[("mul_mat+add", (0, 1))], builder=g)
    found = kernels(nodes)
    assert not WARP_SPECIALIZED & set(found)
    assert found[-1] == "binary"


def test_rows_that_are_not_aligned():
    nodes = products(1)
    w, x = nodes[0].inputs
    assert not WARP_SPECIALIZED & set(
        kernels([replace(nodes[0], inputs=(w, replace(x, offset=4)))])
    )
    assert not WARP_SPECIALIZED & set(
        kernels([replace(nodes[0], inputs=(replace(w, offset=2), x))])
    )


def test_batches_of_weights():
    g = GraphBuilder("batched")
    y = g.mul_mat(g.weight("w", (2, 64, K), BF16), g.input("x", (2, 1, K)))
    assert not WARP_SPECIALIZED & set(kernels(bound(y, builder=g)))


def test_nothing_to_compute():
    g = GraphBuilder("empty")
    y = g.mul_mat(g.weight("w", (0, K), BF16), g.input("x", (1, K)))
    assert not WARP_SPECIALIZED & set(kernels(bound(y, builder=g)))


# --- models -----------------------------------------------------------------------------------


@pytest.mark.parametrize("hp", [LLAMA_1B, GPT_OSS_20B], ids=lambda hp: hp.name)
def test_a_step_of_a_model(hp):
    found = [getattr(c, "kernel", "product") for c in calls_of(hp, BF16, constant=True)]
    assert not {"product", "matvec", "rms_mul"} & set(found), (
        "of one row all products are warp-specialised"
    )
    assert WARP_SPECIALIZED & set(found)
    many = [getattr(c, "kernel", "") for c in calls_of(hp, BF16, constant=True, n_tokens=256)]
    counts = [sum(kernel in WARP_SPECIALIZED for kernel in some) for some in (found, many)]
    assert counts[1] < counts[0] / 2 + 1, (
        "of many rows only those of the last token, behind attention"
    )
    older = calls_of(hp, BF16, constant=True, profile=OLDER)
    assert not any(getattr(c, "kernel", "") in WARP_SPECIALIZED for c in older)
