"""The ``gpt-oss`` architecture: sinks, windowed layers, experts with biases and a clamped SwiGLU.

Even layers see a sliding window of tokens, odd ones everything. ``post_attention_norm`` is what
others call ``ffn_norm``: it normalises the input of the experts.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Final

from ggsched.ir.tensor import Tensor
from ggsched_llm.architecture import Architecture
from ggsched_llm.hparams import HParams
from ggsched_llm.ignored_keys import NO_DENSE, Ignored, one_of
from ggsched_llm.layers import ModelBuilder
from ggsched_llm.metadata_keys import MAX_CONTEXT, Keys
from ggsched_llm.spec import WeightNeed, attention_needs, expert_needs


def needs(hp: HParams) -> Iterator[WeightNeed]:
    """Yield the weights of the blocks."""
    for layer in range(hp.n_layer):
        blk = f"blk.{layer}"
        yield from attention_needs(hp, layer, bias=True)
        yield WeightNeed(f"{blk}.attn_sinks.weight", (hp.n_head,))
        yield WeightNeed(f"{blk}.post_attention_norm.weight", (hp.n_embd,))
        yield from expert_needs(hp, layer, bias=True)


def block(kit: ModelBuilder, x: Tensor, layer: int) -> Tensor:
    """Apply block ``layer`` to the hidden states x (T, n_embd)."""
    return kit.block(x, layer, "post_attention_norm", partial(kit.experts, router="chosen"))


def refine(keys: Keys, hp: HParams) -> HParams:
    """Read the window, and of which layers it is."""
    return replace(
        hp,
        window=keys.count("attention.sliding_window", MAX_CONTEXT),
        windowed=keys.windowed(hp.n_layer, period=2),
    )


ARCHITECTURE: Final = Architecture(
    "gpt-oss",
    needs,
    block,
    experts="all",
    windows="own",
    softmax_of_chosen=True,
    ignored={
        "feed_forward_length": NO_DENSE,
        "expert_gating_func": Ignored("it says what the architecture does", one_of(0, 3)),
        "expert_weights_norm": Ignored("a softmax over the chosen experts adds up to one"),
    },
    refine=refine,
)
