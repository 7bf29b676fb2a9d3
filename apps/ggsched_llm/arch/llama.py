"""The ``llama`` architecture: Llama 1 to 3, Mistral, TinyLlama; with experts, Mixtral."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Final

from ggsched.ir.tensor import Tensor
from ggsched_llm.architecture import Architecture, whole_width
from ggsched_llm.hparams import HParams
from ggsched_llm.ignored_keys import NO_DENSE
from ggsched_llm.layers import ModelBuilder
from ggsched_llm.metadata_keys import Keys
from ggsched_llm.spec import WeightNeed, attention_needs, expert_needs, feed_forward_needs


def needs(hp: HParams) -> Iterator[WeightNeed]:
    """Yield the weights of the blocks."""
    yield WeightNeed("rope_freqs.weight", (hp.rope.n_dims // 2,), optional=True)
    for layer in range(hp.n_layer):
        yield from attention_needs(hp, layer, bias=None)
        yield WeightNeed(f"blk.{layer}.ffn_norm.weight", (hp.n_embd,))
        if hp.n_expert:
            yield from expert_needs(hp, layer, bias=False)
        else:
            yield from feed_forward_needs(hp, layer, bias=None)


def block(kit: ModelBuilder, x: Tensor, layer: int) -> Tensor:
    """Apply block ``layer`` to the hidden states x (T, n_embd)."""
    ffn = partial(kit.experts, router="all") if kit.hp.n_expert else kit.feed_forward
    return kit.block(x, layer, "ffn_norm", ffn)


def refine(keys: Keys, hp: HParams) -> HParams:
    """Read the factor on attention scores; llamas rotate whole heads."""
    if hp.rope.n_dims != hp.head_dim:
        why = f"a llama rotates whole heads, and they are {hp.head_dim} wide"
        raise keys.fail("rope.dimension_count", f"is {hp.rope.n_dims}", why)
    if keys.get("attention.scale") is None:
        return hp
    return replace(hp, attn_scale=keys.real("attention.scale", 0.0, 1e6) or hp.attn_scale)


ARCHITECTURE: Final = Architecture(
    "llama",
    needs,
    block,
    pairing="adjacent",
    experts="some",
    expert_width=whole_width,
    windows="all",
    ignored={"feed_forward_length": NO_DENSE},
    refine=refine,
)
