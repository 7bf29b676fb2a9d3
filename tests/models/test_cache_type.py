"""The type of the KV cache: chosen by the model's weights or by the user."""

import numpy as np
import pytest

from ggsched.cli.main import main
from ggsched.errors import UsageError
from ggsched.ir.dtype import F16, F32
from ggsched.ir.tensor import Role
from ggsched.models.load import load_model
from ggsched.models.session import Session
from ggsched.models.session_options import SessionOptions
from ggsched.models.spec import cache_dtype
from tests.models.helpers import ORACLE

EXACT, ROUNDED = ORACLE / "llama-tiny-f32.gguf", ORACLE / "llama-tiny-q8_0.gguf"
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
    ],
)
def test_the_model_decides_unless_the_user_does(path, asked, dtype):
    assert cache_dtype(load_model(path).spec, asked) is dtype
    with session(path, cache_type=asked) as s:
        assert {t.dtype for t in states(s)} == {dtype}
        hp = s.spec.hparams
        wanted = 2 * hp.n_layer * 64 * hp.n_embd_kv * dtype.block_nbytes
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
