"""The ``deepseek2`` architecture: DeepSeek V2, V3 and R1, with latent attention and shared experts.

The cache holds one latent row for each token, and the rotated part of its key, for all heads
together. Queries are taken into the latent space and results out of it, so that keys and values
are never written out: attention has one head of keys, whose leading elements are the values.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import log, sqrt
from typing import Final

from ggsched.ir.tensor import Tensor
from ggsched_llm.architecture import Architecture
from ggsched_llm.hparams import HParams, Latent
from ggsched_llm.layers import ModelBuilder
from ggsched_llm.metadata_keys import Keys
from ggsched_llm.spec import WeightNeed, expert_needs, feed_forward_needs, linear_needs

_YARN_LOG: Final = 0.1


@dataclass(frozen=True, slots=True)
class _Widths:
    """Widths of the parts of attention; see ``Latent``."""

    rank: int
    plain: int
    rotated: int
    value: int
    query_rank: int


def _widths(hp: HParams) -> _Widths:
    latent, rotated = hp.latent, hp.rope.n_dims
    assert latent is not None  # refine has set it
    plain = latent.key_dim - rotated
    return _Widths(latent.rank, plain, rotated, latent.value_dim, latent.query_rank)


def needs(hp: HParams) -> Iterator[WeightNeed]:
    """Yield the weights of the blocks."""
    w, heads = _widths(hp), hp.n_head
    for layer in range(hp.n_layer):
        blk = f"blk.{layer}"
        yield WeightNeed(f"{blk}.attn_norm.weight", (hp.n_embd,))
        n_query = heads * (w.plain + w.rotated)
        if w.query_rank:
            yield from linear_needs(f"{blk}.attn_q_a", w.query_rank, hp.n_embd, bias=False)
            yield WeightNeed(f"{blk}.attn_q_a_norm.weight", (w.query_rank,))
            yield from linear_needs(f"{blk}.attn_q_b", n_query, w.query_rank, bias=False)
        else:
            yield from linear_needs(f"{blk}.attn_q", n_query, hp.n_embd, bias=False)
        yield from linear_needs(f"{blk}.attn_kv_a_mqa", w.rank + w.rotated, hp.n_embd, bias=False)
        yield WeightNeed(f"{blk}.attn_kv_a_norm.weight", (w.rank,))
        yield WeightNeed(f"{blk}.attn_k_b.weight", (heads, w.rank, w.plain), matrix=True)
        yield WeightNeed(f"{blk}.attn_v_b.weight", (heads, w.value, w.rank), matrix=True)
        yield from linear_needs(f"{blk}.attn_output", hp.n_embd, heads * w.value, bias=False)
        yield WeightNeed(f"{blk}.ffn_norm.weight", (hp.n_embd,))
        if layer < hp.n_dense:
            yield from feed_forward_needs(hp, layer, bias=False, width=hp.n_ff_dense)
            continue
        yield from expert_needs(hp, layer, bias=False)
        yield WeightNeed(f"{blk}.exp_probs_b.bias", (hp.n_expert,), optional=True)
        yield from feed_forward_needs(hp, layer, bias=False, suffix="_shexp", width=hp.n_ff_shared)


def block(kit: ModelBuilder, x: Tensor, layer: int) -> Tensor:
    """Apply block ``layer`` to the hidden states x (T, n_embd)."""
    ffn = kit.feed_forward if layer < kit.hp.n_dense else partial(_experts, kit)
    return kit.block(x, layer, "ffn_norm", ffn, attention=partial(_attention, kit))


def _experts(kit: ModelBuilder, x: Tensor, layer: int) -> Tensor:
    out = kit.experts(x, layer, router="all")
    return kit.g.add(out, kit.feed_forward(x, layer, suffix="_shexp"), name="ffn_out")


def _attention(kit: ModelBuilder, x: Tensor, layer: int) -> Tensor:
    """Attend from x (T, n_embd) to latent rows; see the module."""
    g, hp, blk, w = kit.g, kit.hp, f"blk.{layer}", _widths(kit.hp)
    if w.query_rank:
        low = kit.norm(kit.linear(x, f"{blk}.attn_q_a", "q_a"), f"{blk}.attn_q_a_norm", "q_a_norm")
        q = kit.linear(low, f"{blk}.attn_q_b", "q")
    else:
        q = kit.linear(x, f"{blk}.attn_q", "q")
    heads = g.reshape(q, -1, hp.n_head, w.plain + w.rotated)
    q_plain, q_turned = kit.columns(heads, (w.plain, w.rotated))
    latent, k_turned = kit.columns(
        kit.linear(x, f"{blk}.attn_kv_a_mqa", "kv_a"), (w.rank, w.rotated)
    )
    latent = kit.norm(latent, f"{blk}.attn_kv_a_norm", "kv_a_norm")
    q_turned = kit.rotate(q_turned, hp.rope, "q_pe")
    one = g.view(k_turned, (x.shape[0], 1, w.rotated), (k_turned.strides[0], *k_turned.strides))
    k_turned = kit.rotate(one, hp.rope, "k_pe")
    # (H, rank, plain) x (H, T, plain) -> (H, T, rank)
    taken = g.mul_mat(kit.weight(f"{blk}.attn_k_b.weight"), g.permute(q_plain, 1, 0, 2))
    query = g.concat(g.permute(taken, 1, 0, 2), q_turned, axis=2, name="Qcur")
    row = g.concat(g.reshape(latent, -1, 1, w.rank), k_turned, axis=2, name="Kcur")
    keys = kit.cache(f"{blk}.k_cache", g.reshape(row, x.shape[0], -1), "k_cache_set")
    values = g.view(keys, (*keys.shape[:2], w.rank), keys.strides)
    found = g.attention(query, keys, values, bounds=kit.bounds, scale=hp.attn_scale, name="kqv")
    # (H, value, rank) x (H, T, rank) -> (H, T, value)
    out = g.mul_mat(kit.weight(f"{blk}.attn_v_b.weight"), g.permute(found, 1, 0, 2))
    merged = g.reshape(g.cont(g.permute(out, 1, 0, 2)), -1, hp.n_head * w.value)
    return kit.linear(merged, f"{blk}.attn_output", "kqv_out")


def refine(keys: Keys, hp: HParams) -> HParams:
    """Read widths of the latent space, and which layers have no experts."""
    wide = 1 << 14
    latent = Latent(
        rank=keys.count("attention.kv_lora_rank", wide),
        key_dim=keys.count("attention.key_length_mla", wide),
        value_dim=keys.count("attention.value_length_mla", wide),
        query_rank=keys.count("attention.q_lora_rank", wide, default=0, least=0),
    )
    if hp.head_dim != latent.rank + hp.rope.n_dims or hp.n_head_kv != 1:
        why = f"it must be the {latent.rank} of kv_lora_rank and the {hp.rope.n_dims} that rotate"
        raise keys.fail("attention.key_length", f"is {hp.head_dim}", why)
    if latent.key_dim <= hp.rope.n_dims:
        why = f"{hp.rope.n_dims} elements of it are rotated"
        raise keys.fail("attention.key_length_mla", f"is {latent.key_dim}", why)
    groups = keys.count("expert_group_count", 1 << 12, default=1)
    if groups > 1 and keys.count("expert_group_used_count", 1 << 12, default=groups) < groups:
        raise keys.fail("expert_group_count", f"is {groups}", "groups of experts are not supported")
    logarithm, magnitude = log(1.0 / hp.rope.freq_scale), hp.rope.attn_factor
    by_log = keys.real("rope.scaling.yarn_log_multiplier", 0.0, 1e3, default=0.0) / _YARN_LOG
    if by_log and hp.rope.ext_factor:
        # What the rotation would do to magnitudes is done to scores, by another factor.
        magnitude /= 1.0 + 0.1 * logarithm
    whole = magnitude * (1.0 + 0.1 * logarithm) if hp.rope.ext_factor else magnitude
    whole *= 1.0 + 0.1 * by_log * logarithm
    return replace(
        hp,
        latent=latent,
        rope=replace(hp.rope, attn_factor=magnitude),
        attn_scale=whole**2 / sqrt(latent.key_dim),
        n_dense=keys.count("leading_dense_block_count", 1 << 16, default=0, least=0),
        n_ff_dense=keys.count("feed_forward_length", 1 << 24),
        n_ff_shared=hp.n_ff * keys.count("expert_shared_count", 1 << 12),
    )


ARCHITECTURE: Final = Architecture(
    "deepseek2",
    needs,
    block,
    pairing="adjacent",
    experts="all",
    has_latent=True,
    renormalises=False,
    refine=refine,
)
