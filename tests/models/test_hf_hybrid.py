"""Folders of qwen3_next are the models that GGUF files of the same weights are."""

import json

import numpy as np
import pytest

from ggsched.errors import ModelError
from ggsched_llm.load import load_model
from ggsched_llm.weights import converted_array
from tests.models.helpers import Runner
from tests.models.reference_models import REFERENCES, V, shapes, write_reference

pytest.importorskip("safetensors")
from safetensors.numpy import save_file

MODEL = REFERENCES["qwen3next-f32"]
SIZES = MODEL.sizes
GROUPS, HEADS, WIDTH = SIZES["groups"], SIZES["v_heads"], SIZES["width"]
NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
    "attn_norm.weight": "input_layernorm.weight",
    "post_attention_norm.weight": "post_attention_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
    "ssm_conv1d.weight": "linear_attn.conv1d.weight",
    "ssm_dt.bias": "linear_attn.dt_bias",
    "ssm_a": "linear_attn.A_log",
    "ssm_norm.weight": "linear_attn.norm.weight",
    "ssm_out.weight": "linear_attn.out_proj.weight",
    "ssm_ba.weight": "linear_attn.in_proj_ba.weight",
    "ffn_gate_inp.weight": "mlp.gate.weight",
    "ffn_gate_inp_shexp.weight": "mlp.shared_expert_gate.weight",
    "ffn_gate_shexp.weight": "mlp.shared_expert.gate_proj.weight",
    "ffn_up_shexp.weight": "mlp.shared_expert.up_proj.weight",
    "ffn_down_shexp.weight": "mlp.shared_expert.down_proj.weight",
}
CONFIG = {
    "model_type": "qwen3_next",
    "max_position_embeddings": 256,
    "hidden_size": SIZES["embd"],
    "num_hidden_layers": SIZES["layers"],
    "intermediate_size": SIZES["ff"],
    "num_attention_heads": SIZES["heads"],
    "num_key_value_heads": SIZES["kv"],
    "head_dim": SIZES["dim"],
    "partial_rotary_factor": 0.25,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "vocab_size": V,
    "num_experts": SIZES["experts"],
    "num_experts_per_tok": 2,
    "moe_intermediate_size": SIZES["expert_ff"],
    "shared_expert_intermediate_size": SIZES["shared"],
    "linear_conv_kernel_dim": SIZES["taps"],
    "linear_key_head_dim": WIDTH,
    "linear_value_head_dim": SIZES["across"],
    "linear_num_key_heads": GROUPS,
    "linear_num_value_heads": HEADS,
    "full_attention_interval": 4,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
}


def theirs(name, array):
    """Return a weight as the transformers library keeps it."""
    if name.endswith("norm.weight") and "ssm_norm" not in name:
        return array - 1
    if name == "ssm_a":
        return np.log(-array)
    if name == "ssm_conv1d.weight":
        return array[:, None]
    return array[None] if name == "ffn_gate_inp_shexp.weight" else array


def together(qkv, gate):
    """Return queries, keys, values and gates of each head of keys, one after the other."""
    keys, (n, embd) = GROUPS * WIDTH, qkv.shape
    parts = qkv[:keys], qkv[keys : 2 * keys], qkv[2 * keys :], gate
    assert n == 2 * keys + len(gate)
    return np.concatenate([p.reshape(GROUPS, -1, embd) for p in parts], 1).reshape(-1, embd)


def write_folder(folder, file, config=None, drop=""):
    arrays = {name: converted_array(file, name) for name in shapes(MODEL)}
    items = {"mtp.norm.weight": np.zeros(3, np.float32)}
    for name, array in arrays.items():
        short = ".".join(name.split(".")[2:]) if name.startswith("blk.") else name
        stem = f"model.layers.{name.split('.')[1]}." if name.startswith("blk.") else ""
        if short in NAMES:
            items[stem + NAMES[short]] = theirs(short, array)
        elif short.endswith("_exps.weight"):
            kind = short.split("_")[1]
            for i, one in enumerate(array):
                items[f"{stem}mlp.experts.{i}.{kind}_proj.weight"] = one
        elif short == "attn_qkv.weight":
            gate = arrays[name.replace("qkv", "gate")]
            items[f"{stem}linear_attn.in_proj_qkvz.weight"] = together(array, gate)
    items = {k: np.ascontiguousarray(a) for k, a in items.items() if k != drop}
    rest = sorted(items.items())
    for i in range(2):
        save_file(dict(rest[i::2]), folder / f"model-{i}.safetensors")
    (folder / "config.json").write_text(json.dumps({**CONFIG, **(config or {})}))
    return folder


@pytest.fixture
def file(tmp_path):
    return load_model(write_reference(tmp_path / "m.gguf", "qwen3next-f32"))


def test_a_folder_is_the_file(tmp_path, file):
    folder = load_model(write_folder(tmp_path, file.file))
    ours, recurrent = file.hparams, folder.hparams.recurrent
    assert (recurrent, folder.hparams.rope) == (ours.recurrent, ours.rope)
    tokens = [3, 1, 4, 1, 5, 9, 2]
    found, wanted = Runner(folder).feed(tokens), Runner(file).feed(tokens)
    np.testing.assert_allclose(found, wanted, atol=2e-5)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"linear_num_value_heads": 4}, "has shape"),
        ({"linear_value_head_dim": None}, "linear_value_head_dim is"),
        ({"partial_rotary_factor": "half"}, "partial_rotary_factor is"),
        ({"decoder_sparse_step": 2}, "decoder_sparse_step"),
        ({"layer_types": ["linear_attention"] * 3}, "recurrent_layers"),
    ],
    ids=str,
)
def test_what_contradicts_is_refused(tmp_path, file, config, message):
    with pytest.raises(ModelError, match=message):
        load_model(write_folder(tmp_path, file.file, config))


def test_a_weight_that_is_missing_is_named(tmp_path, file):
    write_folder(tmp_path, file.file, drop="model.layers.0.linear_attn.A_log")
    with pytest.raises(ModelError, match=r"blk\.0\.ssm_a"):
        load_model(tmp_path)
