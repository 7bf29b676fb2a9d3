"""Each key of a model is used, has no effect for a stated reason, or is refused."""

import dataclasses
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggsched.errors import ModelError
from ggsched_llm import hf_config, ignored_keys
from ggsched_llm.arch import ARCHITECTURES
from ggsched_llm.hf_config import HfConfig
from ggsched_llm.load import load_model
from ggsched_llm.metadata_keys import NotedKeys
from ggsched_llm.read_hparams import read_hparams
from tests.models.helpers import Runner, tiny_arrays, tiny_gguf
from tests.models.key_sets import CONFIGS, GGUF_KEYS
from tests.models.reference_models import REFERENCES, metadata, write_reference

KEYS = st.text("abcdefghijklmnopqrstuvwxyz_.", min_size=1, max_size=30)
VALUES = st.one_of(
    st.integers(1, 1 << 31), st.floats(allow_nan=False), st.text(), st.just(True), st.just((1, 2))
)
FAMILIES = {REFERENCES[name].arch: name for name in GGUF_KEYS}


@pytest.fixture(scope="module")
def file_of(tmp_path_factory):
    """Return a function from architectures and further keys to files."""
    folder = tmp_path_factory.mktemp("keys")
    opened = {}

    def get(arch, more):
        name = FAMILIES[arch]
        if name not in opened:
            opened[name] = load_model(write_reference(folder / f"{name}.gguf", name)).file
        file = opened[name]
        keys = {f"{arch}.{key}": value for key, value in more.items()}
        return dataclasses.replace(file, metadata=NotedKeys({**file.metadata, **keys}))

    return get


def test_every_architecture_has_a_set_of_keys():
    assert set(FAMILIES) == set(ARCHITECTURES)


@given(arch=st.sampled_from(sorted(ARCHITECTURES)), key=KEYS, value=VALUES)
@settings(max_examples=40)
def test_a_key_that_nothing_reads_is_refused(file_of, arch, key, value):
    file = file_of(arch, {})
    read_hparams(file)
    known = {*ignored_keys.GGUF, *ARCHITECTURES[arch].ignored}
    if f"{arch}.{key}" in file.metadata.read or key in known:
        return
    file = file_of(arch, {key: value})
    with pytest.raises(ModelError) as info:
        read_hparams(file)
    text = str(info.value)
    assert text.startswith(f"{file.path}: key {arch}.{key} is ")
    assert text.isprintable()


HARMLESS = {"attention.causal": True}


@pytest.mark.parametrize("arch", sorted(ARCHITECTURES))
def test_a_key_with_a_reason_is_not_refused(file_of, arch):
    rules = {**ignored_keys.GGUF, **ARCHITECTURES[arch].ignored}
    assert all(rule.reason for rule in rules.values())
    file = file_of(arch, {})
    read_hparams(file)
    read = {key.removeprefix(f"{arch}.") for key in file.metadata.read}
    for key, rule in rules.items():
        if key in read:  # an architecture that has use for it
            continue
        value = HARMLESS.get(key, 0)
        assert rule.accepts(value), key
        assert read_hparams(file_of(arch, {key: value})) == read_hparams(file)
        if not rule.accepts(7):
            with pytest.raises(ModelError, match=f"key {arch}.{key} is 7: ggsched does not know"):
                read_hparams(file_of(arch, {key: 7}))


@pytest.mark.parametrize("name", sorted(GGUF_KEYS))
def test_keys_of_published_files_are_known(file_of, name):
    arch = REFERENCES[name].arch
    own = metadata(name, REFERENCES[name])
    more = {k: v for k, v in GGUF_KEYS[name].items() if f"{arch}.{k}" not in own}
    plain = {k: tuple(v) if isinstance(v, list) else v for k, v in more.items()}
    read_hparams(file_of(arch, plain))


PREDICTING = [a for a in sorted(ARCHITECTURES) if a != "mamba2"]


