"""Perplexity: against logits of the reference, and that no way of running changes it."""

import json
from math import exp

import numpy as np
import pytest

from ggsched.cli.main import main
from ggsched.config import Settings
from ggsched.errors import ModelError, UsageError
from ggsched_llm.load import load_model
from ggsched_llm.perplexity import Perplexity, perplexity
from ggsched_llm.session import Session
from ggsched_llm.session_options import SessionOptions
from tests.models.helpers import ORACLE, Runner, tiny_arrays, tiny_gguf

MODEL = ORACLE / "llama-tiny-f32.gguf"
LENGTH = 24


def text(parts, *, rest=0):
    hp = load_model(MODEL).hparams
    return np.random.default_rng(5).integers(0, hp.n_vocab, parts * LENGTH + rest).tolist()


def measured(tokens, devices=("cpu:0",), settings=None, first=None, **options):
    options = {"n_ctx": LENGTH, **options}
    with Session(
        load_model(MODEL), list(devices), SessionOptions(**options), settings=settings
    ) as session:
        return list(perplexity(session, tokens, first=first))


def expected(tokens):
    """Return -log p of the predicted tokens of one part, from the reference's logits."""
    logits = Runner(load_model(MODEL)).feed(tokens).astype(np.float64)
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    rows = range(LENGTH // 2, LENGTH - 1)
    return [-log_p[i, tokens[i + 1]] for i in rows]


def test_it_is_that_of_the_reference():
    tokens = text(3, rest=7)
    found = measured(tokens, first=2)
    parts = [tokens[i * LENGTH : (i + 1) * LENGTH] for i in range(3)]
    losses = np.concatenate([expected([2, *part[1:]]) for part in parts])
    assert [p.parts for p in found] == [1, 2, 3]
    assert found[-1].n_tokens == len(losses) == 3 * (LENGTH // 2 - 1)
    assert found[-1].value == pytest.approx(exp(losses.mean()), rel=1e-5)
    error = losses.std() / np.sqrt(len(losses) - 1)
    assert found[-1].error == pytest.approx(exp(losses.mean()) * error, rel=1e-4)


@pytest.mark.parametrize(
    ("devices", "options"),
    [
        (("cpu:0",), {"n_ubatch": 5}),
        (("cpu:0", "cpu:1"), {}),
        (("sim:0", "cpu:0"), {"n_ubatch": 4, "pipelining": "on"}),
        pytest.param(("opencl:0", "cpu:0"), {}, marks=pytest.mark.opencl),
    ],
)
def test_no_way_of_running_changes_the_model(devices, options):
    tokens = text(2)
    plain = measured(tokens)[-1]
    other = measured(tokens, devices, **options)[-1]
    assert other.value == pytest.approx(plain.value, rel=1e-5)
    streams = measured(tokens, devices, Settings(streams=3), **options)[-1]
    assert streams.value == pytest.approx(plain.value, rel=1e-5)


def test_what_cannot_be_measured():
    with pytest.raises(UsageError, match=f"23 tokens have no part of {LENGTH}"):
        measured(text(1)[:-1])
    with pytest.raises(UsageError, match="at least 4 tokens long"):
        measured(text(1), n_ctx=3)


def test_error_bars():
    assert Perplexity(1, 100, np.log(8.0), 0.25).error == pytest.approx(2.0)


def test_the_command(capsys):
    tokens = text(2)
    said = ["perplexity", str(MODEL), "--devices", "cpu:0", "-c", str(LENGTH)]
    asked = [*said, "--tokens", ",".join(map(str, tokens))]
    assert main(asked) == 0
    lines = capsys.readouterr().out.splitlines()
    wanted = measured(tokens)[-1]
    assert lines[1] == f"[2] {wanted.value:.4f}"
    assert lines[2].startswith(f"perplexity {wanted.value:.4f} ± {wanted.error:.4f}, ")
    assert main([*asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["perplexity"] == pytest.approx(wanted.value)
    assert (found["parts"], found["n_ctx"]) == (2, LENGTH)
    assert main(said) == 2
    assert "give the text as -f FILE" in capsys.readouterr().err
    assert main([*said, "-f", "/nowhere/text"]) == 2


def scaled(tmp_path, factor):
    arrays = tiny_arrays("llama")
    arrays["output.weight"] *= factor
    return str(tiny_gguf(tmp_path / "m.gguf", arrays=arrays))


def test_a_perplexity_that_no_float_holds(tmp_path, capsys):
    arguments = ["--tokens", "1,2,3,4,5,6,7,1", "-c", "4", "--devices", "cpu:0"]
    assert main(["perplexity", scaled(tmp_path, 1e4), *arguments]) == 0
    assert "perplexity inf" in capsys.readouterr().out
    assert main(["perplexity", scaled(tmp_path, 1e4), *arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["perplexity"] is None


@pytest.mark.parametrize("factor", [3e38, np.nan])
def test_logits_that_are_not_finite(tmp_path, factor):
    model = load_model(scaled(tmp_path, factor))
    with (
        Session(model, ["cpu:0"], SessionOptions(n_ctx=4)) as session,
        pytest.raises(ModelError, match="not finite"),
    ):
        list(perplexity(session, [1, 2, 3, 4, 5, 6, 7, 1]))
