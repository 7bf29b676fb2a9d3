"""Hyperparameters: each key is checked, and the message names it."""

import math

import pytest

from ggsched.errors import ModelError
from ggsched.ir.rope import rope_table
from ggsched_llm.layers import rope_params
from ggsched_llm.load import load_model
from ggsched_llm.read_hparams import read_hparams
from tests.models.helpers import ORACLE, tiny_gguf

NAN, INF = float("nan"), float("inf")
BIG = 2**32 - 1
COUNTS = [
    "context_length",
    "embedding_length",
    "block_count",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "rope.dimension_count",
    "vocab_size",
]
NEEDED = ["context_length", "embedding_length", "block_count", "attention.head_count"]
NEEDED += ["attention.layer_norm_rms_epsilon"]
EXPERTS = ["expert_count", "expert_used_count"]


def hparams_of(tmp_path, arch="llama", meta=None, drop=(), **sizes):
    full = {f"{arch}.{k}": v for k, v in (meta or {}).items()}
    path = tiny_gguf(
        tmp_path / "m.gguf", arch, meta=full, drop=[f"{arch}.{k}" for k in drop], **sizes
    )
    return load_model(path).hparams


def refused(tmp_path, key, arch="llama", **how):
    with pytest.raises(ModelError) as info:
        hparams_of(tmp_path, arch, **how)
    assert f"key {arch}.{key}: " in str(info.value)
    return str(info.value)


@pytest.mark.parametrize("key", COUNTS)
@pytest.mark.parametrize("value", [0, BIG, 7.0, "7", True, [7, 7], []])
def test_absurd_count(tmp_path, key, value):
    refused(tmp_path, key, meta={key: value})


@pytest.mark.parametrize("key", [*NEEDED, "feed_forward_length"])
def test_missing_key(tmp_path, key):
    assert "is missing" in refused(tmp_path, key, drop=[key])


@pytest.mark.parametrize("arch", ["qwen3moe", "gpt-oss"])
@pytest.mark.parametrize("key", EXPERTS)
def test_experts(tmp_path, arch, key):
    assert "is missing" in refused(tmp_path, key, arch, drop=[key])
    for value in (0, BIG, 1.5):
        refused(tmp_path, key, arch, meta={key: value})


def test_more_experts_used_than_there_are(tmp_path):
    text = refused(tmp_path, "expert_used_count", "qwen3moe", meta={"expert_used_count": 5})
    assert "only 4 experts" in text


@pytest.mark.parametrize("value", [0, BIG, -1.0])
def test_window(tmp_path, value):
    key = "attention.sliding_window"
    refused(tmp_path, key, "gpt-oss", meta={key: value})
    refused(tmp_path, key, "gpt-oss", drop=[key])


@pytest.mark.parametrize("value", [0.0, -1e-5, NAN, INF, -INF, 2.0, 1, "1e-5"])
def test_epsilon(tmp_path, value):
    key = "attention.layer_norm_rms_epsilon"
    refused(tmp_path, key, meta={key: value})


@pytest.mark.parametrize("value", [0.0, -1e4, 1.0, NAN, INF, 1e30, 10000, [1e4]])
def test_rope_base(tmp_path, value):
    refused(tmp_path, "rope.freq_base", meta={"rope.freq_base": value})


@pytest.mark.parametrize(
    ("arch", "key", "value", "word"),
    [
        ("llama", "attention.head_count_kv", 3, "must divide the 4"),
        ("llama", "attention.key_length", 7, "must be even"),
        ("llama", "attention.value_length", 16, "only heads as wide as the 8"),
        ("llama", "rope.dimension_count", 7, "must be even"),
        ("llama", "rope.dimension_count", 10, "at most the head's width of 8"),
        ("llama", "rope.dimension_count", 4, "rotates whole heads"),
        ("llama", "vocab_size", 9, "token_embd.weight has 8 rows"),
        ("llama", "block_count", 4000, "there are 12 tensors"),
        ("llama", "attention.head_count", [4, 4], "a value per layer"),
        ("llama", "rope.scaling.type", "longrope", "supported: none, linear, yarn"),
        ("llama", "rope.scaling.type", 3, "supported: none, linear, yarn"),
        ("llama", "rope.scaling.factor", -2.0, "must be from 0"),
        ("llama", "rope.scaling.factor", 1e-9, "at least 0.001"),
    ],
)
def test_contradictions(tmp_path, arch, key, value, word):
    assert word in refused(tmp_path, key, arch, meta={key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("yarn_beta_fast", 0.0),
        ("yarn_beta_slow", NAN),
        ("yarn_ext_factor", 2.0),
        ("attn_factor", 0.0),
        ("original_context_length", 0),
        ("yarn_log_multiplier", 0.1),
        ("factor", NAN),
    ],
)
def test_yarn_keys(tmp_path, key, value):
    meta = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, f"rope.scaling.{key}": value}
    refused(tmp_path, f"rope.scaling.{key}", "gpt-oss", meta=meta)


