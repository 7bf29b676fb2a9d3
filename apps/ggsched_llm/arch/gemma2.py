"""The ``gemma2`` architecture: norms before and after each part, soft caps, windows in turns."""

from dataclasses import replace
from functools import partial
from math import sqrt
from typing import Final

from ggsched.ir.tensor import Tensor
from ggsched_llm.architecture import Architecture
from ggsched_llm.hparams import HParams
from ggsched_llm.layers import ModelBuilder
from ggsched_llm.metadata_keys import MAX_CONTEXT, Keys
from ggsched_llm.spec import block_needs

_WINDOW: Final = 4096
_LAYERS_27B: Final = 46
_NORMS_AFTER: Final = ("post_attention_norm", "post_ffw_norm")
gemma_needs: Final = partial(block_needs, bias=False, norms=("ffn_norm", *_NORMS_AFTER))


def block(kit: ModelBuilder, x: Tensor, layer: int) -> Tensor:
    """Apply block ``layer`` to the hidden states x (T, n_embd)."""
    return kit.block(x, layer, "ffn_norm", kit.feed_forward, norms_after=_NORMS_AFTER)


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


ARCHITECTURE: Final = Architecture("gemma2", gemma_needs, block, windows="own", refine=refine)
