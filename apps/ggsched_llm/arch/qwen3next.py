"""The ``qwen3next`` architecture: three blocks of Gated DeltaNet, then one of gated attention.

All blocks have experts, and one that all tokens share.
"""

from collections.abc import Iterator
from functools import partial
from typing import Final

from ggsched.ir.tensor import Tensor
from ggsched_llm.arch.delta_net_hybrid import hybrid_block, hybrid_needs, refine_hybrid
from ggsched_llm.architecture import Architecture, split_width
from ggsched_llm.hparams import HParams
from ggsched_llm.layers import ModelBuilder
from ggsched_llm.recurrent import delta_net
from ggsched_llm.spec import WeightNeed, linear_needs


def _projections(hp: HParams, layer: int) -> Iterator[WeightNeed]:
    assert hp.recurrent is not None
    width = 2 * hp.recurrent.n_heads
    yield from linear_needs(f"blk.{layer}.ssm_ba", width, hp.n_embd, bias=False)


def _mix(kit: ModelBuilder, x: Tensor, layer: int) -> Tensor:
    """Apply Gated DeltaNet; each head of keys has beta, then decay, of its heads of values."""
    r = kit.hp.recurrent
    assert r is not None
    share = r.n_heads // r.n_groups
    both = kit.linear(x, f"blk.{layer}.ssm_ba", "ba_mixed")
    beta, alpha = kit.columns(kit.g.reshape(both, -1, r.n_groups, 2 * share), (share, share))
    return delta_net(kit, x, layer, beta, alpha)


ARCHITECTURE: Final = Architecture(
    "qwen3next",
    partial(hybrid_needs, projections=_projections),
    partial(hybrid_block, mix=_mix),
    experts="all",
    expert_width=split_width,
    refine=partial(refine_hybrid, tiled=False),
)
