"""Which attention one kernel takes, and how it is cut; no GPU is needed."""

from dataclasses import replace

import pytest

from ggsched.backend.base import BaseDevice, host_facts
from ggsched.backend.program import Group
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import F16, dtype_by_name
from ggsched.testing.eager import bound_nodes
from ggsched_kernels import warp_profile

PATTERN = "mul_mat+soft_max+mul_mat"
H200 = warp_profile(132, 232448, True)
OLDER = warp_profile(108, 166912, False)


class Memory:
    """A buffer for lowering."""

    device = BaseDevice(host_facts("nowhere", ()), {})

    def __init__(self, nbytes):
        self.nbytes = nbytes


def attention(
    *, tokens=1, groups=8, share=4, n=256, width=128, kind="f16", mask=(1, 256), first=0,
    sinks=False,
):  # fmt: skip
    """Return the nodes of attention, bound."""
    g, heads, dtype = GraphBuilder("attention"), groups * share, dtype_by_name(kind)
    q = g.input("q", (tokens, heads, width))
    kept = []
    for name in ("keys", "values"):
        cache = g.weight(name, (n + first, groups * width), dtype)
        kept.append(g.reshape(g.rows(cache, first, n + first), n, groups, width))
    kq = g.mul_mat(g.permute(kept[0], 1, 0, 2), g.permute(q, 1, 0, 2))
    weights = g.soft_max(
        kq, g.input("mask", mask) if mask else None,
        g.input("sinks", (heads,)) if sinks else None, scale=0.5,
    )  # fmt: skip
    graph = g.build(g.mul_mat(g.permute(kept[1], 1, 2, 0), weights))
    memory = {t.id: Memory(t.nbytes) for t in graph.tensors if not t.is_view}
    nodes = bound_nodes(graph, memory)
    group = Group(PATTERN, tuple(node.node for node in nodes))
    return [replace(node, group=group) for node in nodes]


def kernels(nodes, profile=H200):
    from ggsched_cuda.kernel_selection import lower

    calls, _ = lower(nodes, profile)
    return [getattr(call, "kernel", "product") for call in calls]


def call_of(nodes, profile=H200):
    from ggsched_cuda.kernel_selection import lower

    (call,), _ = lower(nodes, profile)
    assert call.kernel == "attention"
    return call, {name: int(value) for name, value in call.defines}


@pytest.mark.parametrize(
    "what",
    [
        {},
        {"tokens": 8, "mask": (8, 256)},
        {"kind": "f32", "width": 64},
        {"kind": "bf16", "share": 8},
        {"n": 1, "mask": None},
        {"n": 4096, "mask": (4096,), "width": 256, "sinks": True},
        {"share": 16, "width": 80},
        {"share": 3, "first": 1},
    ],
)
def test_one_kernel(what):
    assert kernels(attention(**what)) == ["attention"]


@pytest.mark.parametrize(
    "what",
    [
        {"tokens": 9, "mask": None},
        {"width": 36},
        {"width": 264},
        {"mask": (32, 1, 256)},  # of each head its own
        {"groups": 1, "width": 8, "kind": "f16", "first": 1, "n": 3, "mask": None, "share": 1,
         "tokens": 9},
    ],
)  # fmt: skip
def test_what_goes_node_by_node(what):
    assert "attention" not in kernels(attention(**what))
    assert len(kernels(attention(**what))) >= 3


def test_older_gpus_have_no_clusters():
    assert "attention" not in kernels(attention(), OLDER)


def test_rows_that_do_not_begin_at_pieces():
    nodes = attention()
    product = nodes[0]
    k, q = product.inputs
    for wrong in (replace(k, offset=2), replace(k, strides=(k.strides[0], 2056, 2))):
        moved = [replace(product, inputs=(wrong, q)), *nodes[1:]]
        assert "attention" not in kernels(moved)


def test_another_shape_in_between():
    nodes = attention()
    soft = nodes[1]
    x, *rest = soft.inputs
    flat = replace(
        x, shape=(1, *x.shape[:1], x.shape[-1]), strides=(x.strides[0] * 32, *x.strides[1:])
    )
    moved = [nodes[0], replace(soft, inputs=(flat, *rest)), nodes[2]]
    assert "attention" not in kernels(moved)