@pytest.mark.parametrize("arch", PREDICTING)
def test_an_ordinary_block_is_not_dropped_as_one_that_predicts_tokens(file_of, arch):
    assert read_hparams(file_of(arch, {"nextn_predict_layers": 0}))
    with pytest.raises(ModelError, match=r"nextn_predict_layers: is 1: block \d has no tensor"):
        read_hparams(file_of(arch, {"nextn_predict_layers": 1}))


@pytest.mark.parametrize("arch", ["llama", "qwen3moe"])
def test_a_block_that_predicts_tokens_is_not_computed(tmp_path, arch, caplog):
    sizes = {"experts": 4} if arch != "llama" else {}
    arrays = tiny_arrays(arch, layers=2, **sizes)
    arrays["blk.1.nextn.eh_proj.weight"] = np.ones((32, 64), np.float32)
    count = {f"{arch}.nextn_predict_layers": 1}
    path = tmp_path / "m.gguf"
    with caplog.at_level("INFO", "ggsched"):
        whole = load_model(tiny_gguf(path, arch, meta=count, arrays=arrays, layers=2))
    (said,) = caplog.messages
    assert said.endswith("tensors of blocks that predict further tokens are not loaded")
    assert caplog.records[0].levelname == "INFO"
    first = {n: a for n, a in arrays.items() if not n.startswith("blk.1.")}
    alone = load_model(tiny_gguf(tmp_path / "n.gguf", arch, arrays=first))
    np.testing.assert_array_equal(Runner(whole).feed([1, 2, 3]), Runner(alone).feed([1, 2, 3]))
    with pytest.raises(ModelError, match="is 0: block 1 has a tensor blk.1.nextn"):
        load_model(tiny_gguf(path, arch, arrays=arrays, layers=2))


@pytest.mark.parametrize("arch", ["llama", "phi3"])
def test_windows_of_all_blocks(file_of, arch):
    hp = read_hparams(file_of(arch, {"attention.sliding_window": 16}))
    assert all(hp.is_windowed(layer) for layer in range(hp.n_layer))
    assert hp.window == 16
    assert read_hparams(file_of(arch, {"attention.sliding_window": hp.n_ctx_train})).window == 0


@pytest.mark.parametrize("arch", ["qwen2", "deepseek2", "mamba2"])
def test_windows_of_blocks_that_nothing_says_are_refused(file_of, arch):
    with pytest.raises(ModelError, match="sliding_window: is 16: windows are not supported"):
        read_hparams(file_of(arch, {"attention.sliding_window": 16}))


def test_weights_of_experts_as_the_file_says(file_of):
    hp = read_hparams(file_of("qwen3moe", {"expert_weights_norm": False, "expert_gating_func": 2}))
    assert (hp.renormalises_experts, hp.routes_by_sigmoid) == (False, True)
    assert read_hparams(file_of("llama", {"expert_weights_scale": 0.0})).expert_scale == 1.0


# --- config.json ---------------------------------------------------------------------------


def checked(fields):
    """Return the metadata of a configuration whose tensors agree with it."""
    config = HfConfig("folder", fields, "folder/config.json")
    found = config.metadata()
    fields = config.fields
    more = [
        f"blk.0.{part}"
        for field, parts in config.kind.parts.items()
        for part in parts
        if fields.get(field)
    ]
    config.check_tensors(dict.fromkeys(["output.weight", *more]))
    config.predicting({})
    config.rope_factors()
    config.check_all_read()
    return found


def text_of(name):
    """Return the fields of a configuration that are about text."""
    return CONFIGS[name].get("text_config", CONFIGS[name])


@pytest.mark.parametrize("name", CONFIGS)
def test_fields_of_published_models_are_known(name):
    found = checked(CONFIGS[name])
    arch = found["general.architecture"]
    assert found[f"{arch}.block_count"] == text_of(name)["num_hidden_layers"]
    windows = [value for key, value in found.items() if key.endswith("sliding_window")]
    assert windows == ([4096] if "Mistral 7B v0.1" in name else [])


