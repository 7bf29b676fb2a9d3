"""The graphs: names, shapes, and changes of a model that must not change what it computes."""

import numpy as np
import pytest

from ggsched.errors import UsageError
from ggsched.ir import Role
from ggsched.ir.dtype import F16, Q4_0
from ggsched.ir.graph import verify_graph
from ggsched_llm.cache_rows import CacheRows
from ggsched_llm.graph import build_model_graph
from ggsched_llm.load import load_model
from tests.models.helpers import ORACLE, D, Runner, tiny_arrays, tiny_gguf
from tests.models.reference_models import REFERENCES, write_reference

TOKENS = [3, 1, 4, 1, 5, 2, 6]
SIZES = {"n_tokens": 2, "n_kv": 32, "n_out": 1, "n_ctx": 64}


def tiny(tmp_path, arch="llama", **how):
    return load_model(tiny_gguf(tmp_path / "m.gguf", arch, **how))


def logits(tmp_path, arch="llama", **how):
    return Runner(tiny(tmp_path, arch, **how)).feed(TOKENS)


# --- names and shapes ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama-tiny-f16", "qwen3moe-tiny-f32", "gptoss-tiny-f32"])
def test_inputs_states_weights_output(name):
    model = load_model(ORACLE / f"{name}.gguf", weights="packed")
    graph = build_model_graph(model.spec, **SIZES, kv_dtype=F16)
    inputs = {t.name: t.shape for t in graph.roots(Role.INPUT)}
    window = {"bounds_window": (2, 2)} if name.startswith("gpt") else {}
    wanted = {"tokens": (2,), "positions": (2,), "kv_rows": (2,), "bounds": (2, 2)}
    assert inputs == wanted | window | {"out_rows": (1,)}
    states = {t.name: (t.shape, t.dtype) for t in graph.roots(Role.STATE)}
    assert states == {f"blk.{i}.{kv}_cache": ((64, 32), F16) for i in range(3) for kv in "kv"}
    roots = {t.name: (t.shape, t.dtype) for t in graph.roots(Role.WEIGHT)}
    assert roots == {n: (w.shape, w.dtype) for n, w in model.spec.weights.items()}
    (out,) = graph.outputs
    assert graph.tensors[out].shape == (1, 256)


@pytest.mark.parametrize(
    ("n_tokens", "n_out", "chooses"), [(1, 1, False), (2, 1, True), (2, 2, True)]
)
def test_of_one_token_there_is_nothing_to_choose(n_tokens, n_out, chooses):
    spec = load_model(ORACLE / "llama-tiny-f32.gguf").spec
    graph = build_model_graph(spec, n_tokens=n_tokens, n_kv=32, n_out=n_out, n_ctx=64)
    assert ("out_rows" in {t.name for t in graph.roots(Role.INPUT)}) == chooses
    assert graph.tensors[graph.outputs[0]].shape == (n_out, spec.hparams.n_vocab)


@pytest.mark.parametrize("name", ["llama-tiny-f32", "qwen3moe-tiny-f32", "gptoss-tiny-f32"])
def test_each_node_has_a_label_of_its_own_that_tells_its_block(name):
    spec = load_model(ORACLE / f"{name}.gguf").spec
    graph = build_model_graph(spec, **SIZES)
    labels = [n.name for n in graph.nodes]
    assert len(set(labels)) == len(labels)
    assert labels[0] == "inp_embd"
    assert labels[-2:] == ["result_norm", "result_output"]
    inside = [label for label in labels if label.startswith("blk.")]
    assert len(inside) == len(labels) - 4
    assert {"blk.1.kqv", "blk.1.kqv_out", "blk.1.l_out"} <= set(labels)
    blocks = [int(label.split(".")[1]) for label in inside]
    assert blocks == sorted(blocks)
    for node in graph.nodes:
        for tid in node.inputs:
            t = graph.tensors[tid]
            if t.role in (Role.WEIGHT, Role.STATE) and t.name.startswith("blk."):
                assert node.name.startswith(".".join(t.name.split(".")[:2]) + ".")


def test_one_plan_serves_while_the_cache_grows():
    spec = load_model(ORACLE / "llama-tiny-f32.gguf").spec
    first = build_model_graph(spec, **SIZES)
    assert build_model_graph(spec, **SIZES).digest == first.digest
    assert build_model_graph(spec, **{**SIZES, "n_kv": 64}).digest != first.digest


@pytest.mark.parametrize(
    "change",
    [
        {"n_tokens": 0},
        {"n_tokens": 33},
        {"n_kv": 65},
        {"n_out": 0},
        {"n_out": 3},
        {"n_ctx": 16},
        {"kv_dtype": Q4_0},
    ],
    ids=str,
)
def test_sizes_that_make_no_sense(change):
    spec = load_model(ORACLE / "llama-tiny-f32.gguf").spec
    with pytest.raises(UsageError, match="build_model_graph"):
        build_model_graph(spec, **{**SIZES, **change})


# --- what must not matter ----------------------------------------------------------------------


def test_stale_rows_of_the_cache_do_not_matter():
    model = load_model(ORACLE / "gptoss-tiny-f32.gguf")
    clean, stale = Runner(model), Runner(model)
    for i in range(3):
        for kv in "kv":
            stale.states[f"blk.{i}.{kv}_cache"] = np.full((64, 32), 7.0, np.float32)
    np.testing.assert_array_equal(clean.feed(TOKENS), stale.feed(TOKENS))


