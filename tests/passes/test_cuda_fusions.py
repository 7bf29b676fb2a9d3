"""What a GPU that can feed weights is given of gpt-oss: every group, in every layer."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.gpu import moe_router
from ggsched.backend.base import BaseDevice, host_facts
from ggsched.backend.program import Group
from ggsched.ir.dtype import BF16, MXFP4
from ggsched.plan.fusions import run_order
from ggsched.sanitize import check_plan
from ggsched.topology.codec import topology_from_text
from ggsched_kernels import warp_profile
from ggsched_llm.graph import build_model_graph
from ggsched_llm.offload import Offload, find_homes
from ggsched_testing.eager import bound_nodes
from tests.support.shapes import SMALL_MOE, spec_of
from tests.support.verified_plans import verified_plan

pytest.importorskip("cuda.bindings", reason="cuda-bindings are in the extra 'nvrtc'")

FILE = Path(__file__).parent.parent / "data" / "topologies" / "h200.json"
H200 = warp_profile(132, 232448, True)
LAYERS = 3
MODEL = replace(SMALL_MOE, n_layer=LAYERS, n_vocab=256)


class Memory:
    """A buffer for lowering."""

    device = BaseDevice(host_facts("nowhere", ()), {})

    def __init__(self, nbytes):
        self.nbytes = nbytes


def gpu():
    """Return a machine whose GPU declares what its profile has."""
    from ggsched_cuda_kernels.kernel_selection import fusions_of

    known = topology_from_text(FILE.read_bytes())
    fusions = fusions_of(H200)
    return replace(known, devices=tuple(replace(f, fusions=fusions) for f in known.devices))


def planned(n_tokens):
    """Return graph and plan of a step."""
    machine, spec = gpu(), spec_of(MODEL, BF16, MXFP4)
    graph = build_model_graph(spec, n_tokens=n_tokens, n_kv=256, n_out=1, n_ctx=256)
    homes = find_homes(spec, machine, Offload()).constraints()
    return graph, verified_plan(graph, machine, homes)


def lowered(graph, plan):
    """Return the calls of a graph as one program, with every tensor in a place of its own."""
    from ggsched_cuda_kernels.kernel_selection import lower

    memory = {t.id: Memory(t.nbytes) for t in graph.tensors if not t.is_view}
    nodes = bound_nodes(graph, memory, constant_weights=True)
    groups = {n: Group(f.pattern, f.nodes) for f in plan.fusions for n in f.nodes}
    order = run_order(len(nodes), plan.fusions)
    return lower([replace(nodes[n], group=groups.get(n)) for n in order], H200)[0]


@pytest.mark.parametrize("n_tokens", [1, 2])
def test_every_layer_of_gpt_oss(n_tokens):
    _, plan = planned(n_tokens)
    assert check_plan(plan).is_clean
    assert Counter(f.pattern for f in plan.fusions) == {
        "rms_norm+mul": 2 * LAYERS + 1,
        # Of Q, K, V and the router; of two tokens in the last layer of the output too, whose rows
        # are chosen before they are added to anything.
        "mul_mat+add": 4 * LAYERS + (n_tokens > 1),
        "mul_mat+add+add": LAYERS - (n_tokens > 1),
        "rope+set_rows": LAYERS,
        "(mul_mat_id+add_id)*2+swiglu_oai": LAYERS,
        "mul_mat_id+add_id+mul": LAYERS,
        "sum_rows+add": LAYERS,
    }


def test_who_belongs_to_a_group_of_experts():
    graph, plan = planned(1)
    (f, *_) = (f for f in plan.fusions if f.pattern == "(mul_mat_id+add_id)*2+swiglu_oai")
    names = [graph.label(graph.nodes[n]) for n in f.nodes]
    for name, part in zip(names, ("gate", "gate_b", "up", "up_b", "swiglu"), strict=True):
        assert f"ffn_moe_{part}'" in name


def test_a_layer_of_gpt_oss_is_six_kernels():
    """Sums of experts begin the next layer, and the router is fused into the experts."""
    calls = lowered(*planned(1))
    layer = [call.kernel for call in calls if "blk.1." in call.label]
    assert layer == [
        "warp_specialized_rows", "heads_attention", "warp_specialized_rows",
        "warp_specialized_rows", "warp_specialized_experts", "warp_specialized_experts",
    ]  # fmt: skip


KERNELS = {
    "gated_oai": ["warp_specialized_experts"],
    "weighted": ["warp_specialized_experts"],
    "summed": ["warp_specialized_experts", "sum_add"],
    "biased": ["warp_specialized_experts"],
    "gated": ["warp_specialized_experts"],
    "layer": [
        "warp_specialized_rows",
        "warp_specialized_experts",
        "warp_specialized_experts",
        "sum_add",
    ],
    "output": ["warp_specialized_rows"],
}


@pytest.mark.parametrize("dtype", moe_router.DTYPES, ids=str)
@pytest.mark.parametrize("k", moe_router.EXTENTS)
@pytest.mark.parametrize("kind", KERNELS)
def test_what_is_compared_on_a_gpu_is_what_should_be(kind, k, dtype):
    assert KERNELS.keys() == moe_router.BUILD.keys()
    for n_tokens in (1, 2):
        graph = moe_router.BUILD[kind](dtype, k, n_tokens)
        calls = lowered(graph, verified_plan(graph, gpu()))
        found = [call.kernel for call in calls]
        if n_tokens == 1 or kind not in ("layer", "output"):
            assert found == KERNELS[kind]
        elif kind == "layer":
            assert found[-3:] == KERNELS[kind][-3:], "the router's product is not of one row"


@pytest.mark.parametrize("kind", ["chosen", "all"])
@pytest.mark.parametrize("size", moe_router.ROUTES, ids=str)
def test_routes_that_are_compared_on_a_gpu_are_one_kernel(kind, size):
    graph = moe_router._route(kind, *size)
    (call,) = lowered(graph, verified_plan(graph, gpu()))
    assert call.kernel == f"route_{kind}"
