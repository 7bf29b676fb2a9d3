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

import numpy as np
from numpy.typing import NDArray

from ggsched.errors import ModelError
from ggsched.ir.dtype import F32
from ggsched.ir.tensor import Tensor
from ggsched_llm.architecture import Architecture, with_dense_blocks
from ggsched_llm.gguf_file import GgufFile, GgufTensor
from ggsched_llm.gguf_header import quoted
from ggsched_llm.hparams import HParams, Latent
from ggsched_llm.layers import ModelBuilder
from ggsched_llm.metadata_keys import Keys
from ggsched_llm.spec import WeightNeed, dense_or_expert_needs, linear_needs
from ggsched_llm.weights import converted_array, stored_array

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
        yield from dense_or_expert_needs(hp, layer)


def block(kit: ModelBuilder, x: Tensor, layer: int) -> Tensor:
    """Apply block ``layer`` to the hidden states x (T, n_embd)."""
    network, attention = kit.dense_or_experts, partial(_attention, kit)
    return kit.block(x, layer, "ffn_norm", network, attention=attention)


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
    latent, k_turned = _latent_row(kit, x, blk)
    q_turned = kit.rotate(q_turned, hp.rope, "q_pe")
    k_turned = kit.rotate(k_turned, hp.rope, "k_pe")
    # (H, rank, plain) x (H, T, plain) -> (H, T, rank)
    taken = g.mul_mat(kit.weight(f"{blk}.attn_k_b.weight"), g.permute(q_plain, 1, 0, 2))
    query = g.concat(g.permute(taken, 1, 0, 2), q_turned, axis=2, name="Qcur")
    keys = _cached(kit, latent, k_turned, blk)
    values = g.view(keys, (*keys.shape[:2], w.rank), keys.strides)
    found = g.attention(query, keys, values, bounds=kit.bounds, scale=hp.attn_scale, name="kqv")
    # (H, value, rank) x (H, T, rank) -> (H, T, value)
    out = g.mul_mat(kit.weight(f"{blk}.attn_v_b.weight"), g.permute(found, 1, 0, 2))
    merged = g.reshape(g.cont(g.permute(out, 1, 0, 2)), -1, hp.n_head * w.value)
    return kit.linear(merged, f"{blk}.attn_output", "kqv_out")


def _latent_row(kit: ModelBuilder, x: Tensor, blk: str) -> tuple[Tensor, Tensor]:
    """Return the latent rows (T, rank) of x, and keys (T, 1, rotated) that are to be rotated."""
    w = _widths(kit.hp)
    both = kit.linear(x, f"{blk}.attn_kv_a_mqa", "kv_a")
    latent, turned = kit.columns(both, (w.rank, w.rotated))
    latent = kit.norm(latent, f"{blk}.attn_kv_a_norm", "kv_a_norm")
    return latent, kit.g.view(
        turned, (x.shape[0], 1, w.rotated), (turned.strides[0], *turned.strides)
    )


def _cached(kit: ModelBuilder, latent: Tensor, turned: Tensor, blk: str) -> Tensor:
    """Write latent rows and rotated keys to the cache; return its leading rows."""
    g, tokens = kit.g, latent.shape[0]
    row = g.concat(g.reshape(latent, tokens, 1, -1), turned, axis=2, name="Kcur")
    return kit.cache(f"{blk}.k_cache", g.reshape(row, tokens, -1), "k_cache_set")


def remember(kit: ModelBuilder, x: Tensor, layer: int) -> None:
    """Write the latent rows of x (T, n_embd) to the cache."""
    blk = f"blk.{layer}"
    latent, turned = _latent_row(kit, x, blk)
    _cached(kit, latent, kit.rotate(turned, kit.hp.rope, "k_pe"), blk)


