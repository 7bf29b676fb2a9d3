"""Folders of Hugging Face are the models that GGUF files of the same weights are."""

import json
import os

import numpy as np
import pytest

from ggsched.errors import ModelError
from ggsched_llm.bpe import PRE_TOKENIZERS
from ggsched_llm.graph import build_model_graph
from ggsched_llm.load import load_model, weight_array
from ggsched_llm.memory_check import check_memory
from ggsched_llm.session import Session, SessionOptions
from tests.models.helpers import Runner, tiny_arrays, tiny_gguf, tiny_meta
from tests.models.vocabularies import BPE_META, PREFIX

pytest.importorskip("safetensors")
from safetensors.numpy import save_file

H, G, D = 4, 2, 8
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
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
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    model = {"type": "BPE", "vocab": {t: i for i, t in enumerate(VOCAB[:n_plain])}}
    model["merges"] = BPE_META[PREFIX + "merges"]
    letters = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    split = {"type": "Split", "behavior": "Isolated", "invert": False}
    split["pattern"] = {"Regex": PRE_TOKENIZERS["llama-bpe"][0]}
    steps = [split, {**letters, "use_regex": False}]
    content = {
        "model": model,
        "added_tokens": [{**plain, **token} for token in added],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "decoder": {**letters, "use_regex": True},
    }
    (folder / "tokenizer.json").write_text(json.dumps(content))
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


def test_window_of_mistral(tmp_path):
    """Of one block the last token's logits follow from the tokens in its window alone."""
    config = config_of("mistral", sliding_window=3)
    model = load_model(write_folder(tmp_path, config=config))
    tokens = [3, 1, 4, 1, 5, 9, 2]
    found = Runner(model).feed(tokens, out_rows=[6])
    np.testing.assert_allclose(found, Runner(model).feed([5, 9, 2], out_rows=[2]), atol=1e-5)
    for plain in ({"sliding_window": None}, {"sliding_window": 64}, {}):
        (tmp_path / "config.json").write_text(json.dumps(config_of("mistral", **plain)))
        assert load_model(tmp_path).hparams.window == 0
    assert not np.allclose(found, Runner(load_model(tmp_path)).feed(tokens, out_rows=[6]))


@pytest.mark.parametrize("field", ["rope_scaling", "rope_parameters"])
def test_rotation_of_llama_3_1(tmp_path, field):
    config = config_of(**{field: LLAMA3})
    folder = load_model(write_folder(tmp_path, config=config))
    factors = weight_array(folder, "rope_freqs.weight")
    assert (factors[0], factors[-1]) == (1.0, 8.0)
    arrays = tiny_arrays("llama", vocab=len(VOCAB)) | {"rope_freqs.weight": factors}
    file = load_model(tiny_gguf(tmp_path / "m.gguf", arrays=arrays, vocab=len(VOCAB)))
    tokens = [3, 1, 4, 1, 5, 9, 2]
    np.testing.assert_allclose(Runner(folder).feed(tokens), Runner(file).feed(tokens), atol=1e-5)
    write_folder(tmp_path, config=config_of("qwen2", **{field: LLAMA3}))
    with pytest.raises(ModelError, match="rope_scaling 'llama3' is not supported"):
        load_model(tmp_path)


def test_activation(tmp_path):
    """gelu itself is compared in the models that llama.cpp computed."""
    for name, op in (("silu", "swiglu"), ("gelu_pytorch_tanh", "gelu")):
        model = load_model(write_folder(tmp_path, config=config_of(hidden_act=name)))
        graph = build_model_graph(model.spec, n_tokens=1, n_kv=32, n_out=1, n_ctx=32)
        assert {node.op for node in graph.nodes} & {"swiglu", "gelu"} == {op}


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


def test_experts_as_transformers_5_counts_them(tmp_path):
    write_experts(tmp_path)
    before = load_model(tmp_path).hparams
    write_experts(tmp_path, num_experts=None, num_local_experts=4)
    assert load_model(tmp_path).hparams == before


