"""Weights of small folders of Hugging Face, whose logits the transformers library computed."""

import json
from pathlib import Path
from zlib import crc32

import numpy as np

RECORDED = Path(__file__).parent.parent / "data" / "reference" / "folders.npz"
KINDS = ("deepseek_v2", "deepseek_v3", "glm4_moe", "minimax_m2", "qwen3_5_text")


def drawn(kind, name, shape):
    """Return a weight, which follows from its name."""
    rng = np.random.default_rng(crc32(name.encode()))
    if "norm" in name:
        is_off_one = kind.startswith("qwen3_5") and "linear_attn" not in name
        return rng.uniform(0.75, 1.25, shape).astype(np.float32) - np.float32(is_off_one)
    amp = 0.25 if len(shape) == 1 else np.sqrt(3.0 / shape[-1])
    return rng.uniform(-amp, amp, shape).astype(np.float32)


def write_folder(folder, kind):
    """Write a folder; return what was recorded: tokens and logits."""
    from safetensors.numpy import save_file

    with np.load(RECORDED) as arrays:
        said = json.loads(str(arrays[kind]))
        recorded = {key: arrays[f"{kind}.{key}"] for key in ("tokens", "logits")}
    weights = {name: drawn(kind, name, shape) for name, shape in said["shapes"].items()}
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(said["config"]))
    return recorded
