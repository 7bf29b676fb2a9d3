"""The ``minimax-m2`` architecture: one norm for all heads of Q, and one for those of K."""

from collections.abc import Iterator
from typing import Final

from ggsched_llm.architecture import Architecture
from ggsched_llm.hparams import HParams
from ggsched_llm.ignored_keys import NO_DENSE
from ggsched_llm.spec import WeightNeed, attention_needs, expert_needs


def needs(hp: HParams) -> Iterator[WeightNeed]:
    """Yield the weights of the blocks."""
    for layer in range(hp.n_layer):
        blk = f"blk.{layer}"
        yield from attention_needs(hp, layer, bias=None)
        yield WeightNeed(f"{blk}.attn_q_norm.weight", (hp.n_embd_q,))
        yield WeightNeed(f"{blk}.attn_k_norm.weight", (hp.n_embd_kv,))
        yield WeightNeed(f"{blk}.ffn_norm.weight", (hp.n_embd,))
        yield from expert_needs(hp, layer, bias=False)
        yield WeightNeed(f"{blk}.exp_probs_b.bias", (hp.n_expert,))


ARCHITECTURE: Final = Architecture(
    "minimax-m2",
    needs,
    experts="all",
    routes_by_sigmoid=True,
    ignored={"feed_forward_length": NO_DENSE},
)