@given(name=st.sampled_from(sorted(CONFIGS)), key=KEYS, value=VALUES)
@settings(max_examples=40)
def test_a_field_that_nothing_reads_is_refused(name, key, value):
    fields = CONFIGS[name]
    config = HfConfig("folder", fields, "folder/config.json")
    config.metadata()
    if key in fields or key in config.fields.read or key in hf_config.IGNORED:
        return
    with pytest.raises(ModelError) as info:
        checked({**fields, key: value})
    assert str(info.value).startswith(f"folder/config.json: key {key} is ")
    assert str(info.value).isprintable()
    assert checked({**fields, key: None})  # null: it is not set


@given(name=st.sampled_from(sorted(CONFIGS)), key=KEYS, value=VALUES)
@settings(max_examples=30)
def test_a_field_of_the_rotation_that_nothing_reads_is_refused(name, key, value):
    fields = text_of(name)
    field = "rope_parameters" if "rope_parameters" in fields else "rope_scaling"
    scaling = fields.get(field) or {"rope_type": "default"}
    assert checked({**fields, field: scaling})
    if key in scaling or key == "type":
        return
    with pytest.raises(ModelError, match="rope_scaling: key"):
        checked({**fields, field: {**scaling, key: value}})


ODD = (None, 0, -1, 1, 1.5, "x", [], {}, True, float("inf"), [1, [1]], {"a": 1}, 10**400, "\x1b[0m")


@given(data=st.data(), name=st.sampled_from(sorted(CONFIGS)), value=st.sampled_from(ODD))
@settings(max_examples=60)
def test_whatever_a_field_holds_is_accepted_or_refused(data, name, value):
    fields = text_of(name)
    key = data.draw(st.sampled_from(sorted(fields)))
    with suppress(ModelError):
        checked({**fields, key: value})


@pytest.mark.parametrize("field", sorted(hf_config.IGNORED))
def test_a_field_with_a_reason_is_not_refused(field):
    rule = hf_config.IGNORED[field]
    assert rule.reason
    values = {"architectures": ["LlamaForCausalLM"], "auto_map": {"AutoConfig": "x"}}
    values["sliding_window"] = None  # a llama reads it, to refuse windows
    value = values.get(field, False)
    assert rule.accepts(value)
    base = CONFIGS["Llama 2 7B"]
    assert checked({**base, field: value}) == checked({k: v for k, v in base.items() if k != field})
    if not rule.accepts(7):
        with pytest.raises(ModelError, match=rf"{field} ('7'|is '?7)"):
            checked({**base, field: 7})


YARN = CONFIGS["DeepSeek V2 Lite"]["rope_scaling"]