def test_experts_whose_weights_are_not_renormalised(tmp_path):
    arrays = write_experts(tmp_path, norm_topk_prob=False)
    meta = {"qwen3moe.expert_weights_norm": False}
    path = tiny_gguf(tmp_path / "m.gguf", "qwen3moe", meta=meta, arrays=arrays, vocab=len(VOCAB))
    folder, file = load_model(tmp_path), load_model(path)
    assert folder.hparams.renormalises_experts is file.hparams.renormalises_experts is False
    np.testing.assert_array_equal(Runner(folder).feed([3, 1, 4]), Runner(file).feed([3, 1, 4]))


LAST = "model.layers.0.mlp.experts.1.up_proj.weight"


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"drop": LAST}, "expert 1 is missing"),
        ({"narrow": LAST}, "experts differ in type or shape"),
        ({"num_experts": 5}, "needs [5, 32], has [4, 32]"),
        ({"norm_topk_prob": 2}, "norm_topk_prob '2' is not supported"),
        ({"use_sliding_window": True, "sliding_window": 8}, "sliding_window '8' is not supported"),
        ({"hidden_act": "gelu_new"}, "hidden_act 'gelu_new' is not supported"),
        ({"num_local_experts": 8}, "num_local_experts '8' is not supported: num_experts is 4"),
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
        ({"rope_scaling": {"rope_type": "llama3"}}, "rope_scaling: factor is missing"),
        (
            {"rope_scaling": {"type": "yarn", "factor": 4.0}},
            "rope_scaling 'yarn' is not supported: supported: default, linear, llama3",
        ),
        (
            {"hidden_act": "gelu"},
            "'gelu' is not supported: supported: silu, swish, gelu_pytorch_tanh, gelu_new, gelu_",
        ),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "factor '0' is not supported"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is not supported"),
        ({"rope_scaling": 8.0}, "rope_scaling '8.0' is not supported"),
        ({"hidden_size": "64"}, "hidden_size is '64', not a number"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps is '1000+.*, not a number"),
        ({"rope_theta": float("inf")}, "rope_theta is 'inf', not a number"),
        ({"hidden_size": 48}, "llama.attention.head_count|wrong shape"),
        ({"num_hidden_layers": 2}, "is missing"),
        ({"attention_bias": True}, "attention_bias 'True' is not supported: there are no such"),
        ({"mlp_bias": True}, "mlp_bias 'True' is not supported"),
        ({"attention_bias": 1}, "attention_bias '1' is not supported"),
        ({"head_dim": 8.5, "rope_scaling": LLAMA3}, "attention.key_length: is 8.5"),
    ],
)
def test_refused(tmp_path, changes, word):
    write_folder(tmp_path, config=config_of(**changes))
    with pytest.raises(ModelError, match=word):
        load_model(tmp_path)


def test_biases_that_no_field_says_are_refused(tmp_path):
    write_folder(tmp_path)
    bias = {"model.layers.0.self_attn.q_proj.bias": np.ones(H * D, np.float32)}
    save_file(bias, tmp_path / "model-1.safetensors")
    with pytest.raises(ModelError, match=r"attention_bias 'False' .* there is 'blk.0.attn_q.bias'"):
        load_model(tmp_path)


def test_tensors_that_the_architecture_does_not_know_are_refused(tmp_path):
    write_folder(tmp_path)
    for name, is_known in (("rotary_emb.inv_freq", True), ("self_attn.q_norm.weight", False)):
        more = {f"model.layers.0.{name}": np.ones(D, np.float32)}
        save_file(more, tmp_path / "model-1.safetensors")
        if is_known:
            load_model(tmp_path)
            continue
        with pytest.raises(ModelError, match=r"tensor 'blk.0.attn_q_norm.weight' is not used"):
            load_model(tmp_path)


def test_an_output_matrix_that_is_not_shared_is_needed(tmp_path):
    arrays = {n: a for n, a in tiny_arrays("llama", vocab=len(VOCAB)).items() if n[:7] != "output."}
    save_file(
        {hf_name(n): a for n, a in arrays.items()}, write_folder(tmp_path) / "model-0.safetensors"
    )
    with pytest.raises(ModelError, match="lm_head.weight is missing: tie_word_embeddings"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config_of(tie_word_embeddings=True)))
    assert load_model(tmp_path).spec.is_tied


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
    with pytest.raises(ModelError, match=f"{name}: cannot read the file: it is not a regular file"):
        load_model(tmp_path)


def test_no_weights(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config_of()))
    with pytest.raises(ModelError, match=r"there is no \.safetensors file"):
        load_model(tmp_path)
