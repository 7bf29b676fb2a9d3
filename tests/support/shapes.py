"""Models of the shapes of well-known ones, with random weights: no download, the same work."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from zlib import crc32

import numpy as np

from ggsched.ir.dtype import BF16, F32, DType
from ggsched_llm.graph import model_needs
from ggsched_llm.hparams import HParams, RopeParams
from ggsched_llm.spec import ModelSpec, WeightSpec

LLAMA_1B = HParams(
    arch="llama", name="llama-1b", n_ctx_train=8192, n_vocab=128256, n_embd=2048, n_layer=16,
    n_head=32, n_head_kv=8, head_dim=64, n_ff=8192, norm_eps=1e-5, attn_scale=64**-0.5,
    rope=RopeParams(64, "adjacent", 500000.0), n_expert=0, n_expert_used=0, window=0,
)  # fmt: skip
LLAMA_8B = replace(
    LLAMA_1B, name="llama-8b", n_embd=4096, n_layer=32, head_dim=128, n_ff=14336,
    attn_scale=128**-0.5, rope=RopeParams(128, "adjacent", 500000.0),
)  # fmt: skip
GPT_OSS_20B = HParams(
    arch="gpt-oss", name="gpt-oss-20b", n_ctx_train=8192, n_vocab=201088, n_embd=2880, n_layer=24,
    n_head=64, n_head_kv=8, head_dim=64, n_ff=2880, norm_eps=1e-5, attn_scale=64**-0.5,
    rope=RopeParams(64, "halves", 150000.0), n_expert=32, n_expert_used=4, window=128,
)  # fmt: skip
SMALL = replace(LLAMA_1B, name="llama-small", n_layer=2, n_vocab=4096)
SMALL_MOE = replace(GPT_OSS_20B, name="gpt-oss-small", n_layer=2, n_vocab=4096)


def spec_of(hp: HParams, dtype: DType, experts: DType | None = None) -> ModelSpec:
    """Return a model whose matrices have a type, and its experts another one.

    Optional weights are there where models of this kind have them: biases, sinks and an output
    matrix of its own for gpt-oss, the latter for llama of 8B too.
    """
    weights = {}
    for need in model_needs(hp):
        if need.optional and not _has(hp, need.name):
            continue
        kind = F32
        if need.matrix:
            kind = experts if experts and "_exps" in need.name else dtype
        weights[need.name] = WeightSpec(need.shape, kind)
    return ModelSpec(hp, weights)


def _has(hp: HParams, name: str) -> bool:
    if name == "output.weight":
        return hp.name not in ("llama-1b", "llama-small")
    return hp.arch == "gpt-oss" and name != "rope_freqs.weight"


def random_weights(spec: ModelSpec, seed: int = 0) -> Callable[[str], np.ndarray]:
    """Return a source of weights: pieces of one block of random numbers of each type.

    Drawing 16 GB would take longer than all that is measured with them. Numbers are small, so that
    the hidden state stays finite through all layers.
    """
    rng = np.random.default_rng(seed)
    blocks: Mapping[str, np.ndarray] = {}
    largest = max(_count(w) for w in spec.weights.values())
    count = min(largest, 1 << 28)

    def block(dtype: DType) -> np.ndarray:
        n = -(-count // 32) * 32 // dtype.block * dtype.block_nbytes
        return _draw(rng, dtype, n)

    blocks = {d.name: block(d) for d in {w.dtype for w in spec.weights.values()}}

    def source(name: str) -> np.ndarray:
        weight = spec.weights[name]
        nbytes = _count(weight) // weight.dtype.block * weight.dtype.block_nbytes
        raw = blocks[weight.dtype.name]
        if nbytes > raw.nbytes:
            raw = np.tile(raw, -(-nbytes // raw.nbytes))
        room = raw.nbytes - nbytes
        unit = weight.dtype.block_nbytes
        start = crc32(name.encode()) % (room // unit + 1) * unit if room else 0
        return _shaped(raw[start : start + nbytes], weight)

    return source


def _draw(rng: np.random.Generator, dtype: DType, nbytes: int) -> np.ndarray:
    if dtype is F32:
        return (rng.standard_normal(nbytes // 4, dtype=np.float32) * 0.02 + 0.0).view(np.uint8)
    if dtype is BF16:
        drawn = rng.standard_normal(nbytes // 2, dtype=np.float32) * np.float32(0.02)
        return (drawn.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    raw = rng.integers(0, 256, nbytes, dtype=np.uint8)
    blocks = raw.reshape(-1, dtype.block_nbytes)
    layout = dtype.layout
    assert layout is not None
    if layout.scale.kind != "f16":
        blocks[:, layout.scale.at] = 119  # a scale of 2^-8
        return raw
    for real, *factors in (
        (layout.scale, layout.codes, layout.sub_scales), (layout.min, layout.sub_mins)
    ):  # fmt: skip
        if real is not None:
            largest = [max(map(abs, by.range)) for by in factors if by is not None]
            number = np.float16(0.02 / float(np.prod(largest)))
            blocks[:, real.at : real.at + 2] = np.frombuffer(number.tobytes(), np.uint8)
    return raw


def _count(weight: WeightSpec) -> int:
    return int(np.prod(weight.shape))


def _shaped(raw: np.ndarray, weight: WeightSpec) -> np.ndarray:
    kinds: Mapping[str, Any] = {"f32": np.float32, "bf16": np.uint16, "f16": np.float16}
    if weight.dtype.name in kinds:
        return raw.view(kinds[weight.dtype.name]).reshape(weight.shape)
    *outer, last = weight.shape
    return raw.reshape(*outer, weight.dtype.row_nbytes(last))


def read_nbytes(spec: ModelSpec) -> int:
    """Return the bytes of weights that one token reads: of experts, only those that are chosen."""
    hp, total = spec.hparams, 0
    for name, weight in spec.weights.items():
        nbytes = _count(weight) // weight.dtype.block * weight.dtype.block_nbytes
        if "_exps" in name:
            nbytes = nbytes * hp.n_expert_used // hp.n_expert
        if name == "token_embd.weight" and "output.weight" in spec.weights:
            nbytes //= hp.n_vocab
        total += nbytes
    return total
