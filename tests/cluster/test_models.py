"""Small models over two and three machines: logits as on one, whatever lies where."""

import re

import numpy as np
import pytest

from ggsched.config import Settings
from ggsched_cluster.remote_devices import open_group
from ggsched_llm.load import load_model
from ggsched_llm.offload import Offload, OverrideRule
from ggsched_llm.session import Session, SessionOptions
from tests.cluster.workers import Members
from tests.models.helpers import ORACLE

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
MODELS = ("llama-tiny-f32", "llama-tiny-q8_0", "qwen3moe-tiny-f32", "gptoss-tiny-f32")
MIXES = (  # what is not named lies on the last machine
    {r"blk\.1|output": "b"},
    {r"blk\.0": "b"},
    {r"attn|cache": "b"},
    {r"blk\.0\.ffn": "a", r"blk\.1": "b"},
    {r"ffn_(down|up)": "b", r"ffn_gate": "a"},
)


def logits(model, devices, rules=(), pipelining="off", **more):
    offload = Offload(n_gpu_layers=0, overrides=tuple(rules)) if rules else Offload()
    options = SessionOptions(
        n_ctx=32,
        n_batch=8,
        n_ubatch=4,
        offload=offload,
        pipelining=pipelining,
        **more,
    )
    with Session(model, devices, options, settings=Settings(timeout_s=20)) as session:
        first = session.feed(PROMPT, all_logits=True)
        steps = [session.feed([token]) for token in (7, 8)]
        parts = [len(getattr(e, "parts", ())) for e in session.scheduler._executors.values()]
        return np.concatenate([first, *[np.atleast_2d(s) for s in steps]]), parts


@pytest.fixture
def group():
    """Three machines with one device each."""
    devices = open_group(Members("a", "b", "c").start, backends=("cpu",), timeout_s=20)
    yield devices
    for device in devices:
        device.close()


@pytest.mark.parametrize(
    ("name", "mixes"),
    [
        (MODELS[0], MIXES),
        *((name, MIXES[k::2]) for k, name in zip((0, 1, 0), MODELS[1:], strict=True)),
        *(pytest.param(name, MIXES, marks=pytest.mark.slow) for name in MODELS[1:]),
    ],
    ids=[*MODELS, *(f"{name}-all" for name in MODELS[1:])],
)
def test_logits(name, mixes, group):
    model = load_model(ORACLE / f"{name}.gguf", weights="packed")
    wanted, _ = logits(model, ["cpu:0"])
    for mix in mixes:
        rules = [
            OverrideRule(re.compile(pattern), f"threads://{machine}/cpu:0")
            for pattern, machine in mix.items()
        ]
        found, parts = logits(model, group, rules, "on" if mix is MIXES[0] else "off")
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5, err_msg=str(mix))
        assert max(parts) == 1 + len(set(mix.values()))


@pytest.mark.parametrize("group", [2, None])
def test_layers_shared_by_the_devices_of_a_machine(group):
    """A pipeline of machines whose two devices share each layer; or all four share it."""
    model = load_model(ORACLE / "llama-tiny-f32.gguf", weights="packed")
    wanted, _ = logits(model, ["cpu:0"])
    pair = ("cpu:0", "cpu:1")
    devices = open_group(Members("a", "b").start, [("a", pair), ("b", pair)], timeout_s=20)
    try:
        found, parts = logits(model, devices, split_mode="tensor", group_size=group)
    finally:
        for device in devices:
            device.close()
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5)
    assert max(parts) == 2


@pytest.mark.opencl
@pytest.mark.parametrize("name", [MODELS[3], pytest.param(MODELS[1], marks=pytest.mark.slow)])
def test_logits_with_opencl(name, monkeypatch):
    """Two machines with an OpenCL device, and a CPU beside one: as the same mix in one process.

    Neither rows nor caches are rounded: micro-batches of one process and of two may have different
    numbers of rows, whose sums differ by a last bit that rounding turns into a step of f16.
    """
    monkeypatch.setenv("GGSCHED_ACTIVATIONS", "f32")
    model = load_model(ORACLE / f"{name}.gguf", weights="packed")
    mixes = (
        {r"blk\.0": "a/opencl:0", r"blk\.1": "b/opencl:0"},
        {r"ffn": "a/opencl:0", r"attn|cache": "b/cpu:0"},
        {r"blk\.1|output": "a/opencl:0"},
    )
    given = [("a", ("opencl:0",)), ("b", ("opencl:0", "cpu:0"))]
    devices = open_group(Members("a", "b").start, given, timeout_s=20)
    try:
        for mix in mixes:
            here, there = (
                [OverrideRule(re.compile(p), name(device)) for p, device in mix.items()]
                for name in (lambda d: d[2:], lambda d: f"threads://{d}")
            )
            exact = {"cache_type": "f32"}
            wanted, _ = logits(model, ["opencl:0", "cpu:0"], here, **exact)
            found, parts = logits(model, devices, there, **exact)
            np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5, err_msg=str(mix))
            assert max(parts) == 2
    finally:
        for device in devices:
            device.close()
