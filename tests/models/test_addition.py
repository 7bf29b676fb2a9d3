"""The demo's model adds numbers that it has never seen, with the same tokens on every split."""

import importlib.util
import re
import sys
from functools import cache
from importlib.resources import files
from pathlib import Path

import pytest

from ggsched.backend.registry import discover
from ggsched_llm.load import load_model
from ggsched_llm.offload import Offload, OverrideRule
from ggsched_llm.session import Session, SessionOptions

MODEL = str(files("ggsched.data") / "addition-moe.gguf")
SOME = 120
TRAINING = Path(__file__).parents[2] / "examples" / "train_addition" / "train.py"


@cache
def held_out(count):
    """Return the test set of the training script, which is the one place that defines it."""
    spec = importlib.util.spec_from_file_location("train_addition", TRAINING)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module.held_out_sample(count)


def answers(pairs, devices, offload=None, n_ubatch=64):
    """Return the tokens of each answer."""
    model = load_model(MODEL)
    options = SessionOptions(n_ctx=64, n_ubatch=n_ubatch, offload=offload or Offload())
    out = []
    with Session(model, devices, options) as session:
        for a, b in pairs:
            session.reset()
            prompt = model.tokenizer.encode(f"{a}+{b}=")
            out.append(list(session.generate(prompt, 6, stop=model.tokenizer.stop_ids)))
    return out


def rules(*texts):
    """Return overrides from ``REGEX=DEVICE``."""
    return Offload(overrides=tuple(_rule(t) for t in texts))


def _rule(text):
    pattern, _, device = text.rpartition("=")
    return OverrideRule(re.compile(pattern), device)


@cache
def on_one_device(count):
    """Return the answers of a single CPU device."""
    return answers(held_out(count), ["cpu:0"])


@pytest.mark.parametrize("count", [SOME, pytest.param(500, marks=pytest.mark.slow)])
def test_held_out_sums_are_right(count):
    model = load_model(MODEL)
    right = sum(
        model.tokenizer.decode(tokens) == str(a + b)
        for (a, b), tokens in zip(held_out(count), on_one_device(count), strict=True)
    )
    assert right >= 0.99 * count


SPLITS = {
    "blocks": rules("blk.1=cpu:0"),
    "experts": rules("exps=cpu:0"),
    "caches": rules("_cache=cpu:0"),
    "one matrix": rules("blk.2.attn_q.weight=cpu:0"),
    "every other tensor": rules("(attn|norm)=cpu:0"),
}


def share(number):
    """Return sums of its own for each of several tests."""
    return slice(8 * number, 8 * number + 8)


@pytest.mark.parametrize("name", SPLITS)
@pytest.mark.parametrize("n_ubatch", [2, 64])
def test_same_tokens_on_two_cpu_devices(name, n_ubatch):
    some = share(list(SPLITS).index(name) + len(SPLITS) * (n_ubatch == 64))
    got = answers(held_out(SOME)[some], ["cpu:0", "cpu:1"], SPLITS[name], n_ubatch)
    assert got == on_one_device(SOME)[some]


WITH_OPENCL = {
    "all": Offload(),
    "-ngl 2": Offload(n_gpu_layers=2),
    "--n-cpu-moe 2": Offload(n_cpu_moe=2),
    "-ot": rules("exps=opencl:0", ".=cpu:0"),
}


@pytest.mark.parametrize("name", WITH_OPENCL)
def test_same_tokens_with_opencl(name):
    ready = {d.name for s in discover() for d in s.devices if d.state == "ready"}
    if "opencl:0" not in ready:
        pytest.skip("no OpenCL device")
    some = share(2 * len(SPLITS) + list(WITH_OPENCL).index(name))
    got = answers(held_out(SOME)[some], ["opencl:0", "cpu:0"], WITH_OPENCL[name])
    assert got == on_one_device(SOME)[some]


@pytest.mark.slow
@pytest.mark.parametrize("name", SPLITS)
def test_all_sums_on_two_cpu_devices(name):
    assert answers(held_out(500), ["cpu:0", "cpu:1"], SPLITS[name]) == on_one_device(500)
