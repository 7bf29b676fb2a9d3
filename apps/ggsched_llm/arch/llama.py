"""The ``llama`` architecture: Llama 1 to 3, Mistral, TinyLlama; with experts, Mixtral."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from ggsched_llm.architecture import Architecture, whole_width
from ggsched_llm.hparams import HParams
from ggsched_llm.ignored_keys import NO_DENSE
from ggsched_llm.metadata_keys import Keys
from ggsched_llm.spec import WeightNeed, block_needs


def needs(hp: HParams) -> Iterator[WeightNeed]:
    """Yield the weights of the blocks."""
    yield WeightNeed("rope_freqs.weight", (hp.rope.n_dims // 2,), optional=True)
    yield from block_needs(hp, ffn_bias=None)


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
    pairing="adjacent",
    experts="some",
    expert_width=whole_width,
    windows="all",
    ignored={"feed_forward_length": NO_DENSE},
    refine=refine,
)
