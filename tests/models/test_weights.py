"""Weight policies: what type a weight has in the graph, and that its bytes are right."""

from dataclasses import replace

import numpy as np
import pytest
from gguf import GGMLQuantizationType

from ggsched.backend.arrays import numpy_dtype, numpy_shape
from ggsched.backend.packed import dequantize, encoder_of
from ggsched.backend.registry import open_devices
from ggsched.config import Settings
from ggsched.errors import BackendUnavailable, InternalError, ModelError, UsageError
from ggsched.files.mapping import file_behind
from ggsched.ir.dtype import BF16, F16, F32, QUANTIZED_DTYPES
from ggsched_llm import weights
from ggsched_llm.load import load_model, weight_array
from ggsched_llm.session import Session, SessionOptions
from tests.models.helpers import (
    ORACLE,
    Runner,
    stored,
    tiny_arrays,
    tiny_gguf,
    tiny_meta,
    write_gguf,
)
from tests.support.shapes import SMALL, random_weights, spec_of

ENCODED = [t for t in QUANTIZED_DTYPES if encoder_of(t)]
KINDS = {t: GGMLQuantizationType[t.name.upper()] for t in (F32, F16, BF16, *ENCODED)}
MATRIX = "blk.0.ffn_up.weight"


def model_with(tmp_path, dtype, policy, names=(MATRIX,)):
    arrays = tiny_arrays("llama")
    for name in names:
        arrays[name] = stored(arrays[name], KINDS[dtype])
    return load_model(tiny_gguf(tmp_path / "m.gguf", arrays=arrays), weights=policy)


@pytest.mark.parametrize("dtype", KINDS, ids=str)
def test_packed_keeps_the_type_and_copies_nothing(tmp_path, dtype):
    model = model_with(tmp_path, dtype, "packed")
    assert model.spec.weights[MATRIX].dtype is dtype
    array = weight_array(model, MATRIX)
    assert np.shares_memory(array, model.file.data)
    assert not array.flags.writeable
    assert array.dtype == numpy_dtype(dtype)
    assert array.shape == numpy_shape(dtype, model.spec.weights[MATRIX].shape)


@pytest.mark.parametrize("dtype", KINDS, ids=str)
@pytest.mark.parametrize("chunk", [1 << 20, 96])
def test_expand_converts(tmp_path, monkeypatch, dtype, chunk):
    monkeypatch.setattr(weights, "CHUNK_ELEMENTS", chunk)
    model = model_with(tmp_path, dtype, "expand")
    assert model.spec.weights[MATRIX].dtype is F32
    array = weight_array(model, MATRIX)
    wanted = dequantize(model.file.raw(MATRIX), dtype, array.shape)
    assert array.dtype == np.float32
    np.testing.assert_array_equal(array, wanted)
    assert np.shares_memory(array, model.file.data) == (dtype is F32)


@pytest.mark.parametrize("policy", ["expand", "packed"])
def test_norms_and_biases_are_f32_in_any_case(tmp_path, policy):
    arrays = tiny_arrays("gpt-oss", experts=4)
    halves = {n: a if a.ndim == 3 else stored(a, KINDS[F16]) for n, a in arrays.items()}
    path = tiny_gguf(tmp_path / "m.gguf", "gpt-oss", arrays=halves)
    model = load_model(path, weights=policy)
    for name, spec in model.spec.weights.items():
        matrix = name.endswith(".weight") and len(spec.shape) > 1
        packed = policy == "packed" and matrix and len(spec.shape) == 2
        assert spec.dtype is (F16 if packed else F32), name
    assert weight_array(model, "output_norm.weight").dtype == np.float32


def test_policies_give_the_same_logits():
    tokens = [3, 1, 4, 1, 5]
    found = []
    for policy in ("expand", "packed"):
        model = load_model(ORACLE / "llama-tiny-q8_0.gguf", weights=policy)
        found.append(Runner(model).feed(tokens))
    np.testing.assert_allclose(*found, atol=1e-5)


@pytest.mark.parametrize("dtype", ENCODED, ids=str)
@pytest.mark.parametrize("device", ["cpu:0", "opencl:0"])
def test_sessions_compute_with_weights_of_any_type(tmp_path, dtype, device):
    arrays = tiny_arrays("llama")
    matrices = [name for name, array in arrays.items() if array.ndim == 2]
    model = model_with(tmp_path, dtype, "packed", matrices)
    wanted = Runner(load_model(tmp_path / "m.gguf", weights="expand")).feed([3, 1, 4, 1, 5])
    try:
        devices = open_devices([device])
    except BackendUnavailable as error:
        pytest.skip(error.one_line())
    try:
        options = SessionOptions(n_ctx=32, cache_type="f32")  # as the runner's
        with Session(model, devices, options, settings=Settings()) as session:
            found = session.feed([3, 1, 4, 1, 5], all_logits=True)
    finally:
        devices[0].close()
    np.testing.assert_allclose(found, wanted, atol=1e-4 * np.abs(wanted).max())