def test_cut_of_a_decode_step():
    """Two query heads have a cluster of eight groups, and each warp takes its positions at once."""
    call, cut = call_of(attention())
    assert call.groups == (8, 16, 1)
    assert call.cluster == 8
    assert (cut["WIDTH"], cut["SPAN"], cut["ROWS"], cut["SPLITS"]) == (128, 16, 2, 8)
    positions = cut["SPLITS"] * cut["LANES"] // 32 * cut["STEPS"] * (32 // cut["SPAN"])
    assert positions == 256
    assert call.lanes == cut["LANES"]


@pytest.mark.parametrize(("share", "width"), [(4, 64), (4, 128), (8, 64), (8, 128)])
def test_few_heads_where_few_positions_are(share, width):
    """They are read by more groups; where they are many, the heads of many share their key head."""
    call, cut = call_of(attention(share=share, width=width))
    assert cut["ROWS"] == 2
    assert call.groups[0] * call.groups[1] == 128, "nearly all multiprocessors"
    warps = call.lanes // 32
    assert cut["SPLITS"] * warps * cut["STEPS"] * (32 // cut["SPAN"]) == 256, "in one turn"
    call, cut = call_of(attention(share=share, width=width, n=4096, mask=None))
    assert cut["ROWS"] == 4
    assert call.groups == (8, 2 * share, 1)


@pytest.mark.parametrize("tokens", [1, 2, 5, 8])
@pytest.mark.parametrize("share", [1, 3, 8, 12, 16])
@pytest.mark.parametrize("n", [1, 7, 32, 100, 256, 1000, 4096])
@pytest.mark.parametrize("width", [8, 64, 80, 128, 256])
def test_every_cut_is_legal(tokens, share, n, width):
    call, cut = call_of(attention(tokens=tokens, share=share, n=n, width=width, mask=None))
    across, heads, last = call.groups
    assert across == cut["SPLITS"] == call.cluster <= 8
    assert last == tokens
    assert heads * cut["ROWS"] >= 8 * share
    assert heads % 8 == 0
    assert cut["ROWS"] <= cut["SPAN"] <= 32
    assert cut["SPAN"] * 8 >= width
    assert 32 <= cut["LANES"] <= 256
    assert call.shared_nbytes <= H200.local_nbytes
    items = cut["ROWS"] * width // 4
    warps, slots = cut["LANES"] // 32, -(-items // across)
    needed = 16 * (warps * items + across * slots) + 8 * cut["ROWS"] * (warps + across)
    assert call.shared_nbytes == needed
    for number in (across, cut["ROWS"], cut["SPAN"], warps):
        assert number & (number - 1) == 0


def test_many_groups_are_not_split():
    call, cut = call_of(attention(tokens=8, groups=16, mask=None))
    assert call.groups == (1, 32, 8)
    assert call.cluster == cut["SPLITS"] == 1


def test_a_bound_call_says_its_cluster():
    pytest.importorskip("cuda.bindings", reason="cuda-bindings are in the extra 'nvrtc'")
    from ggsched_cuda import driver

    kinds = driver.cu.CUlaunchAttributeID
    for early in (False, True):
        config = driver.launch_config((8, 4, 2), 128, 1 << 16, 0, early=early, cluster=8)
        found = {a.id: a.value for a in config.attrs}
        extent = found.pop(kinds.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION).clusterDim
        assert (extent.x, extent.y, extent.z) == (8, 1, 1)
        assert len(found) == early
        assert config.numAttrs == 1 + early
        assert (config.gridDimX, config.gridDimY, config.gridDimZ) == (8, 4, 2)
    plain = driver.launch_config((8, 4, 2), 128, 0, 0, early=True)
    assert [a.id for a in plain.attrs] == [
        kinds.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    ]


def test_a_cache_in_f16_is_what_models_have():
    assert attention()[0].inputs[0].dtype is F16
