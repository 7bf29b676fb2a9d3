"""The ``gemma2`` architecture: norms before and after each part, soft caps, windows in turns."""

from collections.abc import Iterator
from dataclasses import replace
from math import sqrt
from typing import Final

from ggsched.ir.tensor import Tensor
from ggsched_llm.architecture import Architecture
from ggsched_llm.hparams import HParams
from ggsched_llm.layers import ModelBuilder
from ggsched_llm.metadata_keys import MAX_CONTEXT, Keys
from ggsched_llm.spec import WeightNeed, attention_needs, feed_forward_needs

_WINDOW: Final = 4096
_LAYERS_27B: Final = 46
NORMS_AFTER: Final = ("post_attention_norm", "post_ffw_norm")


def needs(hp: HParams) -> Iterator[WeightNeed]:
    """Yield the weights of the blocks."""
    for layer in range(hp.n_layer):
        yield from attention_needs(hp, layer, bias=False)
        for name in ("ffn_norm", *NORMS_AFTER):
            yield WeightNeed(f"blk.{layer}.{name}.weight", (hp.n_embd,))
        yield from feed_forward_needs(hp, layer, bias=False)


def block(kit: ModelBuilder, x: Tensor, layer: int) -> Tensor:
    """Apply block ``layer`` to the hidden states x (T, n_embd)."""
    return kit.block(x, layer, "ffn_norm", kit.feed_forward, norms_after=NORMS_AFTER)


def refine(keys: Keys, hp: HParams) -> HParams:
    """Read caps and the window of every second layer."""
    scale = sqrt(hp.n_head / hp.n_embd) if hp.n_layer == _LAYERS_27B else hp.attn_scale
    return replace(
        hp,
        embedding_scale=sqrt(hp.n_embd),
        activation="gelu",
        attn_scale=scale,
        soft_cap=keys.real("attn_logit_softcapping", 1e-3, 1e6, default=50.0),
        logit_cap=keys.real("final_logit_softcapping", 1e-3, 1e6, default=30.0),
        window=keys.count("attention.sliding_window", MAX_CONTEXT, default=_WINDOW),
        windowed=keys.windowed(hp.n_layer, period=2),
    )


ARCHITECTURE: Final = Architecture("gemma2", needs, block, windows="own", refine=refine)
