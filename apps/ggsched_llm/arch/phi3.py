"""The ``phi3`` architecture: Phi 3, 3.5 and 4; Q, K and V are one weight, gate and up another.

Each of the two sets of factors on the rotation's frequencies is for contexts of one kind: up to the
length that the model was trained for at first, and beyond it.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from ggsched_llm.architecture import Architecture
from ggsched_llm.hparams import HParams
from ggsched_llm.metadata_keys import MAX_CONTEXT, Keys
from ggsched_llm.spec import WeightNeed, linear_needs


def needs(hp: HParams) -> Iterator[WeightNeed]:
    """Yield the weights of the blocks."""
    for length in ("long", "short"):
        yield WeightNeed(f"rope_factors_{length}.weight", (hp.rope.n_dims // 2,), optional=True)
    for layer in range(hp.n_layer):
        blk = f"blk.{layer}"
        yield WeightNeed(f"{blk}.attn_norm.weight", (hp.n_embd,))
        width = hp.n_embd_q + 2 * hp.n_embd_kv
        yield from linear_needs(f"{blk}.attn_qkv", width, hp.n_embd)
        yield from linear_needs(f"{blk}.attn_output", hp.n_embd, hp.n_embd_q)
        yield WeightNeed(f"{blk}.ffn_norm.weight", (hp.n_embd,))
        yield from linear_needs(f"{blk}.ffn_up", 2 * hp.n_ff, hp.n_embd, bias=False)
        yield from linear_needs(f"{blk}.ffn_down", hp.n_embd, hp.n_ff, bias=False)


def refine(keys: Keys, hp: HParams) -> HParams:
    """Read the length that decides on the factors."""
    key = "rope.scaling.original_context_length"
    length = keys.count(key, MAX_CONTEXT, default=hp.n_ctx_train)
    return replace(hp, rope=replace(hp.rope, n_ctx_orig=length))


ARCHITECTURE: Final = Architecture(
    "phi3", needs, scalings=frozenset({"longrope"}), windows="all", refine=refine
)
