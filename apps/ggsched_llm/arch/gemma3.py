"""The ``gemma3`` architecture: of six layers five are windowed and rotate otherwise."""

from collections.abc import Iterator
from dataclasses import replace
from math import sqrt
from typing import Final

from ggsched_llm.arch.gemma2 import NORMS_AFTER, block
from ggsched_llm.architecture import Architecture
from ggsched_llm.hparams import HParams
from ggsched_llm.metadata_keys import MAX_CONTEXT, Keys
from ggsched_llm.spec import WeightNeed, attention_needs, feed_forward_needs, head_norm_needs

_LAYERS_27B: Final = 62
_BASE: Final = 10000.0


def needs(hp: HParams) -> Iterator[WeightNeed]:
    """Yield the weights of the blocks."""
    for layer in range(hp.n_layer):
        yield from attention_needs(hp, layer, bias=False)
        yield from head_norm_needs(hp, layer)
        for name in ("ffn_norm", *NORMS_AFTER):
            yield WeightNeed(f"blk.{layer}.{name}.weight", (hp.n_embd,))
        yield from feed_forward_needs(hp, layer, bias=False)


def refine(keys: Keys, hp: HParams) -> HParams:
    """Read caps and windows; windowed layers keep the context that they were trained for."""
    scale = sqrt(hp.n_head / hp.n_embd) if hp.n_layer == _LAYERS_27B else hp.attn_scale
    window = keys.count("attention.sliding_window", MAX_CONTEXT, default=0, least=0)
    base = keys.real("rope.freq_base_swa", 1.001, 1e12, default=_BASE)
    return replace(
        hp,
        embedding_scale=sqrt(hp.n_embd),
        activation="gelu",
        attn_scale=scale,
        logit_cap=keys.real("final_logit_softcapping", 0.0, 1e6, default=0.0),
        window=window,
        windowed=keys.windowed(hp.n_layer, period=6),
        window_rope=replace(hp.rope, base=base, freq_scale=1.0) if window else None,
    )


ARCHITECTURE: Final = Architecture("gemma3", needs, block, windows="own", refine=refine)
