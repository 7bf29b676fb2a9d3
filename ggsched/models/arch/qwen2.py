"""The ``qwen2`` architecture: Qwen2 and Qwen2.5, with biases on Q, K and V."""

from collections.abc import Iterator
from typing import Final

from ggsched.ir.tensor import Tensor
from ggsched.models.architecture import Architecture
from ggsched.models.hparams import HParams
from ggsched.models.layers import ModelBuilder
from ggsched.models.spec import WeightNeed, attention_needs, feed_forward_needs


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
