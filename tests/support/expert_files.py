"""GGUF files of well-known models, at their real width, with random blocks of any type.

    python -m tests.support.expert_files OUT.gguf qwen3next-80b q8_0
    python -m tests.support.expert_files OUT.gguf qwen3next-80b q4_k_m --layers 4
    python -m tests.support.expert_files OUT.gguf gemma2-9b q4_k_m --layers 8 --vocabulary

A matrix repeats a few megabytes of random blocks, so that a file is written as fast as its disk or
its memory takes it. llama.cpp opens the files too.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFWriter

from ggsched.ir.dtype import F32, DType, dtype_by_name
from ggsched_llm.gguf_file import GgufFile, GgufTensor
from ggsched_llm.graph import model_needs
from ggsched_llm.hparams import HParams
from ggsched_llm.read_hparams import read_hparams
from ggsched_llm.spec import ModelSpec, WeightNeed, WeightSpec
from ggsched_testing.generators.values import random_blocks
from tests.support.model_shapes import SHAPES, Key, Shape
from tests.support.random_vocabulary import add_vocabulary

Source = Callable[[str], npt.NDArray[Any]]

_POOL: Final = 8 << 20
"""Bytes that are drawn for each type and width; tensors repeat them."""

_PIECE: Final = 256 << 20
"""Bytes that one thread writes at a time, more or less: whole blocks."""

_PLAIN: Final = ("ffn_gate_inp", "ssm_conv1d")
"""Parts of names of matrices that are f32 whatever the type of the file."""


def write_model(
    path: Path,
    name: str,
    kind: str,
    n_layer: int | None = None,
    *,
    vocabulary: bool = False,
    empty: bool = False,
) -> int:
    """Write a model; return the bytes of the file.

    Args:
        path: Of the file.
        name: Of the model, see ``SHAPES``.
        kind: Type of the matrices, or ``q4_k_m``: q4_k, with others where llama.cpp takes them.
        n_layer: Blocks, if not as many as the model has.
        vocabulary: Whether there is one, of the model's kind and size.
        empty: Leave holes in the place of the weights, which take no room on a disk.
    """
    shape = SHAPES[name]
    hp = _hparams(name, shape, n_layer)
    needs = list(_needs(shape, hp))
    partial = path.with_name(f"{path.name}.partial")
    writer = GGUFWriter(partial, shape.arch)
    writer.add_name(name)
    for key, value in shape.with_layers(n_layer).items():
        _adder(writer, value)(f"{shape.arch}.{key}", value)
    if vocabulary:
        add_vocabulary(writer, shape.vocabulary, shape.pre, hp.n_vocab)
    else:
        writer.add_tokenizer_model("no_vocab")
    kinds = [_kind(need, kind, hp) for need in needs]
    for need, dtype in zip(needs, kinds, strict=True):
        raw = GGMLQuantizationType[dtype.name.upper()]
        *outer, row = need.shape
        stored = need.shape if dtype is F32 else (*outer, dtype.row_nbytes(row))
        numpy_type = np.dtype(np.float32 if dtype is F32 else np.uint8)
        nbytes = _nbytes(need, dtype)
        writer.add_tensor_info(need.name, stored, numpy_type, nbytes, raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    at = _aligned(os.path.getsize(partial))
    with partial.open("r+b") as file, ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as threads:
        jobs = []
        for need, dtype in zip(needs, kinds, strict=True):
            nbytes = _nbytes(need, dtype)
            if not empty:
                blocks = _blocks(need, dtype)
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
    hp = _hparams(name, SHAPES[name], n_layer)
    needs = {need.name: need for need in _needs(SHAPES[name], hp)}
    weights = {name: WeightSpec(need.shape, _kind(need, kind, hp)) for name, need in needs.items()}

    def source(name: str) -> npt.NDArray[Any]:
        need, dtype = needs[name], weights[name].dtype
        raw = np.resize(np.asarray(_blocks(need, dtype)), _nbytes(need, dtype))
        return raw.view(np.float32 if dtype is F32 else np.uint8).reshape(*need.shape[:-1], -1)

    return ModelSpec(hp, weights), source


def _adder(writer: GGUFWriter, value: Key) -> Callable[[str, Any], None]:
    if isinstance(value, tuple):
        return writer.add_array
    if isinstance(value, bool):
        return writer.add_bool
    if isinstance(value, str):
        return writer.add_string
    return writer.add_uint32 if isinstance(value, int) else writer.add_float32


def _hparams(name: str, shape: Shape, n_layer: int | None) -> HParams:
    """Return what the keys say, as read from a file that has them."""
    keys = shape.with_layers(n_layer)
    vocab, width, blocks = (
        int(keys[key])  # type: ignore[arg-type]
        for key in ("vocab_size", "embedding_length", "block_count")
    )
    table = GgufTensor("", F32, (vocab, width), 0, 0)
    metadata = {
        "general.architecture": shape.arch,
        "general.name": name,
        **{f"{shape.arch}.{key}": value for key, value in keys.items()},
    }
    tensors = dict.fromkeys(["token_embd.weight", *map(str, range(blocks))], table)
    return read_hparams(GgufFile(name, 3, metadata, tensors, np.empty(0, np.uint8)))


def _needs(shape: Shape, hp: HParams) -> Iterator[WeightNeed]:
    for need in model_needs(hp):
        if not need.optional or need.name.endswith(shape.extras):
            yield need


def _kind(need: WeightNeed, kind: str, hp: HParams) -> DType:
    """Return the type of a tensor in a file of a type."""
    if not need.matrix or any(part in need.name for part in _PLAIN):
        return F32
    if kind != "q4_k_m":
        return dtype_by_name(kind)
    if hp.arch == "gpt-oss" and "_exps" in need.name:
        return dtype_by_name("mxfp4")  # as published
    found = _mixed(need, hp)
    if need.shape[-1] % dtype_by_name(found).block:
        found = _NARROW[found]
    return dtype_by_name(found)


_FEW: Final = 8
_TIED: Final = ("gemma2", "gemma3", "mamba2")
_NARROW: Final = {"q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0"}
"""What llama.cpp takes where rows are not whole blocks of 256."""


def _mixed(need: WeightNeed, hp: HParams) -> str:
    """Return the type of llama.cpp's mix, before rows are looked at."""
    name, has_few_experts = need.name, hp.n_expert == _FEW
    is_tied = need.name == "token_embd.weight" and hp.arch in _TIED
    if name == "output.weight" or is_tied:
        return "q6_k"
    if has_few_experts and ("attn_v." in name or "attn_k." in name):
        return "q8_0"
    if "attn_qkv" in name or (has_few_experts and "attn_output" in name):
        return "q5_k"
    if "attn_v." in name or "ffn_down" in name:
        # The first and the last eighth of the blocks, and each third between.
        layer, eighth = int(name.split(".")[1]), hp.n_layer // 8
        inner = layer - eighth
        if inner < 0 or layer >= hp.n_layer - eighth or inner % 3 == 2:
            return "q6_k"
    return "q4_k"


