"""The ``gemma3`` architecture: of six layers five are windowed and rotate otherwise."""

from dataclasses import replace
from functools import partial
from math import sqrt
from typing import Final

from ggsched_llm.arch.gemma2 import block, gemma_needs
from ggsched_llm.architecture import Architecture
from ggsched_llm.hparams import HParams
from ggsched_llm.metadata_keys import MAX_CONTEXT, Keys

_LAYERS_27B: Final = 62
_BASE: Final = 10000.0


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


ARCHITECTURE: Final = Architecture(
    "gemma3", partial(gemma_needs, has_head_norms=True), block, windows="own", refine=refine
)
