"""The ``llama`` architecture: Llama 1 to 3, Mistral, TinyLlama; with experts, Mixtral."""

from collections.abc import Iterator
from functools import partial

from ggsched.ir.tensor import Tensor
from ggsched.models.hparams import HParams
from ggsched.models.layers import ModelBuilder
from ggsched.models.spec import WeightNeed, attention_needs, expert_needs, linear_needs


def needs(hp: HParams) -> Iterator[WeightNeed]:
    """Yield the weights of the blocks."""
    yield WeightNeed("rope_freqs.weight", (hp.rope.n_dims // 2,), optional=True)
    for layer in range(hp.n_layer):
        blk = f"blk.{layer}"
        yield from attention_needs(hp, layer, bias=None)
        yield WeightNeed(f"{blk}.ffn_norm.weight", (hp.n_embd,))
        if hp.n_expert:
            yield from expert_needs(hp, layer, bias=False)
            continue
        yield from linear_needs(f"{blk}.ffn_gate", hp.n_ff, hp.n_embd)
        yield from linear_needs(f"{blk}.ffn_up", hp.n_ff, hp.n_embd)
        yield from linear_needs(f"{blk}.ffn_down", hp.n_embd, hp.n_ff)


def block(kit: ModelBuilder, x: Tensor, layer: int) -> Tensor:
    """Apply block ``layer`` to the hidden states x (T, n_embd)."""
    ffn = partial(kit.experts, router="all") if kit.hp.n_expert else kit.feed_forward
    return kit.block(x, layer, "ffn_norm", ffn)
