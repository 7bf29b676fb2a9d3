"""The ``qwen2moe`` architecture: experts, and one that all tokens share, behind a gate."""

from dataclasses import replace
from typing import Final

from ggsched.ir.tensor import Tensor
from ggsched_llm.architecture import Architecture, shared_width, split_width
from ggsched_llm.hparams import HParams
from ggsched_llm.layers import ModelBuilder
from ggsched_llm.metadata_keys import Keys
from ggsched_llm.spec import block_needs


def block(kit: ModelBuilder, x: Tensor, layer: int) -> Tensor:
    """Apply block ``layer`` to the hidden states x (T, n_embd)."""
    return kit.block(x, layer, "ffn_norm", kit.experts_and_shared, adds_residual=True)


def refine(keys: Keys, hp: HParams) -> HParams:
    """Read the width of the shared expert."""
    return replace(hp, n_ff_shared=shared_width(keys))


ARCHITECTURE: Final = Architecture(
    "qwen2moe",
    block_needs,
    block,
    experts="all",
    expert_width=split_width,
    renormalises=False,
    refine=refine,
)
