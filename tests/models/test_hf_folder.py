"""Folders of Hugging Face are the models that GGUF files of the same weights are."""

import json
import os

import numpy as np
import pytest

from ggsched.errors import ModelError
from ggsched.models.load import load_model
from ggsched.models.memory_check import check_memory
from ggsched.models.session import Session, SessionOptions
from tests.models.helpers import Runner, tiny_arrays, tiny_gguf, tiny_meta
from tests.models.vocabularies import BPE_META, PREFIX

pytest.importorskip("safetensors")
from safetensors.numpy import save_file

H, G, D = 4, 2, 8
NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
VOCAB = BPE_META[PREFIX + "tokens"]


def hf_name(name):
    *block, part, kind = name.split(".")
    return ".".join([*(["model.layers", block[1]] if block else []), NAMES[part], kind])


def reordered(weight, heads):
    """Undo what llama's conversion to GGUF does: rows of pairs become halves of a head."""
    return weight.reshape(heads, D // 2, 2, -1).swapaxes(1, 2).reshape(weight.shape)


def config_of(kind="llama", **changes):
    meta = {k.partition(".")[2]: v for k, v in tiny_meta("llama", vocab=len(VOCAB)).items()}
    return {
        "model_type": kind,
        "max_position_embeddings": meta["context_length"],
        "hidden_size": meta["embedding_length"],
        "num_hidden_layers": 1,
        "intermediate_size": meta["feed_forward_length"],
        "num_attention_heads": H,
        "num_key_value_heads": G,
        "head_dim": D,
        "rms_norm_eps": meta["attention.layer_norm_rms_epsilon"],
        "rope_theta": 10000.0,
        "vocab_size": len(VOCAB),
        "eos_token_id": BPE_META[PREFIX + "eos_token_id"],
        **changes,
    }


def write_folder(folder, kind="llama", files=1, config=None, reorder=True):
    arrays = {}
    for name, array in tiny_arrays("llama", vocab=len(VOCAB)).items():
        heads = {"attn_q": H, "attn_k": G}.get(name.split(".")[-2])
        turned = reordered(array, heads) if heads and reorder else array
        arrays[hf_name(name)] = np.ascontiguousarray(turned)
    items = list(arrays.items())
    for i in range(files):
        save_file(dict(items[i::files]), folder / f"model-{i}.safetensors")
    (folder / "config.json").write_text(json.dumps(config or config_of(kind)))
    return folder


def write_tokenizer(folder):
    n_plain = len(VOCAB) - 3
    flags = (False, True, True)
    added = [
        {"id": n_plain + i, "content": VOCAB[n_plain + i], "special": flag}
        for i, flag in enumerate(flags)
    ]
    model = {"type": "BPE", "vocab": {t: i for i, t in enumerate(VOCAB[:n_plain])}}
    model["merges"] = BPE_META[PREFIX + "merges"]
    (folder / "tokenizer.json").write_text(json.dumps({"model": model, "added_tokens": added}))
    settings = {"chat_template": "{{ messages[0].content }}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


@pytest.mark.parametrize("files", [1, 3])
def test_llama(tmp_path, files):
    file = load_model(tiny_gguf(tmp_path / "m.gguf", vocab=len(VOCAB)))
    folder = load_model(write_folder(tmp_path, files=files))
    assert folder.hparams.rope.pairing == "halves"
    tokens = [3, 1, 4, 1, 5, 9, 2]
    np.testing.assert_allclose(Runner(folder).feed(tokens), Runner(file).feed(tokens), atol=1e-5)


def test_qwen2_is_not_reordered(tmp_path):
    meta = {
        k.replace("llama.", "qwen2."): v for k, v in tiny_meta("llama", vocab=len(VOCAB)).items()
    }
    meta["general.architecture"] = "qwen2"
    file = load_model(tiny_gguf(tmp_path / "m.gguf", meta=meta, vocab=len(VOCAB)))
    folder = load_model(write_folder(tmp_path, "qwen2", reorder=False))
    np.testing.assert_array_equal(Runner(folder).feed([1, 2, 3]), Runner(file).feed([1, 2, 3]))


EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
PARTS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}


def write_experts(folder, drop="", narrow="", **changes):
    """Write a folder with a tensor for each expert, in two files; return the arrays joined."""
    arrays = tiny_arrays("qwen3moe", experts=4, vocab=len(VOCAB))
    items = {}
    for name, array in arrays.items():
        *_, part, _kind = name.split(".")
        if part.endswith("_exps"):
            kind = part.removesuffix("_exps").removeprefix("ffn_")
            for i, one in enumerate(array):
                items[f"model.layers.0.mlp.experts.{i}.{kind}_proj.weight"] = one
        elif part == "ffn_gate_inp":
            items["model.layers.0.mlp.gate.weight"] = array
        elif part in PARTS:
            items[f"model.layers.0.{PARTS[part]}.weight"] = array
        else:
            items[hf_name(name)] = array
    items = {k: np.ascontiguousarray(a[:8] if k == narrow else a) for k, a in items.items()}
    rest = [(k, a) for k, a in sorted(items.items()) if k != drop]
    for i in range(2):
        save_file(dict(rest[i::2]), folder / f"model-{i}.safetensors")
    config = config_of("qwen3_moe", **{"norm_topk_prob": True, **EXPERTS, **changes})
    (folder / "config.json").write_text(json.dumps(config))
    return arrays


@pytest.mark.parametrize("weights", ["packed", "expand"])
def test_experts_in_tensors_of_their_own(tmp_path, weights):
    arrays = write_experts(tmp_path)
    path = tiny_gguf(tmp_path / "m.gguf", "qwen3moe", arrays=arrays, vocab=len(VOCAB))
    file, folder = load_model(path), load_model(tmp_path, weights=weights)
    assert folder.spec.weights == file.spec.weights
    tokens = [3, 1, 4, 1, 5]
    np.testing.assert_array_equal(Runner(folder).feed(tokens), Runner(file).feed(tokens))
    with Session(folder, ["cpu:0"], SessionOptions(n_ctx=32)) as session:
        check_memory(session, len(tokens))
        found = session.feed(tokens, all_logits=True)
    np.testing.assert_allclose(found, Runner(file).feed(tokens), atol=1e-4)


LAST = "model.layers.0.mlp.experts.1.up_proj.weight"


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"drop": LAST}, "expert 1 is missing"),
        ({"narrow": LAST}, "experts differ in type or shape"),
        ({"num_experts": 5}, "needs [5, 32], has [4, 32]"),
        ({"norm_topk_prob": False}, "norm_topk_prob 'False' is not supported"),
        ({"decoder_sparse_step": 2}, "decoder_sparse_step '2' is not supported"),
        ({"mlp_only_layers": [0]}, "mlp_only_layers '[0]' is not supported"),
    ],
)
def test_experts_that_are_refused(tmp_path, changes, word):
    write_experts(tmp_path, **changes)
    with pytest.raises(ModelError) as info:
        load_model(tmp_path)
    assert word in str(info.value)
    assert str(info.value).isprintable()


