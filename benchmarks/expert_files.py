"""GGUF files of models with many experts, at their real width, with random blocks of any type.

    python -m benchmarks.expert_files OUT.gguf qwen3next-80b q8_0
    python -m benchmarks.expert_files OUT.gguf qwen3next-80b q4_k_m --layers 4
    python -m benchmarks.expert_files OUT.gguf qwen3-30b q4_k_m

A matrix repeats a few megabytes of random blocks, so that a file is written as fast as its disk or
its memory takes it. llama.cpp opens the files too; they have no vocabulary.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFWriter

from ggsched.ir.dtype import F32, DType, dtype_by_name
from ggsched.models.gguf_file import GgufFile, GgufTensor
from ggsched.models.graph import model_needs
from ggsched.models.hparams import HParams
from ggsched.models.read_hparams import read_hparams
from ggsched.models.spec import ModelSpec, WeightNeed, WeightSpec
from ggsched.testing.generators.values import random_blocks

Source = Callable[[str], npt.NDArray[Any]]

VOCAB: Final = 151936
_COMMON: Final[Mapping[str, int | float]] = {
    "context_length": 262144,
    "embedding_length": 2048,
    "block_count": 48,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "vocab_size": VOCAB,
}
MODELS: Final[Mapping[str, tuple[str, Mapping[str, int | float]]]] = {
    "qwen3next-80b": (
        "qwen3next",
        {
            **_COMMON,
            "feed_forward_length": 5120,
            "attention.head_count": 16,
            "attention.head_count_kv": 2,
            "attention.key_length": 256,
            "attention.value_length": 256,
            "rope.dimension_count": 64,
            "rope.freq_base": 1e7,
            "expert_count": 512,
            "expert_used_count": 10,
            "expert_feed_forward_length": 512,
            "expert_shared_feed_forward_length": 512,
            "ssm.conv_kernel": 4,
            "ssm.state_size": 128,
            "ssm.group_count": 16,
            "ssm.time_step_rank": 32,
            "ssm.inner_size": 4096,
        },
    ),
    "qwen3-30b": (
        "qwen3moe",
        {
            **_COMMON,
            "feed_forward_length": 6144,
            "attention.head_count": 32,
            "attention.head_count_kv": 4,
            "attention.key_length": 128,
            "attention.value_length": 128,
            "rope.dimension_count": 128,
            "rope.freq_base": 1e6,
            "expert_count": 128,
            "expert_used_count": 8,
            "expert_feed_forward_length": 768,
        },
    ),
}
"""Architecture and keys, by name."""

_POOL: Final = 8 << 20
"""Bytes that are drawn for each type and width; tensors repeat them."""

_PIECE: Final = 256 << 20
"""Bytes that one thread writes at a time, more or less: whole blocks."""

_PLAIN: Final = ("ffn_gate_inp", "ssm_conv1d")
"""Parts of names of matrices that are f32 whatever the type of the file."""


def write_model(path: Path, name: str, kind: str, n_layer: int | None = None) -> int:
    """Write a model; return the bytes of the file.

    Args:
        path: Of the file.
        name: Of the model, see ``MODELS``.
        kind: Type of the matrices, or ``q4_k_m``: q4_k, with q6_k where llama.cpp takes it.
        n_layer: Blocks, if not as many as the model has.
    """
    arch, keys = MODELS[name]
    keys = {**keys, "block_count": n_layer or keys["block_count"]}
    hp = _hparams(name, arch, keys)
    needs = list(_needs(hp))
    partial = path.with_name(f"{path.name}.partial")
    writer = GGUFWriter(partial, arch)
    writer.add_name(name)
    for key, value in keys.items():
        add = writer.add_uint32 if isinstance(value, int) else writer.add_float32
        add(f"{arch}.{key}", value)
    writer.add_tokenizer_model("no_vocab")
    kinds = [_kind(need, kind, hp.n_layer) for need in needs]
    for need, dtype in zip(needs, kinds, strict=True):
        raw = GGMLQuantizationType[dtype.name.upper()]
        shape = need.shape if dtype is F32 else (*need.shape[:-1], dtype.row_nbytes(need.shape[-1]))
        numpy_type = np.dtype(np.float32 if dtype is F32 else np.uint8)
        nbytes = _nbytes(need, dtype)
        writer.add_tensor_info(need.name, shape, numpy_type, nbytes, raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    at = _aligned(os.path.getsize(partial))
    with partial.open("r+b") as file, ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as threads:
        jobs = []
        for need, dtype in zip(needs, kinds, strict=True):
            blocks = _blocks(need, dtype)
            nbytes = _nbytes(need, dtype)
            step = max(1, _PIECE // len(blocks)) * len(blocks)
            for start in range(0, nbytes, step):
                piece = (file.fileno(), at + start, min(step, nbytes - start), blocks)
                jobs.append(threads.submit(_write, *piece))
            at = _aligned(at + nbytes)
        for job in jobs:
            job.result()
        file.truncate(at)
    partial.rename(path)
    return at


def random_model(name: str, kind: str, n_layer: int | None = None) -> tuple[ModelSpec, Source]:
    """Return a model as ``write_model`` writes it, and a source of its weights."""
    arch, keys = MODELS[name]
    hp = _hparams(name, arch, {**keys, "block_count": n_layer or keys["block_count"]})
    needs = {need.name: need for need in _needs(hp)}
    weights = {
        name: WeightSpec(need.shape, _kind(need, kind, hp.n_layer)) for name, need in needs.items()
    }

    def source(name: str) -> npt.NDArray[Any]:
        need, dtype = needs[name], weights[name].dtype
        raw = np.resize(np.asarray(_blocks(need, dtype)), _nbytes(need, dtype))
        return raw.view(np.float32 if dtype is F32 else np.uint8).reshape(*need.shape[:-1], -1)

    return ModelSpec(hp, weights), source


def _hparams(name: str, arch: str, keys: Mapping[str, int | float]) -> HParams:
    """Return what the keys say, as read from a file that has them."""
    table = GgufTensor("", F32, (int(keys["vocab_size"]), int(keys["embedding_length"])), 0, 0)
    names = ["token_embd.weight", *map(str, range(int(keys["block_count"])))]
    metadata = {
        "general.architecture": arch,
        "general.name": name,
        **{f"{arch}.{key}": value for key, value in keys.items()},
    }
    tensors = dict.fromkeys(names, table)
    return read_hparams(GgufFile(name, 3, metadata, tensors, np.empty(0, np.uint8)))


def _needs(hp: HParams) -> Iterator[WeightNeed]:
    for need in model_needs(hp):
        if not need.optional or need.name == "output.weight":
            yield need


def _kind(need: WeightNeed, kind: str, n_layer: int) -> DType:
    """Return the type of a tensor in a file of a type."""
    if not need.matrix or any(part in need.name for part in _PLAIN):
        return F32
    if kind != "q4_k_m":
        return dtype_by_name(kind)
    if need.name == "output.weight":
        return dtype_by_name("q6_k")
    if "attn_v." in need.name or "ffn_down" in need.name:
        # The first and the last eighth of the blocks, and each third between.
        layer, eighth = int(need.name.split(".")[1]), n_layer // 8
        inner = layer - eighth
        if inner < 0 or layer >= n_layer - eighth or inner % 3 == 2:
            return dtype_by_name("q6_k")
    return dtype_by_name("q4_k")


def _nbytes(need: WeightNeed, dtype: DType) -> int:
    *outer, row = need.shape
    return prod(outer) * dtype.row_nbytes(row)


def _aligned(at: int) -> int:
    return -(-at // 32) * 32


def _blocks(need: WeightNeed, dtype: DType) -> memoryview:
    """Return bytes that a tensor repeats."""
    if len(need.shape) == 1:
        return _vector(need)
    width = 1 << 8 if need.name == "token_embd.weight" else need.shape[-1]
    return _pool(dtype, width, prod(need.shape) if dtype is F32 else 0)


def _vector(need: WeightNeed) -> memoryview:
    """Return a vector: decay and its bias as of trained models, gates near 0, norms 1."""
    rng, n = np.random.default_rng(len(need.name)), need.shape[0]
    found = np.ones(n)
    if need.name.endswith("ssm_a"):
        found = -np.exp(rng.uniform(-3.0, 1.0, n))
    elif need.name.endswith(".bias"):
        found = rng.uniform(-0.25, 0.25, n)
    elif "gate_inp" in need.name:
        found = rng.uniform(-1, 1, n) * (3 / n) ** 0.5
    return memoryview(found.astype(np.float32).view(np.uint8))


@cache
def _pool(dtype: DType, width: int, n: int) -> memoryview:
    """Return elements whose sums over ``width`` of them, times normal ones, are about normal."""
    rng = np.random.default_rng(width)
    if dtype is F32:
        most = (3 / width) ** 0.5
        return memoryview(rng.uniform(-most, most, n).astype(np.float32).view(np.uint8))
    # The block's scale is uniform too, and the sum of a scale's part and a minimum.
    rows = random_blocks(dtype, (_POOL // dtype.block_nbytes, dtype.block), 3 / width**0.5, rng)
    return memoryview(rows.reshape(-1))


def _write(file: int, at: int, nbytes: int, blocks: memoryview) -> None:
    end = at + nbytes
    while at < end:
        at += os.pwrite(file, blocks[: end - at], at)


def main() -> None:
    """Write what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.expert_files", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("type")
    parser.add_argument("--layers", type=int)
    options = parser.parse_args()
    began = time.perf_counter()
    nbytes = write_model(options.file, options.model, options.type, options.layers)
    seconds = time.perf_counter() - began
    sys.stdout.write(f"{options.file}: {nbytes / 1e9:.2f} GB in {seconds:.1f} s\n")


if __name__ == "__main__":
    main()
