"""Which attention one kernel takes, and how it is cut; no GPU is needed."""

from dataclasses import replace
from itertools import product
from math import prod

import pytest

from ggsched.backend.base import BaseDevice, host_facts
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import F16, dtype_by_name
from ggsched_kernels import warp_profile
from ggsched_testing.eager import bound_nodes

H200 = warp_profile(132, 232448, True)
OLDER = warp_profile(108, 166912, False)


class Memory:
    """A buffer for lowering."""

    device = BaseDevice(host_facts("nowhere", ()), {})

    def __init__(self, nbytes):
        self.nbytes = nbytes


def attention(
    *, tokens=1, groups=8, share=4, n=256, width=128, kind="f16", mask=(1, 256), first=0,
    sinks=False, **more,
):  # fmt: skip
    """Return the node of attention, bound."""
    g, heads, dtype = GraphBuilder("attention"), groups * share, dtype_by_name(kind)
    q = g.input("q", (tokens, heads, width))
    kept = []
    for name in ("keys", "values"):
        cache = g.weight(name, (n + first, groups * width), dtype)
        kept.append(g.reshape(g.rows(cache, first, n + first), n, groups, width))
    graph = g.build(
        g.attention(
            q, *kept, scale=0.5, mask=g.input("mask", mask) if mask else None,
            sinks=g.input("sinks", (heads,)) if sinks else None, **more,
        )
    )  # fmt: skip
    memory = {t.id: Memory(t.nbytes) for t in graph.tensors if not t.is_view}
    return bound_nodes(graph, memory)


def kernels(nodes, profile=H200):
    from ggsched_cuda_kernels.kernel_selection import lower

    calls, _ = lower(nodes, profile)
    return [getattr(call, "kernel", "product") for call in calls]


def call_of(nodes, profile=H200):
    from ggsched_cuda_kernels.kernel_selection import lower

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
        {"soft_cap": 30.0},
        {"groups": 1, "width": 8, "kind": "f16", "first": 1, "n": 3, "mask": None, "share": 1,
         "tokens": 9},
    ],
)  # fmt: skip
def test_other_attention(what):
    assert "attention" not in kernels(attention(**what))


@pytest.mark.parametrize(
    ("what", "kernel"),
    [
        ({"tokens": 9, "mask": None}, "flash_attention"),
        ({"tokens": 512, "n": 512, "mask": None, "kind": "bf16"}, "flash_attention"),
        ({"mask": (32, 1, 256), "width": 96}, "flash_attention"),
        ({"tokens": 9, "mask": None, "kind": "f32"}, "attention_blocks"),
        ({"tokens": 9, "mask": None, "width": 72}, "attention_blocks"),
        ({"width": 264, "mask": None}, "attention_blocks"),
        ({"n": 8192, "mask": None}, "flash_attention"),
        ({"n": 8192, "mask": None, "kind": "f32"}, "attention"),
    ],
)
def test_many_tokens(what, kernel):
    assert kernels(attention(**what))[0] == kernel


@pytest.mark.parametrize(
    ("tokens", "n", "splits"), [(9, 512, 4), (9, 16384, 11), (1, 16384, 33), (512, 4096, 1)]
)
def test_shares_of_the_rows(tokens, n, splits):
    """Where queries are few, more groups share the rows, and a second kernel joins them."""
    from ggsched_cuda_kernels.kernel_selection import lower

    calls, memory = lower(attention(tokens=tokens, n=n, mask=None), H200)
    assert [c.kernel for c in calls] == ["flash_attention", "flash_join"][: 1 + (splits > 1)]
    assert calls[0].groups[2] == splits
    assert sum(memory.values()) == (4 * splits * tokens * 32 * 130 if splits > 1 else 0)


@pytest.mark.parametrize("activations", ["auto", "f32"])
@pytest.mark.parametrize("width", [16, 64, 80, 96, 128, 192, 256])
def test_local_memory_of_tensor_cores(width, activations):
    from ggsched_cuda_kernels.kernel_selection import lower

    profile = replace(H200, activations=activations)
    (call, *_), _ = lower(attention(tokens=600, width=width, mask=None), profile)
    cut = {name: int(value) for name, value in call.defines if not name.startswith("W_")}
    assert call.kernel == "flash_attention"
    assert cut["PLANES"] == (1 if activations == "auto" else 2)
    assert cut["RESIDENT"] * (call.shared_nbytes + 1024) <= 228 << 10
    assert call.groups[0] * call.lanes // 2 * cut["MT"] >= 600 * 4


def test_older_gpus_have_no_clusters():
    assert "attention" not in kernels(attention(), OLDER)


def test_rows_that_do_not_begin_at_pieces():
    (node,) = attention()
    k, *others = node.inputs
    for wrong in (replace(k, offset=2), replace(k, strides=(2056, *k.strides[1:]))):
        moved = [replace(node, inputs=(wrong, *others))]
        assert kernels(moved)[0] == "attention_blocks"


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
    """They are read by more groups; so they are where groups of more heads are few."""
    call, cut = call_of(attention(share=share, width=width))
    assert cut["ROWS"] == 2
    assert call.groups[0] * call.groups[1] == 128, "nearly all multiprocessors"
    warps = call.lanes // 32
    assert cut["SPLITS"] * warps * cut["STEPS"] * (32 // cut["SPAN"]) == 256, "in one turn"
    call, cut = call_of(attention(share=share, width=width, n=4096, mask=None))
    assert cut["ROWS"] == share // 2
    assert call.groups == (8, 16, 1)


@pytest.mark.parametrize("n", [256, 1024, 2048, 4096, 8192, 16384, 65536])
@pytest.mark.parametrize("share", [4, 8])
def test_a_token_at_any_depth_keeps_a_gpu_busy(n, share):
    """Groups are one wave, and as many as nine tenths of the multiprocessors or more."""
    from ggsched_cuda_kernels.kernel_selection import lower

    (call, *joins), _ = lower(attention(share=share, n=n, mask=None), H200)
    assert [c.kernel for c in joins] == ["flash_join"] * (n >= 8192)
    groups, defines = prod(call.groups), dict(call.defines)
    room = int(defines.get("RESIDENT", 1)) * H200.num_sms
    assert 0.9 * H200.num_sms <= groups <= room


@pytest.mark.parametrize("width", [8, 64, 80, 128, 256])
def test_every_cut_is_legal(width):
    for case in product([1, 2, 5, 8], [1, 3, 8, 12, 16], [1, 7, 32, 100, 256, 1000, 4096]):
        require_legal(width, *case)


def require_legal(width, tokens, share, n):
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