def test_tokenizer_and_template(tmp_path):
    write_tokenizer(write_folder(tmp_path))
    ours = load_model(tmp_path)
    theirs = load_model(tiny_gguf(tmp_path / "m.gguf", meta=BPE_META, vocab=len(VOCAB)))
    text = "hello world<|user|>12"
    assert ours.tokenizer.encode(text, bos=False) == theirs.tokenizer.encode(text, bos=False)
    assert ours.tokenizer.stop_ids == theirs.tokenizer.stop_ids
    assert ours.chat_template() is not None


def test_tied_output(tmp_path):
    model = load_model(write_folder(tmp_path, config=config_of(tie_word_embeddings=True)))
    assert model.spec.is_tied


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"model_type": "bert"}, "model_type 'bert' is not supported"),
        ({"model_type": None}, "model_type 'None' is not supported"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "rope_scaling 'llama3' is not supported"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is not supported"),
        ({"rope_scaling": 8.0}, "rope_scaling '8.0' is not supported"),
        ({"hidden_size": "64"}, "hidden_size is '64', not a number"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps is '1000+.*, not a number"),
        ({"rope_theta": float("inf")}, "rope_theta is 'inf', not a number"),
        ({"hidden_size": 48}, "llama.attention.head_count|wrong shape"),
        ({"num_hidden_layers": 2}, "is missing"),
    ],
)
def test_refused(tmp_path, changes, word):
    write_folder(tmp_path, config=config_of(**changes))
    with pytest.raises(ModelError, match=word):
        load_model(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "nul"])
def test_damaged_files(tmp_path, text):
    write_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError, match=r"config\.json"):
        load_model(tmp_path)


@pytest.mark.parametrize("odd", [float("inf"), 10**400, "\ud800"])
def test_damaged_tokenizer(tmp_path, odd):
    write_tokenizer(write_folder(tmp_path))
    tokenizer = json.loads((tmp_path / "tokenizer.json").read_text())
    vocab = tokenizer["model"]["vocab"]
    vocab |= {odd: vocab["a"]} if isinstance(odd, str) else {"a": odd}
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ModelError, match=r"tokenizer\.json: the tokenizer"):
        load_model(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
def test_pipes_do_not_wait_for_a_writer(tmp_path, name):
    write_tokenizer(write_folder(tmp_path))
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with pytest.raises(ModelError, match=f"{name}: it is not a regular file"):
        load_model(tmp_path)


def test_no_weights(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config_of()))
    with pytest.raises(ModelError, match=r"there is no \.safetensors file"):
        load_model(tmp_path)
