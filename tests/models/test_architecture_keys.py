"""Keys that only some architectures have: contradictions are refused by name."""

import pytest

from ggsched.errors import ModelError
from ggsched_llm.load import load_model
from tests.models.reference_models import write_reference


@pytest.fixture(scope="module")
def path_of(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    return lambda name: write_reference(folder / f"{name}.gguf", name)


@pytest.mark.parametrize(
    ("name", "key", "value", "word"),
    [
        ("gemma2-f32", "gemma2.attn_logit_softcapping", 0.0, "must be from 0.001"),
        ("gemma2-f32", "gemma2.attention.sliding_window_pattern", (True,), "there are 3 layers"),
        ("gemma3-f32", "gemma3.attention.sliding_window", -1, "must be from 0"),
        ("gemma3-f32", "gemma3.rope.freq_base_swa", 1, "must be a floating-point number"),
        ("phi3-long-f32", "phi3.rope.scaling.original_context_length", 0, "must be from 1"),
        ("phi3-long-f32", "phi3.rope.scaling.type", "llama3", "supported: none, linear, yarn"),
        ("qwen2moe-f32", "qwen2moe.expert_shared_feed_forward_length", 0, "must be from 1"),
        ("deepseek2-f32", "deepseek2.attention.key_length", 64, "must be the 64 of kv_lora_rank"),
        (
            "deepseek2-f32",
            "deepseek2.attention.key_length_mla",
            16,
            "16 elements of it are rotated",
        ),
        ("deepseek2-f32", "deepseek2.expert_gating_func", 4, "supported: 1, 2"),
        ("deepseek2-f32", "deepseek2.expert_weights_norm", 1, "must be a truth value"),
    ],
)
def test_refused(path_of, name, key, value, word):
    with pytest.raises(ModelError) as info:
        load_model(path_of(name), overrides={key: value})
    assert f"key {key}: " in str(info.value)
    assert word in str(info.value)


def test_groups_of_experts_are_refused(path_of):
    groups = {"deepseek2.expert_group_count": 4, "deepseek2.expert_group_used_count": 2}
    with pytest.raises(ModelError, match="groups of experts are not supported"):
        load_model(path_of("deepseek2-f32"), overrides=groups)
    every = groups | {"deepseek2.expert_group_used_count": 4}
    assert load_model(path_of("deepseek2-f32"), overrides=every).hparams.n_expert == 8


def test_layers_that_are_windowed(path_of):
    hp = load_model(path_of("gemma3-f32")).hparams
    assert [hp.is_windowed(i) for i in range(hp.n_layer)] == [True] * 5 + [False, True]
    assert (hp.rope_of(0).freq_scale, hp.rope_of(5).freq_scale) == (1.0, 0.125)
    other = {"gemma3.attention.sliding_window_pattern": (False, True) * 3 + (False,)}
    hp = load_model(path_of("gemma3-f32"), overrides=other).hparams
    assert [hp.is_windowed(i) for i in range(hp.n_layer)] == [False, True] * 3 + [False]
