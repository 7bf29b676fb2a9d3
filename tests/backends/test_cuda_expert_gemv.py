"""Which products with the weights of chosen experts become warp-specialised calls."""

from dataclasses import replace

import pytest

from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import I32, MXFP4
from ggsched_kernels import GPU
from tests.backends.test_cuda_warp_specialized import (
    OLDER,
    K,
    Memory,
    bound,
    defines,
    kernels,
    lowered,
)


def experts(form, tokens=1, used=4, extents=(64, 64), dtype=MXFP4):
    g = GraphBuilder(form)
    x, ids = g.input("x", (tokens, 1, K)), g.input("ids", (tokens, used), I32)

    def side(i, has_bias):
        y = g.mul_mat_id(g.weight(f"w{i}", (8, extents[i], K), dtype), x, ids)
        return g.add_id(y, g.weight(f"b{i}", (8, extents[i])), ids) if has_bias else y

    match form:
        case "product":
            return bound(side(0, False), builder=g)
        case "scaled":
            y = g.mul(side(0, True), g.input("scale", (tokens, used, 1)))
            return bound(y, groups=[("mul_mat_id+add_id+mul", (0, 1, 2))], builder=g)
        case "swiglu":
            y = g.swiglu(side(0, False), side(1, False))
            return bound(y, groups=[("mul_mat_id*2+swiglu", (0, 1, 2))], builder=g)
    y = g.swiglu_oai(side(0, True), side(1, True))
    pattern = "(mul_mat_id+add_id)*2+swiglu_oai"
    return bound(y, groups=[(pattern, (0, 1, 2, 3, 4))], builder=g)


@pytest.mark.parametrize(
    ("form", "gate"), [("product", "0"), ("scaled", "0"), ("swiglu", "1"), ("swiglu_oai", "2")]
)
def test_experts(form, gate):
    for tokens, used in ((1, 4), (2, 4), (1, 1), (33, 4)):
        (call,) = lowered(experts(form, tokens, used))
        assert call.kernel == "warp_specialized_experts"
        assert (defines(call)["GATED"], defines(call)["CONSTANT_W"]) == (gate, "0")
        pairs = tokens * used
        assert call.groups == (pairs * min(132 // pairs, 64), 1, 1)
    assert "warp_specialized_experts" not in kernels(experts(form, 34, 4)), (
        "more pairs than multiprocessors"
    )


def test_experts_that_are_chosen_by_other_ids():
    nodes = experts("swiglu_oai")
    other = replace(nodes[0].inputs[2], buffer=Memory(16))
    for k in (1, 2, 3):
        changed = replace(nodes[k], inputs=(*nodes[k].inputs[:2], other))
        assert kernels([*nodes[:k], changed, *nodes[k + 1 :]])[-1] != "warp_specialized_experts"


def test_factors_of_another_shape():
    nodes = experts("scaled")
    scale = nodes[2].inputs[1]
    for shape, strides in (((1, 1, 1), (4, 4, 4)), ((1, 4, 64), (1024, 256, 4))):
        wide = replace(scale, shape=shape, strides=strides)
        changed = replace(nodes[2], inputs=(nodes[2].inputs[0], wide))
        assert kernels([*nodes[:2], changed])[-1] != "warp_specialized_experts"


@pytest.mark.parametrize("profile", [GPU, OLDER], ids=["no warps", "no producer warp"])
def test_gpus_without_bulk_copies(profile):
    assert "warp_specialized_experts" not in kernels(experts("swiglu"), profile)
