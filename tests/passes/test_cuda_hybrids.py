"""What a token of qwen3next costs a GPU: kernels of each block, at the width of the 80B-A3B."""

from dataclasses import replace

import pytest

pytest.importorskip("cuda.bindings", reason="cuda-bindings are in the extra 'nvrtc'")

from ggsched.ir.dtype import F16
from ggsched.passes import make_plan
from ggsched.sanitize import check_plan
from ggsched_llm.graph import build_model_graph
from ggsched_llm.offload import Offload, find_homes
from tests.passes.test_cuda_fusions import gpu, lowered
from tests.support.expert_files import random_model

ROWS, EXPERTS = "warp_specialized_rows", "warp_specialized_experts"
# Products of the normed row, of which the first adds up the experts of the block before.
NETWORK = [ROWS, ROWS, ROWS, "elements", "route_all", EXPERTS, EXPERTS]
DELTA_NET = [
    ROWS, "conv_step", "norm_rows", "elements", "linear_attention", "rms_mul", ROWS,
]  # fmt: skip
ATTENTION = [ROWS, "rms_mul", "rms_mul", "heads_attention", "elements", ROWS]


def machine():
    from ggsched_cuda.device import facts_of
    from ggsched_cuda.driver import DeviceInfo

    found = DeviceInfo(0, "H200", 90, 140 << 30, 13000, 132, 232448)
    return replace(gpu(), devices=(facts_of("cuda:0", 1, found),))


def planned(model, kind, n_layer):
    spec = replace(random_model(model, kind, n_layer)[0], cache_dtype=F16)
    graph = build_model_graph(spec, n_tokens=1, n_kv=512, n_out=1, n_ctx=1024)
    homes = find_homes(spec, machine(), Offload()).constraints()
    return graph, make_plan(graph, machine(), homes)


@pytest.mark.parametrize("kind", ["q8_0", "q4_k_m"])
def test_kernels_of_qwen3next(kind):
    graph, plan = planned("qwen3next-80b", kind, 4)
    assert check_plan(plan).is_clean
    found = [call.kernel for call in lowered(graph, plan)]
    if kind == "q8_0":
        blocks = 3 * [*DELTA_NET, *NETWORK] + [*ATTENTION, *NETWORK]
        assert found == ["get_rows", *blocks, ROWS]
    else:
        # llama.cpp takes q5_k for what goes into the delta net, and what lies beside it is q4_k.
        assert len(found) <= 14 * 4 + 2 + 3


def test_kernels_of_qwen3_30b():
    graph, plan = planned("qwen3-30b", "q8_0", 2)
    found = [call.kernel for call in lowered(graph, plan)]
    assert len(found) <= 9 * 2 + 2