def test_block_that_is_not_counted(tmp_path):
    text = refused(tmp_path, "block_count", meta={"block_count": 1}, layers=2)
    assert "there is a tensor 'blk.1.attn_norm.weight'" in text


@pytest.mark.parametrize("value", ["mamba", "", "llama\n", 7, ["llama"]])
def test_unknown_architecture(tmp_path, value):
    path = tiny_gguf(tmp_path / "m.gguf", meta={"general.architecture": value})
    with pytest.raises(ModelError, match="is not supported .supported: llama, qwen3moe, gpt-oss"):
        load_model(path)


def test_no_architecture(tmp_path):
    path = tiny_gguf(tmp_path / "m.gguf", drop=["general.architecture"])
    with pytest.raises(ModelError, match="general.architecture is missing"):
        load_model(path)


def test_embedding_table_is_needed(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(tiny_gguf(path).read_bytes().replace(b"token_embd", b"token_ebmd"))
    with pytest.raises(ModelError, match="token_embd.weight"):
        load_model(path)


def test_defaults(tmp_path):
    optional = ["attention.head_count_kv", "rope.freq_base", "rope.dimension_count", "vocab_size"]
    optional += ["attention.value_length"]
    with pytest.raises(ModelError, match=r"attn_k.weight': has the wrong shape: needs \[32, 32\]"):
        hparams_of(tmp_path, drop=optional)
    hp = hparams_of(tmp_path, drop=optional[1:])
    assert (hp.rope.base, hp.rope.n_dims, hp.n_vocab) == (10000.0, 8, 8)
    with pytest.raises(ModelError, match=r"must divide the 32 of embedding_length"):
        hparams_of(tmp_path, drop=["attention.key_length"], meta={"attention.head_count": 6})
    used = hparams_of(tmp_path, "qwen3moe", {"feed_forward_length": 64}, EXPERTS[:0])
    assert used.n_ff == 32
    derived = hparams_of(
        tmp_path, "qwen3moe", {"feed_forward_length": 64}, ["expert_feed_forward_length"]
    )
    assert derived.n_ff == 32


def test_of_the_recorded_models():
    hp = load_model(ORACLE / "gptoss-tiny-f32.gguf").hparams
    assert (hp.n_layer, hp.n_head, hp.n_head_kv, hp.head_dim) == (3, 4, 2, 16)
    assert [hp.is_windowed(i) for i in range(3)] == [True, False, True]
    assert hp.rope.pairing == "halves"
    assert load_model(ORACLE / "llama-tiny-f16.gguf").hparams.rope.pairing == "adjacent"


def test_linear_scaling_halves_the_angles(tmp_path):
    plain = hparams_of(tmp_path).rope
    scaled = hparams_of(tmp_path, meta={"rope.scaling.factor": 2.0}).rope
    off = hparams_of(tmp_path, meta={"rope.scaling.type": "none", "rope.scaling.factor": 2.0}).rope
    before, after = rope_table(rope_params(plain)), rope_table(rope_params(scaled))
    assert after[0] == pytest.approx([f / 2 for f in before[0]])
    assert off == plain
    old = hparams_of(tmp_path, meta={"rope.scale_linear": 2.0}).rope
    assert old == scaled


def test_yarn_keeps_fast_angles_and_scales_slow_ones(tmp_path):
    meta = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 32.0,
        "rope.scaling.original_context_length": 4096,
        "rope.freq_base": 150000.0,
    }
    rope = hparams_of(tmp_path, "gpt-oss", meta).rope
    assert (rope.ext_factor, rope.n_ctx_orig, rope.freq_scale) == (1.0, 4096, 1 / 32)
    scaled, magnitude = rope_table(rope_params(rope))
    plain = [150000.0 ** (-2 * i / 8) for i in range(4)]
    assert scaled[0] == pytest.approx(plain[0])
    assert scaled[3] == pytest.approx(plain[3] / 32)
    assert magnitude == pytest.approx(1 + 0.1 * math.log(32))


def test_attention_scale(tmp_path):
    assert hparams_of(tmp_path).attn_scale == pytest.approx(8**-0.5)
    assert hparams_of(tmp_path, meta={"attention.scale": 0.5}).attn_scale == 0.5
    assert hparams_of(tmp_path, meta={"attention.scale": 0.0}).attn_scale == pytest.approx(8**-0.5)


def test_read_hparams_is_what_load_model_uses():
    model = load_model(ORACLE / "qwen3moe-tiny-f32.gguf")
    assert read_hparams(model.file) == model.hparams