def test_bytes_of_all_weights():
    packed = load_model(ORACLE / "llama-tiny-q8_0.gguf", weights="packed")
    assert packed.weight_nbytes() == sum(t.nbytes for t in packed.file.tensors.values())
    wide = load_model(ORACLE / "llama-tiny-q8_0.gguf")
    assert wide.weight_nbytes() == sum(weight_array(wide, n).nbytes for n in wide.spec.weights)


def test_unaligned_files_are_copied(tmp_path):
    arrays = tiny_arrays("llama")
    offsets = set()
    for extra in range(4):
        meta = {**tiny_meta("llama"), "general.alignment": 1, "x" * (1 + extra): 1}
        tensors = {n: stored(a) for n, a in arrays.items()}
        model = load_model(write_gguf(tmp_path / "m.gguf", meta, tensors, alignment=1))
        offsets.add(model.file.tensors[MATRIX].offset % 4)
        array = weight_array(model, MATRIX)
        assert array.flags.aligned
        assert not array.flags.writeable
        np.testing.assert_array_equal(array, arrays[MATRIX])
    assert len(offsets) == 4


def test_integers_are_no_weights(tmp_path):
    arrays = tiny_arrays("llama")
    arrays[MATRIX] = stored(arrays[MATRIX], GGMLQuantizationType.I32)
    with pytest.raises(ModelError, match=r"ffn_up.weight': is not of a float type: .* i32"):
        load_model(tiny_gguf(tmp_path / "m.gguf", arrays=arrays))


@pytest.mark.parametrize(
    "name",
    [
        "blk.0.attn_sinks.weight",
        "blk.0.attn_q_norm.weight",
        "blk.0.attn_norm.bias",
        "blk.0.ffn_up_exps.weight",
        "rope_factors_long.weight",
        "output_norm.bias",
        "token_embd_norm.weight",
        "output.bias",
        "blk.0.attn_kv_b.weight",
    ],
)
def test_tensors_that_the_architecture_does_not_know_are_refused(tmp_path, name):
    arrays = tiny_arrays("llama") | {name: np.ones(8, np.float32)}
    with pytest.raises(ModelError, match=f"tensor '{name}' is not used: architecture llama does"):
        load_model(tiny_gguf(tmp_path / "m.gguf", arrays=arrays))


@pytest.mark.parametrize("name", ["blk.0.attn_rot_embd.weight", "v.blk.0.attn_q.weight"])
def test_tensors_that_have_no_effect(tmp_path, name, caplog):
    arrays = tiny_arrays("llama")
    plain = load_model(tiny_gguf(tmp_path / "m.gguf", arrays=arrays))
    model = load_model(
        tiny_gguf(tmp_path / "n.gguf", arrays=arrays | {name: np.ones(8, np.float32)})
    )
    assert model.spec == plain.spec
    assert caplog.text.count("tensors are not used") == name.startswith("v.")


def test_integers_may_be_there(tmp_path, caplog):
    arrays = tiny_arrays("llama")
    arrays["notes"] = stored(np.arange(8).reshape(2, 4), GGMLQuantizationType.I32)
    model = load_model(tiny_gguf(tmp_path / "m.gguf", arrays=arrays))
    assert "1 tensors are not used: 'notes'" in caplog.text
    np.testing.assert_array_equal(weights.stored_array(model.file, "notes")[1], [4, 5, 6, 7])
    with pytest.raises(InternalError, match="i32"):
        weights.converted_array(model.file, "notes")


def test_wrong_arguments():
    path = ORACLE / "llama-tiny-f16.gguf"
    with pytest.raises(UsageError, match="no weight policy 'int4'"):
        load_model(path, weights="int4")
    with pytest.raises(ModelError, match="no weight 'x'"):
        weight_array(load_model(path), "x")
    with pytest.raises(ModelError, match="no tensor 'x'"):
        load_model(path).file.raw("x")


def test_opening_reads_no_weights():
    model = load_model(ORACLE / "gptoss-tiny-f32.gguf")
    assert file_behind(model.file.data) is not None
    assert not model.file.data.flags.writeable


@pytest.mark.parametrize("dtype", QUANTIZED_DTYPES, ids=str)
def test_random_weights_of_benchmarks_are_small(dtype):
    """Scales and minimums of blocks are no random bits: one NaN reaches every logit."""
    spec = spec_of(replace(SMALL, n_layer=1, n_vocab=64, n_embd=256, n_ff=256), dtype)
    numbers = dequantize(random_weights(spec)("token_embd.weight"), dtype, (64, 256))
    assert 0.001 < np.abs(numbers).max() < 0.06
