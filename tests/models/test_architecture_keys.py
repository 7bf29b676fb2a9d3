"""Keys that only some architectures have: contradictions are refused by name."""

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from ggsched.errors import ModelError
from ggsched_llm.load import load_model, weight_array
from ggsched_llm.weights import converted_array
from tests.models.helpers import stored, write_gguf
from tests.models.reference_models import REFERENCES, metadata, write_reference


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
        ("glm4moe-f32", "glm4moe.rope.dimension_sections", (8, 8, 8, 8), "needs 4, the last"),
        ("glm4moe-f32", "glm4moe.expert_shared_count", 0, "must be from 1"),
        ("minimax-m2-f32", "minimax-m2.expert_gating_func", 3, "supported: 1, 2"),
        ("deepseek2-f32", "deepseek2.expert_weights_norm", 1, "must be a truth value"),
    ],
)
def test_refused(path_of, name, key, value, word):
    with pytest.raises(ModelError) as info:
        load_model(path_of(name), overrides={key: value})
    assert f"key {key}: " in str(info.value)
    assert word in str(info.value)


@pytest.mark.parametrize(
    ("groups", "used", "key", "word"),
    [
        (5, 2, "expert_group_count", "must divide the 12 of expert_count"),
        (4, 5, "expert_group_used_count", "must be from 1 to 4"),
        (
            4,
            1,
            "expert_group_used_count",
            "needs 4 experts (expert_used_count), groups have 3",
        ),
        (1, 2, "expert_group_used_count", "must be from 0 to 1"),
    ],
)
def test_groups_of_experts_that_cannot_be(path_of, groups, used, key, word):
    keys = {"deepseek2.expert_group_count": groups, "deepseek2.expert_group_used_count": used}
    with pytest.raises(ModelError) as info:
        load_model(path_of("deepseek3-f32"), overrides=keys)
    assert f"key deepseek2.{key}: " in str(info.value)
    assert word in str(info.value)


@pytest.mark.parametrize("kind", [Kind.F32, Kind.Q8_0])
def test_keys_and_values_of_latent_rows_in_one_tensor(path_of, tmp_path, kind):
    """Files from before 2025: the same model, but for what is quantised along another axis."""
    name, arch = "deepseek2-f32", "deepseek2."
    whole = load_model(path_of(name))
    hp, latent = whole.hparams, whole.hparams.latent
    meta = metadata(name, REFERENCES[name])
    meta[f"{arch}attention.head_count_kv"] = hp.n_head
    for part in ("key", "value"):
        meta[f"{arch}attention.{part}_length"] = meta.pop(f"{arch}attention.{part}_length_mla")
    arrays = {n: converted_array(whole.file, n) for n in whole.file.tensors}
    for layer in range(hp.n_layer):
        k, v = (arrays.pop(f"blk.{layer}.attn_{part}_b.weight") for part in "kv")
        both = np.concatenate([k.transpose(0, 2, 1), v], axis=1).reshape(-1, latent.rank)
        arrays[f"blk.{layer}.attn_kv_b.weight"] = both
    tensors = {n: stored(a, kind if "_kv_b" in n else Kind.F32) for n, a in arrays.items()}
    old = load_model(write_gguf(tmp_path / "old.gguf", meta, tensors))
    assert old.hparams == hp
    near = 0 if kind is Kind.F32 else 3e-3
    for n, weight in whole.spec.weights.items():
        found = old.spec.weights[n]
        assert found.shape == weight.shape
        assert found.nbytes == weight_array(old, n).nbytes
        values = converted_array(old.file, n)
        np.testing.assert_allclose(values, converted_array(whole.file, n), rtol=0, atol=near)
    del tensors["blk.1.attn_kv_b.weight"]
    with pytest.raises(ModelError, match=r"blk\.1\.attn_k_b\.weight'"):
        load_model(write_gguf(tmp_path / "old.gguf", meta, tensors))
    tensors["blk.1.attn_kv_b.weight"] = stored(both[1:], Kind.F32)
    with pytest.raises(ModelError, match=r"attn_kv_b\.weight'.*wrong shape: needs \[224, 64\]"):
        load_model(write_gguf(tmp_path / "old.gguf", meta, tensors))


def test_layers_that_are_windowed(path_of):
    hp = load_model(path_of("gemma3-f32")).hparams
    assert [hp.is_windowed(i) for i in range(hp.n_layer)] == [True] * 5 + [False, True]
    assert (hp.rope_of(0).freq_scale, hp.rope_of(5).freq_scale) == (1.0, 0.125)
    other = {"gemma3.attention.sliding_window_pattern": (False, True) * 3 + (False,)}
    hp = load_model(path_of("gemma3-f32"), overrides=other).hparams
    assert [hp.is_windowed(i) for i in range(hp.n_layer)] == [False, True] * 3 + [False]
