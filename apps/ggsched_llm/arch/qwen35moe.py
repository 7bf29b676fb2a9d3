"""The ``qwen35moe`` architecture: as qwen3next, with decay and beta from weights of their own."""

from collections.abc import Iterator
from functools import partial
from typing import Final

from ggsched.ir.tensor import Tensor
from ggsched_llm.arch.delta_net_hybrid import hybrid_block, hybrid_needs, refine_hybrid
from ggsched_llm.architecture import Architecture, check_text_sections, split_width
from ggsched_llm.hparams import HParams
from ggsched_llm.layers import ModelBuilder
from ggsched_llm.metadata_keys import Keys
from ggsched_llm.recurrent import delta_net
from ggsched_llm.spec import WeightNeed, linear_needs


def _projections(hp: HParams, layer: int) -> Iterator[WeightNeed]:
    assert hp.recurrent is not None
    for name in ("ssm_beta", "ssm_alpha"):
        heads = hp.recurrent.n_heads
        yield from linear_needs(f"blk.{layer}.{name}", heads, hp.n_embd, bias=False)


def _mix(kit: ModelBuilder, x: Tensor, layer: int) -> Tensor:
    beta, alpha = (kit.linear(x, f"blk.{layer}.ssm_{name}", name) for name in ("beta", "alpha"))
    return delta_net(kit, x, layer, beta, alpha)


def refine(keys: Keys, hp: HParams) -> HParams:
    """Read what hybrids have; of text all axes of the rotation have one position."""
    check_text_sections(keys)
    return refine_hybrid(keys, hp, tiled=keys.folder_pairing is None)


needs: Final = partial(hybrid_needs, projections=_projections)
block: Final = partial(hybrid_block, mix=_mix)
ARCHITECTURE: Final = Architecture(
    "qwen35moe",
    needs,
    block,
    experts="all",
    expert_width=split_width,
    refine=refine,
)
