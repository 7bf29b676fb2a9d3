"""The ``qwen3moe`` architecture: Qwen3 with experts, and norms on each head of Q and K."""

from collections.abc import Iterator
from functools import partial

from ggsched.ir.tensor import Tensor
from ggsched.models.hparams import HParams
from ggsched.models.layers import ModelBuilder
from ggsched.models.spec import WeightNeed, attention_needs, expert_needs


def needs(hp: HParams) -> Iterator[WeightNeed]:
    """Yield the weights of the blocks."""
    for layer in range(hp.n_layer):
        blk = f"blk.{layer}"
        yield from attention_needs(hp, layer, bias=None)
        yield WeightNeed(f"{blk}.attn_q_norm.weight", (hp.head_dim,))
        yield WeightNeed(f"{blk}.attn_k_norm.weight", (hp.head_dim,))
        yield WeightNeed(f"{blk}.ffn_norm.weight", (hp.n_embd,))
        yield from expert_needs(hp, layer, bias=False)


def block(kit: ModelBuilder, x: Tensor, layer: int) -> Tensor:
    """Apply block ``layer`` to the hidden states x (T, n_embd)."""
    return kit.block(x, layer, "ffn_norm", partial(kit.experts, router="all"))