def _nbytes(need: WeightNeed, dtype: DType) -> int:
    *outer, row = need.shape
    return prod(outer) * dtype.row_nbytes(row)


def _aligned(at: int) -> int:
    return -(-at // 32) * 32


def _blocks(need: WeightNeed, dtype: DType) -> memoryview:
    """Return bytes that a tensor repeats."""
    if len(need.shape) == 1 or not (need.matrix or "conv1d" in need.name):
        return _vector(need)
    width = 1 << 8 if need.name == "token_embd.weight" else need.shape[-1]
    return _pool(dtype, width, prod(need.shape) if dtype is F32 else 0)


def _vector(need: WeightNeed) -> memoryview:
    """Return a vector: decay and its bias as of trained models, gates near 0, norms 1."""
    rng, n = np.random.default_rng(len(need.name)), prod(need.shape)
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
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.expert_files", description=__doc__
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("model", choices=SHAPES)
    parser.add_argument("type")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--vocabulary", action="store_true", help="one of its kind and size")
    options = parser.parse_args()
    began = time.perf_counter()
    nbytes = write_model(
        options.file,
        options.model,
        options.type,
        options.layers,
        vocabulary=options.vocabulary,
    )
    seconds = time.perf_counter() - began
    sys.stdout.write(f"{options.file}: {nbytes / 1e9:.2f} GB in {seconds:.1f} s\n")


if __name__ == "__main__":
    main()
