"""The ``glm4moe`` architecture: GLM-4.5 to 4.7, with experts chosen by sigmoids and a bias."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from ggsched.ir.tensor import Tensor
from ggsched_llm.architecture import Architecture, check_text_sections, with_dense_blocks
from ggsched_llm.hparams import HParams
from ggsched_llm.layers import ModelBuilder
from ggsched_llm.metadata_keys import Keys
from ggsched_llm.spec import WeightNeed, attention_needs, dense_or_expert_needs, head_norm_needs


def needs(hp: HParams) -> Iterator[WeightNeed]:
    """Yield the weights of the blocks; norms of heads are those of the largest model only."""
    for layer in range(hp.n_layer):
        yield from attention_needs(hp, layer, bias=None)
        yield from (replace(need, optional=True) for need in head_norm_needs(hp, layer))
        yield WeightNeed(f"blk.{layer}.post_attention_norm.weight", (hp.n_embd,))
        yield from dense_or_expert_needs(hp, layer)


def block(kit: ModelBuilder, x: Tensor, layer: int) -> Tensor:
    """Apply block ``layer`` to the hidden states x (T, n_embd)."""
    return kit.block(x, layer, "post_attention_norm", kit.dense_or_experts)


def refine(keys: Keys, hp: HParams) -> HParams:
    """Read which blocks have no experts."""
    check_text_sections(keys)
    return with_dense_blocks(keys, hp)


ARCHITECTURE: Final = Architecture(
    "glm4moe",
    needs,
    block,
    experts="all",
    renormalises=False,
    routes_by_sigmoid=True,
    refine=refine,
    remember=ModelBuilder.remember,
)
