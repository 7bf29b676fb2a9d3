"""The graphs compute what llama.cpp computes: logits of five models, recorded once."""

import numpy as np
import pytest

from ggsched.ir.dtype import F16
from ggsched_llm.load import load_model
from tests.models.helpers import ORACLE, Runner

MODELS = [
    "llama-tiny-f32",
    "llama-tiny-f16",
    "llama-tiny-q8_0",
    "qwen3moe-tiny-f32",
    "gptoss-tiny-f32",
]
# llama.cpp rounds the activations too when weights are f16 or q8_0: rms difference over the
# standard deviation of the logits, per position.
RELATIVE = {"f16": 2e-3, "q8_0": 3e-2}


def assert_close(name, found, wanted):
    difference = found.astype(np.float64) - wanted
    kind = name.rsplit("-", 1)[1]
    if kind == "f32":
        assert np.abs(difference).max() < 2e-5
    else:
        rms = np.sqrt((difference**2).mean(axis=-1))
        assert (rms / wanted.std(axis=-1)).max() < RELATIVE[kind]


@pytest.fixture(scope="module", params=MODELS)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def recorded(name):
    with np.load(ORACLE / f"{name}.npz") as arrays:
        return dict(arrays)


@pytest.fixture(scope="module", params=["expand", "packed"])
def model(request, name):
    return load_model(ORACLE / f"{name}.gguf", weights=request.param)


@pytest.mark.parametrize("n", [1, 7, 33])
@pytest.mark.parametrize("batch", [64, 32, 3])
def test_prefill(name, model, recorded, n, batch):
    found = Runner(model).feed_all(recorded[f"tokens_{n}"], batch)
    assert_close(name, found, recorded[f"logits_{n}"])


def test_decode(name, model, recorded):
    runner = Runner(model)
    rows = [runner.feed(recorded["dec_prompt"], out_rows=[-1 % len(recorded["dec_prompt"])])]
    rows += [runner.feed([token]) for token in recorded["dec_tokens"]]
    found = np.concatenate(rows)
    assert_close(name, found, recorded["dec_logits"])
    if name.endswith("f32"):
        assert (found.argmax(axis=-1)[:16] == recorded["dec_tokens"]).all()


def test_any_rows_in_any_order(name, model, recorded):
    rows = [6, 0, 3]
    found = Runner(model).feed(recorded["tokens_7"], out_rows=rows)
    assert_close(name, found, recorded["logits_7"][rows])


def test_f16_cache_rounds_but_little(name, model, recorded):
    found = Runner(model, kv_dtype=F16).feed_all(recorded["tokens_33"], 32)
    wanted = recorded["logits_33"]
    rms = np.sqrt(((found - wanted) ** 2).mean(axis=-1)) / wanted.std(axis=-1)
    assert rms.max() < (3e-2 if name.endswith("q8_0") else 3e-3)
