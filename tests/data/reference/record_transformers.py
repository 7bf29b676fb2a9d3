"""Record the logits of the transformers library on small folders of Hugging Face.

pip install torch transformers==5.24.0 safetensors
PYTHONPATH=. python tests/data/reference/record_transformers.py
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors import safe_open
from safetensors.numpy import save_file

from tests.models.folder_models import RECORDED, drawn

COMMON = {
    "vocab_size": 64, "hidden_size": 64, "num_hidden_layers": 3, "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6, "num_attention_heads": 4, "bos_token_id": None, "eos_token_id": None,
    "pad_token_id": None,
}  # fmt: skip
PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
EXPERTS = {
    "n_routed_experts": 12, "num_experts_per_tok": 3, "moe_intermediate_size": 32,
    "n_shared_experts": 2, "first_k_dense_replace": 1, "routed_scaling_factor": 1.5,
    "intermediate_size": 96,
}  # fmt: skip
LATENT = {
    **EXPERTS, "kv_lora_rank": 64, "qk_rope_head_dim": 16, "v_head_dim": 24, "qk_nope_head_dim": 32,
    "num_key_value_heads": 4, "n_group": 4, "topk_group": 2,
    "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "mscale": 0.7,
        "mscale_all_dim": 0.7, "original_max_position_embeddings": 64,
    },
}  # fmt: skip
HEADS = {"num_key_value_heads": 2, "head_dim": 32}
MODELS = {
    "deepseek_v2": (
        "DeepseekV2",
        {**LATENT, "q_lora_rank": None, "topk_method": "group_limited_greedy"},
    ),
    "deepseek_v3": ("DeepseekV3", {**LATENT, "q_lora_rank": 32}),
    "glm4_moe": (
        "Glm4Moe",
        {
            **EXPERTS, **HEADS, "attention_bias": True, "use_qk_norm": True,
            "rope_parameters": {**PLAIN, "partial_rotary_factor": 0.5},
        },
    ),
    "minimax_m2": (
        "MiniMaxM2",
        {
            **HEADS, "intermediate_size": 32, "num_local_experts": 8, "num_experts_per_tok": 2,
            "rotary_dim": 16, "rope_parameters": PLAIN,
        },
    ),
    "qwen3_5_text": (
        "Qwen3_5",
        {
            **HEADS, "intermediate_size": 96, "linear_key_head_dim": 64,
            "linear_value_head_dim": 64, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "rope_parameters": {
                **PLAIN, "partial_rotary_factor": 0.25, "mrope_section": [2, 1, 1],
                "mrope_interleaved": True,
            },
        },
    ),
}  # fmt: skip


def record(kind, folder):
    """Return what a model is, tokens, and logits."""
    name, fields = MODELS[kind]
    config_of = getattr(transformers, f"{name}{'Text' if name == 'Qwen3_5' else ''}Config")
    model_of = getattr(transformers, f"{name}ForCausalLM")
    model_of(config_of(**COMMON, **fields)).float().save_pretrained(folder)
    path = folder / "model.safetensors"
    with safe_open(path, "np") as file:
        shapes = {key: file.get_slice(key).get_shape() for key in file.keys()}  # noqa: SIM118
    weights = {key: drawn(kind, key, shape) for key, shape in shapes.items()}
    save_file(weights, path, metadata={"format": "pt"})
    model = model_of.from_pretrained(folder, dtype=torch.float32).eval()
    tokens = np.random.default_rng(0).integers(0, COMMON["vocab_size"], 24)
    with torch.no_grad():
        logits = model(torch.tensor(tokens[None])).logits[0].numpy()
    said = {"config": json.loads((folder / "config.json").read_text()), "shapes": shapes}
    return {kind: json.dumps(said), f"{kind}.tokens": tokens, f"{kind}.logits": logits}


def main():
    found = {}
    for kind in MODELS:
        with tempfile.TemporaryDirectory() as folder:
            found |= record(kind, Path(folder))
        sys.stderr.write(f"{kind}: standard deviation {found[f'{kind}.logits'].std():.2f}\n")
    np.savez_compressed(RECORDED, **found)


if __name__ == "__main__":
    main()