def test_rows_looked_at_do_not_matter():
    model = load_model(ORACLE / "gptoss-tiny-f32.gguf")
    small, large = Runner(model, bucket=8), Runner(model, bucket=64)
    np.testing.assert_allclose(small.feed(TOKENS), large.feed(TOKENS), atol=1e-5)


def test_tied_embedding(tmp_path):
    arrays = tiny_arrays("llama")
    arrays["output.weight"] = arrays["token_embd.weight"]
    both = logits(tmp_path, arrays=arrays)
    tied = logits(tmp_path, arrays=arrays, drop=["output.weight"])
    np.testing.assert_array_equal(both, tied)


def test_biases_of_zero_and_of_one(tmp_path):
    arrays = tiny_arrays("llama")
    plain = logits(tmp_path, arrays=arrays)
    names = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]
    for name in names:
        biased = {**arrays, f"blk.0.{name}.bias": np.zeros(len(arrays[f"blk.0.{name}.weight"]))}
        np.testing.assert_array_equal(logits(tmp_path, arrays=biased), plain)
        biased[f"blk.0.{name}.bias"] += np.arange(len(biased[f"blk.0.{name}.bias"]))
        assert np.abs(logits(tmp_path, arrays=biased) - plain).max() > 1e-3


def test_frequency_factors(tmp_path):
    arrays = tiny_arrays("llama")
    plain = logits(tmp_path, arrays=arrays)
    ones = {**arrays, "rope_freqs.weight": np.ones(D // 2)}
    np.testing.assert_array_equal(logits(tmp_path, arrays=ones), plain)
    twos = {**arrays, "rope_freqs.weight": np.full(D // 2, 2.0)}
    halved = logits(tmp_path, arrays=arrays, meta={"llama.rope.scaling.factor": 2.0})
    np.testing.assert_allclose(logits(tmp_path, arrays=twos), halved, atol=1e-5)


def test_mixtral_of_equal_experts_is_a_dense_llama(tmp_path):
    arrays = tiny_arrays("llama")
    dense = logits(tmp_path, arrays=arrays)
    experts = {}
    for name, array in arrays.items():
        kind = name.removeprefix("blk.0.").removesuffix(".weight")
        if kind in ("ffn_gate", "ffn_up", "ffn_down"):
            experts[f"blk.0.{kind}_exps.weight"] = np.stack([array] * 4)
        else:
            experts[name] = array
    experts["blk.0.ffn_gate_inp.weight"] = tiny_arrays("llama", experts=4)[
        "blk.0.ffn_gate_inp.weight"
    ]
    found = logits(tmp_path, arrays=experts, experts=4)
    np.testing.assert_allclose(found, dense, atol=1e-5)


def test_experts_of_gpt_oss_without_a_choice_are_a_weighted_sum(tmp_path):
    # With equal experts and equal biases the routing cannot matter.
    arrays = tiny_arrays("gpt-oss", experts=4)
    for name in list(arrays):
        if "_exps" in name:
            arrays[name][:] = arrays[name][0]
    one = logits(tmp_path, "gpt-oss", arrays=arrays)
    arrays["blk.0.ffn_gate_inp.weight"] *= -3.0
    np.testing.assert_allclose(logits(tmp_path, "gpt-oss", arrays=arrays), one, atol=1e-5)


def test_window_hides_old_tokens(tmp_path):
    model = tiny(tmp_path, "gpt-oss")  # one layer, a window of 4
    last = [len(TOKENS) - 1]
    changed = [7, 7, 7, *TOKENS[3:]]
    np.testing.assert_array_equal(
        Runner(model).feed(TOKENS, last), Runner(model).feed(changed, last)
    )
    changed[3] = 7
    assert np.abs(Runner(model).feed(TOKENS, last) - Runner(model).feed(changed, last)).max() > 1e-4


def test_yarn_changes_the_result_and_stays_finite(tmp_path):
    meta = {
        "gpt-oss.rope.scaling.type": "yarn",
        "gpt-oss.rope.scaling.factor": 8.0,
        "gpt-oss.rope.scaling.original_context_length": 16,
    }
    plain, yarn = logits(tmp_path, "gpt-oss"), logits(tmp_path, "gpt-oss", meta=meta)
    assert np.isfinite(yarn).all()
    assert np.abs(plain - yarn).max() > 1e-4


# --- other rows of the cache -----------------------------------------------------------------


@pytest.mark.parametrize("name", REFERENCES)
def test_graphs_of_other_rows_are_what_would_be_built(tmp_path, name):
    spec = load_model(write_reference(tmp_path / "m.gguf", name)).spec
    few, more = (build_model_graph(spec, n_tokens=2, n_kv=n, n_out=1, n_ctx=200) for n in (97, 131))
    alike = CacheRows.of(few, 97)
    if few.digest == more.digest:
        assert alike is None, "a model without caches has one graph"
        return
    assert alike is not None
    made = alike.with_rows(131)
    assert (made.digest, made.name) == (more.digest, more.name)
    verify_graph(made)


def test_rows_that_another_extent_has_too_are_not_told_apart():
    """Of as many rows as tokens, or as the model is wide, each graph is built."""
    spec = load_model(ORACLE / "llama-tiny-f32.gguf").spec
    for n_tokens, n_kv in ((32, 32), (2, spec.hparams.n_embd)):
        graph = build_model_graph(spec, n_tokens=n_tokens, n_kv=n_kv, n_out=1, n_ctx=512)
        assert CacheRows.of(graph, n_kv) is None
