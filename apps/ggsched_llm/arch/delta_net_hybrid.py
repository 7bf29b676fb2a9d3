"""What architectures share that have Gated DeltaNet and gated attention in turns."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from ggsched.ir.tensor import Tensor
from ggsched_llm.architecture import shared_width
from ggsched_llm.hparams import HParams
from ggsched_llm.layers import ModelBuilder
from ggsched_llm.metadata_keys import Keys
from ggsched_llm.recurrent import delta_net_needs, read_delta_net
from ggsched_llm.spec import (
    WeightNeed,
    feed_forward_needs,
    head_norm_needs,
    linear_needs,
    shared_expert_needs,
)


def hybrid_needs(
    hp: HParams, projections: Callable[[HParams, int], Iterator[WeightNeed]]
) -> Iterator[WeightNeed]:
    """Yield the weights of the blocks; ``projections`` are those to decay and beta."""
    for layer in range(hp.n_layer):
        blk = f"blk.{layer}"
        yield WeightNeed(f"{blk}.attn_norm.weight", (hp.n_embd,))
        if hp.is_recurrent(layer):
            yield from delta_net_needs(hp, layer)
            yield from projections(hp, layer)
        else:
            # Each head of Q is followed by its gate.
            yield from linear_needs(f"{blk}.attn_q", 2 * hp.n_embd_q, hp.n_embd, bias=False)
            yield from linear_needs(f"{blk}.attn_k", hp.n_embd_kv, hp.n_embd, bias=False)
            yield from linear_needs(f"{blk}.attn_v", hp.n_embd_kv, hp.n_embd, bias=False)
            yield from linear_needs(f"{blk}.attn_output", hp.n_embd, hp.n_embd_q, bias=False)
            yield from head_norm_needs(hp, layer)
        yield WeightNeed(f"{blk}.post_attention_norm.weight", (hp.n_embd,))
        if hp.n_expert:
            yield from shared_expert_needs(hp, layer)
        else:
            yield from feed_forward_needs(hp, layer, bias=False)


def hybrid_block(
    kit: ModelBuilder,
    x: Tensor,
    layer: int,
    mix: Callable[[ModelBuilder, Tensor, int], Tensor],
) -> Tensor:
    """Apply block ``layer`` to the hidden states x (T, n_embd); ``mix`` is Gated DeltaNet."""
    attention = partial(mix, kit) if kit.hp.is_recurrent(layer) else None
    norm, has_experts = "post_attention_norm", kit.hp.n_expert > 0
    ffn = kit.experts_and_shared if has_experts else kit.feed_forward
    return kit.block(x, layer, norm, ffn, attention=attention, adds_residual=has_experts)


def refine_hybrid(keys: Keys, hp: HParams, *, tiled: bool) -> HParams:
    """Read widths of the shared expert, if there are experts, and of the states."""
    return replace(
        hp,
        n_ff_shared=shared_width(keys) if hp.n_expert else 0,
        gates_attention=True,
        recurrent=read_delta_net(keys, hp.n_layer, tiled=tiled),
    )
