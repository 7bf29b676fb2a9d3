"""A llama of about 85 million random weights as a GGUF file, which both sides read."""

from pathlib import Path
from typing import Final

import numpy as np
from gguf import GGUFWriter

from benchmarks.gguf_sizes import add_sizes, finish
from ggsched_llm.graph import model_needs
from ggsched_llm.hparams import HParams, RopeParams

SIZES: Final = HParams(
    "llama", "llama-85m", 512, 4096, 1024, 6, 16, 16, 64, 2816, 1e-5, 0.125,
    RopeParams(64, "adjacent", 10000.0),
)  # fmt: skip
"""The shape of the baseline's dense model with 6 layers: 171 MB of f16, or 342 of f32."""


def write_random_gguf(
    path: Path, hp: HParams = SIZES, *, is_half: bool = True, seed: int = 1
) -> Path:
    """Write a llama with matrices of f16, or f32, and norms of f32, without a vocabulary."""
    rng = np.random.default_rng(seed)
    writer = GGUFWriter(path, hp.arch)
    add_sizes(writer, hp)
    writer.add_file_type(int(is_half))
    writer.add_tokenizer_model("no_vocab")
    for need in model_needs(hp):
        if need.optional and need.name != "output.weight":
            continue
        values = rng.standard_normal(need.shape, dtype=np.float32)
        if need.matrix:
            values *= np.float32(need.shape[-1] ** -0.5)
            writer.add_tensor(need.name, values.astype(np.float16) if is_half else values)
        else:
            writer.add_tensor(need.name, np.abs(values) + np.float32(0.5))
    finish(writer)
    return path
