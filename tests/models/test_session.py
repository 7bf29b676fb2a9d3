"""Sessions compute what llama.cpp computes, wherever the model's tensors live.

Every run here takes one way through the choices (device of each tensor, micro-batch); the whole
product is marked ``slow``. Logits that were recorded once: see ``tests/data/oracle``.
"""

import re
import subprocess
import sys
from itertools import cycle, product

import numpy as np
import pytest

from ggsched.config import Settings
from ggsched.errors import UsageError
from ggsched_llm.load import load_model
from ggsched_llm.offload import Offload, OverrideRule
from ggsched_llm.session import Session, SessionOptions
from tests.models.helpers import ORACLE, opened_once

MODELS = (
    "llama-tiny-f32",
    "llama-tiny-f16",
    "llama-tiny-q8_0",
    "qwen3moe-tiny-f32",
    "gptoss-tiny-f32",
)
MIXTURES = ("qwen3moe-tiny-f32", "gptoss-tiny-f32")
LAYERS = 3
UBATCHES = (1, 3, 32)
RELATIVE = {"f16": 2e-3, "q8_0": 3e-2}
CPUS = ("cpu:0", "cpu:1")
MIXED = ("opencl:0", "cpu:0")

# One of each kind of tensor: embedding, head, attention, cache, norm, feed forward, experts.
SINGLE = {
    "llama-tiny-f32": (
        r"^token_embd",
        r"^output\.",
        r"^output_norm",
        r"blk\.0\.attn_q\.",
        r"blk\.1\.attn_v\.",
        r"blk\.2\.attn_output",
        r"blk\.1\.attn_norm",
        r"blk\.0\.ffn_down",
        r"blk\.2\.ffn_gate",
        r"blk\.1\.k_cache",
        r"blk\.2\.v_cache",
        r"_cache",
    ),
    "qwen3moe-tiny-f32": (
        r"blk\.1\.attn_q_norm",
        r"blk\.0\.ffn_gate_inp",
        r"blk\.1\.ffn_up_exps",
        r"blk\.2\.ffn_down_exps",
        r"blk\.0\.k_cache",
    ),
    "gptoss-tiny-f32": (
        r"blk\.0\.attn_sinks",
        r"blk\.1\.attn_k\.bias",
        r"blk\.2\.ffn_gate_exps",
        r"blk\.0\.ffn_down_exps\.bias",
        r"blk\.2\.v_cache",
    ),
}


def rules(*texts):
    """``-ot`` rules from REGEX=DEVICE."""
    pairs = [text.rpartition("=") for text in texts]
    return tuple(OverrideRule(re.compile(pattern), device) for pattern, _, device in pairs)


@pytest.fixture(scope="module")
def devices():
    """Open devices once; a function from names to devices."""
    with opened_once() as get:
        yield get


@pytest.fixture(scope="module")
def models():
    opened = {}

    def get(name):
        if name not in opened:
            with np.load(ORACLE / f"{name}.npz") as arrays:
                opened[name] = (load_model(ORACLE / f"{name}.gguf"), dict(arrays))
        return opened[name]

    return get


def assert_close(name, found, wanted, tolerance):
    difference = found.astype(np.float64) - wanted
    kind = name.rsplit("-", 1)[1]
    if kind == "f32":
        assert np.abs(difference).max() < tolerance
    else:
        rms = np.sqrt((difference**2).mean(axis=-1))
        assert (rms / wanted.std(axis=-1)).max() < RELATIVE[kind]


def compare(name, models, devices, names, offload, ubatch, pipelining="auto"):
    """Prefill 33 tokens, then 7 and 16 more one by one, and compare all logits."""
    model, recorded = models(name)
    tolerance = 2e-5 if names == CPUS else 1e-4
    options = SessionOptions(n_ctx=64, n_ubatch=ubatch, offload=offload, pipelining=pipelining)
    with Session(model, devices(names), options, settings=Settings()) as session:
        found = session.feed(recorded["tokens_33"], all_logits=True)
        assert_close(name, found, recorded["logits_33"], tolerance)
        session.reset()
        rows = [session.feed(recorded["dec_prompt"])]
        rows += [session.feed([token]) for token in recorded["dec_tokens"]]
        found = np.concatenate(rows)
        assert_close(name, found, recorded["dec_logits"], tolerance)
        if name.endswith("f32"):
            assert (found.argmax(axis=-1)[:16] == recorded["dec_tokens"]).all()
        return session.last_plan


def one_way():
    """Each tensor on another device once; devices and micro-batches in turn.

    Those of one token are fewer: 33 of them are planned as one graph, which takes over a second.
    """
    ubatch = cycle((3, 32, 3, 32, 1, 3, 32))
    for name in MODELS:
        for ngl in range(LAYERS + 2) if name.endswith("f32") else (1, LAYERS + 1):
            yield name, MIXED, Offload(n_gpu_layers=ngl), next(ubatch)
    for name in MIXTURES:
        for n in range(1, LAYERS + 1):
            yield name, MIXED, Offload(n_cpu_moe=n), next(ubatch)
    names = cycle((CPUS, MIXED))
    for name, patterns in SINGLE.items():
        for pattern in patterns:
            offload = Offload(overrides=rules(f"{pattern}=cpu:0"))
            yield name, next(names), offload, next(ubatch)