def refine(keys: Keys, hp: HParams) -> HParams:
    """Read widths of the latent space, and which layers have no experts."""
    wide, mla = 1 << 14, "_mla"
    rank = keys.count("attention.kv_lora_rank", wide)
    if keys.get("attention.key_length_mla") is None and hp.n_head_kv == hp.n_head:
        # Files from before 2025 say the widths of keys and values that are written out.
        hp, mla = replace(hp, head_dim=rank + hp.rope.n_dims, n_head_kv=1), ""
    latent = Latent(
        rank=rank,
        key_dim=keys.count(f"attention.key_length{mla}", wide),
        value_dim=keys.count(f"attention.value_length{mla}", wide),
        query_rank=keys.count("attention.q_lora_rank", wide, default=0, least=0),
    )
    if hp.head_dim != latent.rank + hp.rope.n_dims or hp.n_head_kv != 1:
        why = f"it must be the {latent.rank} of kv_lora_rank and the {hp.rope.n_dims} that rotate"
        raise keys.fail("attention.key_length", f"is {hp.head_dim}", why)
    if latent.key_dim <= hp.rope.n_dims:
        why = f"{hp.rope.n_dims} elements of it are rotated"
        raise keys.fail(f"attention.key_length{mla}", f"is {latent.key_dim}", why)
    logarithm, magnitude = log(1.0 / hp.rope.freq_scale), hp.rope.attn_factor
    by_log = keys.real("rope.scaling.yarn_log_multiplier", 0.0, 1e3, default=0.0) / _YARN_LOG
    if by_log and hp.rope.ext_factor:
        # What the rotation would do to magnitudes is done to scores, by another factor.
        magnitude /= 1.0 + 0.1 * logarithm
    whole = magnitude * (1.0 + 0.1 * logarithm) if hp.rope.ext_factor else magnitude
    whole *= 1.0 + 0.1 * by_log * logarithm
    return replace(
        with_dense_blocks(keys, hp),
        latent=latent,
        rope=replace(hp.rope, attn_factor=magnitude),
        attn_scale=whole**2 / sqrt(latent.key_dim),
    )


def adapt(file: GgufFile, hp: HParams) -> GgufFile:
    """Return a file that has what keys and values take from latent rows as two tensors.

    Files from before 2025, and folders, have both in one: rows of keys and of values, by heads. The
    part of keys is transposed when it is loaded, and is f32 if it was packed.

    Raises:
        ModelError: the tensor of both has another shape.
    """
    w, tensors = _widths(hp), dict(file.tensors)
    for name, both in file.tensors.items():
        if not name.endswith(".attn_kv_b.weight") or name.replace("_kv_b", "_k_b") in tensors:
            continue
        shape: tuple[int, ...] = (hp.n_head * (w.plain + w.value), w.rank)
        if both.shape != shape:
            where = f"{file.path}: tensor {quoted(name)}"
            why = f"needs {list(shape)}, has {list(both.shape)}"
            raise ModelError("has the wrong shape", where=where, why=why, hint="convert it again")
        row = both.nbytes // shape[0]
        values = tuple(
            replace(
                both,
                shape=(w.value, w.rank),
                offset=both.offset + first * row,
                nbytes=w.value * row,
            )
            for first in range(w.plain, shape[0], w.plain + w.value)
        )
        own, shape = name.replace("_kv_b", "_v_b"), (hp.n_head, w.value, w.rank)
        nbytes = hp.n_head * w.value * row
        tensors[own] = replace(both, name=own, shape=shape, nbytes=nbytes, pieces=values)
        own, shape = name.replace("_kv_b", "_k_b"), (hp.n_head, w.rank, w.plain)
        dtype = F32 if both.dtype.is_quantized else both.dtype
        nbytes = hp.n_head * w.rank * dtype.row_nbytes(w.plain)
        made = partial(_keys_of, name=name, heads=hp.n_head, plain=w.plain)
        tensors[own] = GgufTensor(own, dtype, shape, 0, nbytes, source=made)
    return replace(file, tensors=tensors)


def _keys_of(file: GgufFile, name: str, heads: int, plain: int) -> NDArray[np.uint8]:
    packed = file.tensors[name].dtype.is_quantized
    both = converted_array(file, name) if packed else stored_array(file, name)
    keys = both.reshape(heads, -1, both.shape[-1])[:, :plain].transpose(0, 2, 1)
    return np.ascontiguousarray(keys).view(np.uint8).reshape(-1)


ARCHITECTURE: Final = Architecture(
    "deepseek2",
    needs,
    block,
    pairing="adjacent",
    experts="all",
    has_latent=True,
    renormalises=False,
    refine=refine,
    adapt=adapt,
    remember=remember,
)
