"""GGUF files of known shapes with random weights, which both sides read."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter

from benchmarks.gguf_sizes import add_sizes, finish
from ggsched.ir.dtype import BF16, F16, F32, DType, dtype_by_name
from ggsched_llm.gguf_file import GGUF_CODES
from ggsched_llm.graph import model_needs
from ggsched_llm.hparams import HParams, RopeParams
from ggsched_testing.generators.values import random_blocks


def _llama(name: str, *, vocab: int, embd: int, layers: int, heads: int, ff: int) -> HParams:
    rope = RopeParams(64, "adjacent", 5e5)
    return HParams(
        "llama", name, 2048, vocab, embd, layers, heads, 8, 64, ff, 1e-5, 0.125, rope
    )  # fmt: skip


MODELS: Final[Mapping[str, HParams]] = {
    "tiny": _llama("tiny", vocab=1024, embd=512, layers=4, heads=8, ff=1024),
    "110m": _llama("110m", vocab=4096, embd=1024, layers=8, heads=16, ff=2816),
    "1b": _llama("1b", vocab=128256, embd=2048, layers=16, heads=32, ff=8192),
    "8b": HParams(
        "llama", "8b", 8192, 128256, 4096, 32, 32, 8, 128, 14336, 1e-5, 128**-0.5,
        RopeParams(128, "adjacent", 5e5),
    ),
    "moe": HParams(
        "qwen3moe", "moe", 2048, 4096, 1024, 8, 16, 8, 64, 768, 1e-6, 0.125,
        RopeParams(64, "halves", 1e6), 32, 4,
    ),
}  # fmt: skip
"""By name. In a step of ``tiny`` the host's own time counts. ``moe`` has experts of a packed type
and other matrices of bf16."""

_POOL: Final = 1 << 20
"""Elements that are drawn; larger tensors repeat them."""


def write_model(
    folder: Path,
    name: str,
    dtype: str,
    *,
    n_layer: int = 0,
    damped: tuple[int, float] = (0, 1.0),
    seed: int = 1,
) -> Path:
    """Write a model whose matrices (of ``moe``: experts) have a type; keep a file that is there.

    Args:
        n_layer: Its first blocks only, which are those of the whole model; 0 for all.
        damped: From which block on what blocks add is multiplied by a factor. With a small one the
            first blocks alone mostly predict what all of them do.
    """
    hp = MODELS[name]
    first, factor = damped
    kinds = [name, dtype, *([f"first{n_layer}"] if n_layer else [])]
    hp = replace(hp, n_layer=n_layer or hp.n_layer)
    kinds += [f"{factor:g}from{first}"] if first else []
    kinds += [f"seed{seed}"] if seed != 1 else []
    path = folder / f"{'-'.join(kinds)}.gguf"
    if path.exists():
        return path
    partial = path.with_suffix(".partial")
    writer = GGUFWriter(partial, hp.arch)
    add_sizes(writer, hp)
    if hp.n_expert:
        writer.add_expert_count(hp.n_expert)
        writer.add_expert_used_count(hp.n_expert_used)
        writer.add_expert_feed_forward_length(hp.n_ff)
    writer.add_tokenizer_model("no_vocab")
    rng = np.random.default_rng(seed)
    for need in model_needs(hp):
        if need.optional and (need.name != "output.weight" or name == "1b"):
            continue
        if not need.matrix and len(need.shape) == 1:
            writer.add_tensor(need.name, np.ones(need.shape, np.float32))
            continue
        kind = dtype_by_name(dtype)
        if hp.n_expert and len(need.shape) < 3:
            kind = BF16 if need.matrix else F32
        blk, _, part = need.name.removeprefix("blk.").partition(".")
        is_damped = part.startswith(("attn_output", "ffn_down")) and int(blk) >= first > 0
        values = _values(kind, need.shape, rng, factor if is_damped else 1.0)
        writer.add_tensor(need.name, values, raw_dtype=GGMLQuantizationType(GGUF_CODES[kind]))
    finish(writer)
    _read_back(partial)
    partial.rename(path)
    return path


def _read_back(path: Path) -> None:
    """Have the pages of a file in memory as reading it leaves them.

    Writing tensor by tensor leaves pages that lie apart, of which a thread on Zen 4 read q4_0 at 18
    GB/s where it reads 27 of a file that came from disk.
    """
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while file.read(1 << 20):
            pass


def _values(
    kind: DType, shape: tuple[int, ...], rng: np.random.Generator, factor: float
) -> np.ndarray:
    """Return random weights as the file has them."""
    rows = int(np.prod(shape[:-1]))
    drawn = min(rows, max(1, _POOL // shape[-1]))
    if kind.is_quantized:
        packed = random_blocks(kind, (drawn, shape[-1]), 0.05 * factor, rng)
    else:
        plain = rng.standard_normal((drawn, shape[-1]), dtype=np.float32)
        plain *= np.float32(0.02 * factor)
        packed = plain
        if kind is F16:
            packed = plain.astype(np.float16)
        elif kind is BF16:
            packed = (plain.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    repeated = np.tile(packed, (-(-rows // drawn), 1))[:rows]
    return repeated.reshape(*shape[:-1], -1)