def every_way():
    """The whole product."""
    for name, ubatch in product(MODELS, UBATCHES):
        moes = range(LAYERS + 1) if name in MIXTURES else (0,)
        for ngl, moe in product(range(LAYERS + 2), moes):
            yield name, MIXED, Offload(n_gpu_layers=ngl, n_cpu_moe=moe), ubatch
        patterns = SINGLE.get(name, SINGLE["llama-tiny-f32"])
        for pattern, (names, target) in product(
            patterns, ((CPUS, "cpu:0"), (MIXED, "cpu:0"), (MIXED, "opencl:0"))
        ):
            layers = 0 if target == "opencl:0" else None
            offload = Offload(n_gpu_layers=layers, overrides=rules(f"{pattern}={target}"))
            yield name, names, offload, ubatch


def label(case):
    name, names, offload, ubatch = case
    parts = [name, "+".join(names), f"ub{ubatch}"]
    if offload.n_gpu_layers is not None:
        parts.append(f"ngl{offload.n_gpu_layers}")
    if offload.n_cpu_moe:
        parts.append(f"moe{offload.n_cpu_moe}")
    parts += [f"{rule.pattern.pattern}={rule.device}" for rule in offload.overrides]
    return " ".join(parts)


def cases(ways):
    marks = {MIXED: [pytest.mark.opencl], CPUS: []}
    return [pytest.param(case, id=label(case), marks=marks[case[1]]) for case in ways]


@pytest.mark.parametrize("case", cases(one_way()))
def test_logits(case, models, devices):
    """To find out whether a pipeline pays, which other tests do, would take half of the time."""
    compare(case[0], models, devices, *case[1:], pipelining="off")


@pytest.mark.slow
@pytest.mark.parametrize("case", cases(every_way()))
def test_logits_of_every_way(case, models, devices):
    name, names, offload, ubatch = case
    compare(name, models, devices, names, offload, ubatch)


@pytest.mark.parametrize(
    ("name", "ubatch"),
    [
        pytest.param(name, n, marks=[pytest.mark.slow] if n == 1 and name not in MIXTURES else [])
        for name, n in product(MODELS, UBATCHES)
    ],
)
def test_logits_on_two_cpus(name, ubatch, models, devices):
    """Every other block, its cache elsewhere than its attention, and half of the experts."""
    offload = Offload(
        overrides=rules(
            r"blk\.[02]\.v_cache=cpu:1",
            r"blk\.1\.k_cache=cpu:0",
            r"blk\.[02]\.ffn_(up|down)_exps=cpu:1",
            r"blk\.[02]\.=cpu:0",
            r"^output=cpu:0",
        )
        if name in MIXTURES
        else rules(r"blk\.[02]\.v_cache=cpu:1", r"blk\.1\.k_cache=cpu:0", r"blk\.[02]\.=cpu:0")
    )
    pipelining = "auto" if ubatch == 3 and name.endswith("f32") else "off"
    plan = compare(name, models, devices, CPUS, offload, ubatch, pipelining)
    assert len(plan.splits.splits) > 3
    assert {c.device for c in plan.placement.choices} == {0, 1}


@pytest.mark.parametrize("name", MODELS)
def test_logits_on_one_cpu(name, models, devices):
    plan = compare(name, models, devices, ("cpu:0",), Offload(), 32)
    assert len(plan.splits.splits) == 1


@pytest.mark.parametrize(
    "tokens", [[1.0, 2.0], [1, 2.5], ["a"], [True], [[1, 2]], np.ones(2, np.float32), [None]]
)
def test_only_whole_numbers_are_fed(tokens):
    with Session(load_model(ORACLE / "llama-tiny-f32.gguf"), ["cpu:0"]) as session:
        with pytest.raises(UsageError, match="is not a token id"):
            session.feed(tokens)
        assert session.n_past == 0
        session.feed(np.array([1, 2], np.int64))
        assert session.n_past == 2


@pytest.mark.parametrize("odd", [{"pipelining": "maybe"}, {"pipeline_buffers": 0}])
def test_options_that_make_no_sense(odd):
    with pytest.raises(UsageError):
        SessionOptions(**odd).check()


def test_numbers_that_make_no_sense(models, devices):
    model, _ = models("llama-tiny-f32")
    with Session(model, devices(("cpu:0",)), settings=Settings()) as session:
        for prompt, predict in ((0, 0), (0, 4), (3, -1)):
            with pytest.raises(UsageError, match=f"a prompt of {prompt} tokens"):
                session.memory_need(prompt, predict)
        with pytest.raises(UsageError, match="-1 retries"):
            next(session.generate([1], 2, retries=-1))


def test_a_session_imports_no_package_that_writes_files():
    """``gguf`` brings yaml and a tokenizer along: a tenth of what importing a session takes."""
    code = (
        "import sys, ggsched_llm.load, ggsched_llm.session;"
        "sys.exit(any(n in sys.modules for n in ('gguf', 'networkx', 'jinja2', 'tokenizers')))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
