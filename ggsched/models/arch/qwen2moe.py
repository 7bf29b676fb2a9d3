"""The ``qwen2moe`` architecture: experts, and one that all tokens share, behind a gate."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from ggsched.ir.tensor import Tensor
from ggsched.models.architecture import Architecture, split_width
from ggsched.models.hparams import HParams
from ggsched.models.layers import ModelBuilder
from ggsched.models.metadata_keys import Keys
from ggsched.models.spec import (
    WeightNeed,
    attention_needs,
    expert_needs,
    feed_forward_needs,
)


def needs(hp: HParams) -> Iterator[WeightNeed]:
    """Yield the weights of the blocks."""
    for layer in range(hp.n_layer):
        yield from attention_needs(hp, layer, bias=None)
        yield WeightNeed(f"blk.{layer}.ffn_norm.weight", (hp.n_embd,))
        yield from expert_needs(hp, layer, bias=False)
        yield WeightNeed(f"blk.{layer}.ffn_gate_inp_shexp.weight", (hp.n_embd,))
        yield from feed_forward_needs(hp, layer, bias=False, suffix="_shexp", width=hp.n_ff_shared)


def block(kit: ModelBuilder, x: Tensor, layer: int) -> Tensor:
    """Apply block ``layer`` to the hidden states x (T, n_embd)."""
    return kit.block(x, layer, "ffn_norm", lambda x, layer: _ffn(kit, x, layer))


def _ffn(kit: ModelBuilder, x: Tensor, layer: int) -> Tensor:
    """Add the results of the chosen experts and of the shared one."""
    g = kit.g
    out = kit.experts(x, layer, router="all")
    shared = kit.feed_forward(x, layer, suffix="_shexp")
    gate = g.reshape(kit.weight(f"blk.{layer}.ffn_gate_inp_shexp.weight"), 1, -1)
    share = g.sigmoid(g.mul_mat(gate, x, name="shexp_gate_inp"), name="shexp_gate")
    return g.add(out, g.mul(shared, share, name="ffn_shexp_gated"), name="ffn_out")


def refine(keys: Keys, hp: HParams) -> HParams:
    """Read the width of the shared expert; weights of experts are not renormalised."""
    width = keys.get("feed_forward_length")
    default = width if type(width) is int and width > 0 else None
    shared = keys.count("expert_shared_feed_forward_length", 1 << 24, default)
    return replace(hp, n_ff_shared=shared, renormalises_experts=False)


ARCHITECTURE: Final = Architecture(
    "qwen2moe", needs, block, experts="all", expert_width=split_width, refine=refine
)
