"""The type of the KV cache: chosen by the model's weights or by the user."""

from pathlib import Path

import numpy as np
import pytest

from ggsched.cli.main import main
from ggsched.errors import UsageError
from ggsched.ir.dtype import BF16, F16, F32, Q8_0
from ggsched.ir.tensor import Role
from ggsched_llm.load import load_model
from ggsched_llm.session import Session
from ggsched_llm.session_options import SessionOptions
from ggsched_llm.spec import CACHE_DTYPES, cache_dtype
from tests.models.helpers import ORACLE

EXACT, ROUNDED = ORACLE / "llama-tiny-f32.gguf", ORACLE / "llama-tiny-q8_0.gguf"
DEMO = Path("ggsched/data/addition-moe.gguf").resolve()
TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]


def session(path, devices=("cpu:0",), **options):
    return Session(load_model(path), list(devices), SessionOptions(n_ctx=64, **options))


def states(s):
    graph = s.graph(len(TOKENS), 0, 1)
    return [t for t in graph.tensors if t.role is Role.STATE and not t.is_view]


@pytest.mark.parametrize(
    ("path", "asked", "dtype"),
    [
        (EXACT, "auto", F32),
        (ROUNDED, "auto", F16),
        (ORACLE / "llama-tiny-f16.gguf", "auto", F16),
        (EXACT, "f16", F16),
        (ROUNDED, "f32", F32),
        (ROUNDED, "bf16", BF16),
        (DEMO, "q8_0", Q8_0),
    ],
)
def test_the_model_decides_unless_the_user_does(path, asked, dtype):
    assert cache_dtype(load_model(path).spec, asked) is dtype
    with session(path, cache_type=asked) as s:
        assert {t.dtype for t in states(s)} == {dtype}
        hp = s.spec.hparams
        wanted = 2 * hp.n_layer * 64 * dtype.row_nbytes(hp.n_embd_kv)
        assert sum(t.nbytes for t in states(s)) == wanted
        assert s.memory_need(8, 1).least[0].states == wanted


@pytest.mark.parametrize(
    "devices", [("cpu:0",), ("sim:0", "cpu:0"), pytest.param(("opencl:0", "cpu:0"))]
)
@pytest.mark.parametrize("path", [EXACT, ROUNDED, ORACLE / "gptoss-tiny-f32.gguf"])
def test_a_rounded_cache_changes_logits_by_little(path, devices):
    """In prefill, in decoding, and after the sequence was forgotten."""
    found = {}
    for asked in ("f32", "f16"):
        with session(path, devices, cache_type=asked) as s:
            rows = [s.feed(TOKENS[:5], all_logits=True)]
            rows += [s.feed([t]) for t in TOKENS[5:]]
            first = np.concatenate(rows)
            s.reset()
            again = np.concatenate([s.feed(TOKENS[:5], all_logits=True)])
            np.testing.assert_allclose(again, first[:5], atol=2e-3 * np.abs(first).max())
            found[asked] = first
    scale = np.abs(found["f32"]).max()
    assert 0 < np.abs(found["f16"] - found["f32"]).max() < 5e-3 * scale


@pytest.mark.parametrize(
    ("devices", "asked", "most"),
    [
        (("cpu:0",), "bf16", 0.03),
        (("cpu:0",), "q8_0", 0.02),
        (("sim:0", "cpu:0"), "bf16", 0.03),
        pytest.param(("sim:0", "cpu:0"), "q8_0", 0.02, marks=pytest.mark.slow),
        pytest.param(("opencl:0", "cpu:0"), "bf16", 0.03, marks=pytest.mark.slow),
        (("opencl:0", "cpu:0"), "q8_0", 0.02),
    ],
)
def test_logits_with_coarser_types(devices, asked, most):
    """Of a model that adds: in prefill, in decoding, after a cut, and of a copied sequence."""
    found = {}
    for kind in ("f32", asked):
        with session(DEMO, devices, cache_type=kind, n_parallel=2) as s:
            rows = [s.feed(TOKENS[:5], all_logits=True)]
            rows += [s.feed([t]) for t in TOKENS[5:]]
            s.truncate(5)
            again = [s.feed([t]) for t in TOKENS[5:]]
            np.testing.assert_array_equal(np.concatenate(rows[1:]), np.concatenate(again))
            found[kind] = np.concatenate(rows)
            s.reset()
            first = s.sequences.join()
            s.sequences.step({first: TOKENS})
            second = s.sequences.copy(first)
            both = s.sequences.step({first: [7], second: [7]})
            np.testing.assert_allclose(both[first], both[second], 1e-4, 1e-4)
    scale = np.abs(found["f32"]).max()
    assert 0 < np.abs(found[asked] - found["f32"]).max() < most * scale


@pytest.mark.parametrize("asked", ["f16", "bf16", "q8_0"])
def test_memory_follows_the_type_takes(asked):
    with session(DEMO, cache_type="f32") as s:
        whole = s.memory_need(len(TOKENS), 1).least[0].total
    with session(DEMO, cache_type=asked) as s:
        hp, dtype = s.spec.hparams, CACHE_DTYPES[asked]
        rows = 2 * hp.n_layer * 64
        saved = rows * (4 * hp.n_embd_kv - dtype.row_nbytes(hp.n_embd_kv))
        assert whole - s.memory_need(len(TOKENS), 1).least[0].total == saved


def test_heads_that_are_not_whole_blocks_are_refused(capsys):
    why = "a KV cache of q8_0 for heads of 16 elements"
    with pytest.raises(UsageError, match=why):
        session(EXACT, cache_type="q8_0")
    asked = ["run", str(EXACT), "--tokens", "1,2", "-n", "1", "--devices", "cpu:0", "-ctk", "q8_0"]
    assert main(asked) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert why in err
    assert "use f16 or bf16" in err


def test_an_unknown_type_is_refused():
    with pytest.raises(UsageError, match="a KV cache of 'q3'"):
        session(EXACT, cache_type="q3")


def test_keys_and_values_have_one_type(capsys):
    asked = ["run", str(EXACT), "--tokens", "1,2", "-n", "1", "--devices", "cpu:0"]
    assert main([*asked, "-ctk", "f16", "-ctv", "f32"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "--cache-type-k f16 with --cache-type-v f32" in err
    assert main([*asked, "-ctv", "f16"]) == 0
    assert main([*asked, "--cache-type-k", "q9"]) == 2