@pytest.mark.parametrize(
    ("name", "changes", "word"),
    [
        ("Llama 2 7B", {"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ("Llama 2 7B", {"hidden_act": ["silu"]}, "hidden_act"),
        ("Llama 2 7B", {"sliding_window": 1024}, "sliding_window '1024' is not supported"),
        ("Llama 2 7B", {"partial_rotary_factor": 0.5}, "partial_rotary_factor '0.5'"),
        ("Llama 2 7B", {"architectures": ["LlamaModel"]}, "key architectures is"),
        ("Llama 2 7B", {"auto_map": {"AutoModelForCausalLM": "x.Y"}}, "key auto_map is"),
        ("Llama 2 7B", {"layer_types": ["chunked_attention"] * 32}, "layer_types"),
        ("Llama 2 7B", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic'"),
        ("Mistral 7B v0.1", {"sliding_window": "4096"}, "sliding_window is '4096', not a number"),
        ("Mistral 7B v0.1", {"sliding_window": 0}, "sliding_window '0' is not supported"),
        ("Qwen3 8B", {"layer_types": ["sliding_attention"] * 36}, "there is no sliding_window"),
        ("Qwen3 8B", {"rope_parameters": {"rope_theta": 5.0}}, "rope_parameters says '5.0'"),
        ("Qwen3 30B A3B", {"num_local_experts": 64}, "num_experts is 128"),
        ("Qwen3 30B A3B", {"use_sliding_window": True, "sliding_window": 64}, "sliding_window"),
        ("Qwen3 30B A3B", {"hidden_act": "gelu_new"}, "hidden_act 'gelu_new'"),
        ("Qwen3.5 9B", {"vision_tower": "x"}, "key vision_tower is"),
        ("Qwen3.5 9B", {"architectures": ["Qwen3_5Model"]}, "architectures"),
        ("GLM 4.5 Air", {"n_group": None}, "n_group is missing"),
        ("GLM 4.5 Air", {"partial_rotary_factor": 2}, "partial_rotary_factor is '2'"),
        ("DeepSeek R1", {"scoring_func": "softmax"}, "scoring_func 'softmax' is not supported"),
        ("DeepSeek R1", {"rope_interleave": False}, "rope_interleave 'False' is not supported"),
        ("DeepSeek R1", {"rms_norm_eps": 1e-5}, "rms_norm_eps '1e-05' is not supported"),
        ("DeepSeek R1", {"qk_rope_head_dim": None}, "qk_rope_head_dim is"),
        ("DeepSeek V2 Lite", {"n_group": 8}, "topk_method 'greedy' is not supported"),
        ("DeepSeek V2 Lite", {"norm_topk_prob": True}, "norm_topk_prob 'True' is not supported"),
        ("DeepSeek V2 Lite", {"rope_scaling": YARN | {"mscale": 1.0}}, "mscale_all_dim is 0.7"),
        ("DeepSeek V2 Lite", {"rope_scaling": YARN | {"mscale_all_dim": 0}}, "must be above 0"),
        ("MiniMax M2", {"attn_type_list": [1, 0]}, "attn_type_list '[1, 0]' is not supported"),
        ("MiniMax M2", {"partial_rotary_factor": 0.25}, "rotary_dim '64' is not supported"),
        ("MiniMax M2", {"layernorm_mlp_beta": 2.0}, "layernorm_mlp_beta '2.0' is not supported"),
        ("Llama 3.1 8B Instruct", {"rope_theta": "a"}, "rope_theta is 'a', not a number"),
    ],
)
def test_fields_that_would_change_results_are_refused(name, changes, word):
    with pytest.raises(ModelError) as info:
        checked({**CONFIGS[name], **changes})
    assert word in str(info.value)
    assert "folder/config.json" in str(info.value)


def test_windows_of_the_later_blocks():
    fields = {**CONFIGS["Qwen2.5 7B Instruct"], "use_sliding_window": True}
    fields |= {"sliding_window": 64, "max_window_layers": 21}
    found = checked(fields)
    assert found["qwen2.attention.sliding_window"] == 64
    listed = found["qwen2.attention.sliding_window_pattern"]
    assert listed == (False,) * 21 + (True,) * 7
    kinds = ["sliding_attention", "full_attention"] * 14
    listed = checked({**fields, "layer_types": kinds})["qwen2.attention.sliding_window_pattern"]
    assert listed == (True, False) * 14


@pytest.mark.parametrize(("norm", "wanted"), [(True, True), (False, False), (None, False)])
def test_weights_of_experts_as_the_folder_says(norm, wanted):
    fields = {**CONFIGS["Qwen3 30B A3B"], "norm_topk_prob": norm}
    assert checked(fields)["qwen3moe.expert_weights_norm"] is wanted


def test_factors_of_llama_3_1():
    """The numbers that llama.cpp's converter writes for heads of 128 elements."""
    fields = CONFIGS["Llama 3.1 8B Instruct"]
    found = HfConfig("folder", fields, "folder/config.json").rope_factors()
    wanted = []
    for i in range(64):
        length = 2 * np.pi * 500000.0 ** (i / 64)
        smooth = (8192 / length - 1.0) / (4.0 - 1.0)
        blended = 1 / ((1 - smooth) / 8.0 + smooth)
        wanted.append(1.0 if length < 8192 / 4 else 8.0 if length > 8192 else blended)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert 1 < found[30] < 8
