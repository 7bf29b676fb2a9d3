"""The ``qwen2`` architecture: Qwen2 and Qwen2.5, with biases on Q, K and V."""

from collections.abc import Iterator
from typing import Final

from ggsched.ir.tensor import Tensor
from ggsched_llm.architecture import Architecture
from ggsched_llm.hparams import HParams
from ggsched_llm.layers import ModelBuilder
from ggsched_llm.spec import WeightNeed, attention_needs, feed_forward_needs


def needs(hp: HParams) -> Iterator[WeightNeed]:
    """Yield the weights of the blocks."""
    for layer in range(hp.n_layer):
        yield from attention_needs(hp, layer, bias=None)
        yield WeightNeed(f"blk.{layer}.ffn_norm.weight", (hp.n_embd,))
        yield from feed_forward_needs(hp, layer, bias=False)


def block(kit: ModelBuilder, x: Tensor, layer: int) -> Tensor:
    """Apply block ``layer`` to the hidden states x (T, n_embd)."""
    return kit.block(x, layer, "ffn_norm", kit.feed_forward)


ARCHITECTURE: Final = Architecture("qwen2", needs, block)
