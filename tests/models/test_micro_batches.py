"""Micro-batches as one graph: the same logits, one host sync, two devices at once where it pays."""

import re
from dataclasses import replace
from itertools import cycle, product

import numpy as np
import pytest

from ggsched.backend.probe import probe
from ggsched.backend.registry import open_devices
from ggsched.cli.main import main
from ggsched.config import Settings
from ggsched.errors import BackendUnavailable, UsageError
from ggsched.plan.command import HostSync
from ggsched_llm.load import load_model
from ggsched_llm.offload import Offload, OverrideRule
from ggsched_llm.session import Session, SessionOptions
from ggsched_testing.restricted_device import limited_devices
from tests.models.helpers import ORACLE

MODELS = ("llama-tiny-f32", "qwen3moe-tiny-f32", "gptoss-tiny-f32")
TWO = OverrideRule(re.compile(r"blk\.[01]\."), "cpu:0")


@pytest.fixture(scope="module")
def devices():
    opened = {}
    for names in (("cpu:0", "cpu:1"), ("opencl:0", "cpu:0")):
        try:
            opened[names] = open_devices(list(names))
        except BackendUnavailable:
            continue
    yield opened
    for some in opened.values():
        for device in some:
            device.close()


def session(name, devices, **options):
    sizes = SessionOptions(n_ctx=64, n_ubatch=5, n_batch=20, **options)
    return Session(load_model(ORACLE / f"{name}.gguf"), devices, sizes, settings=Settings())


CASES = list(zip(product(MODELS, ("cpu:1", "opencl:0")), cycle((1, 2, 3, None)), strict=False))


@pytest.mark.parametrize(("case", "slots"), CASES)
@pytest.mark.parametrize("all_logits", [False, True])
def test_the_recorded_logits(case, slots, all_logits, devices):
    name, other = case
    names = ("cpu:0", "cpu:1") if other == "cpu:1" else ("opencl:0", "cpu:0")
    if names not in devices:
        pytest.skip(f"no {names[0]} here")
    with np.load(ORACLE / f"{name}.npz") as arrays:
        tokens, wanted = arrays["tokens_33"], arrays["logits_33"]
    how = {"offload": Offload(overrides=(TWO,)), "pipelining": "on", "pipeline_buffers": slots}
    with session(name, devices[names], **how) as s:
        for _ in range(2):
            found = s.feed(tokens, all_logits=all_logits)
            assert np.abs(found - (wanted if all_logits else wanted[-1:])).max() < 1e-4
            s.reset()
        plan = s.last_plan
        assert len({split.device for split in plan.splits.splits}) == 2
        assert s.n_past == 0


@pytest.mark.parametrize("name", ["llama-tiny-f32", "gptoss-tiny-f32"])
@pytest.mark.parametrize("mode", ["on", "off"])
def test_devices_without_attention_and_products_of_gates(name, mode, devices):
    inner = devices["cpu:0", "cpu:1"]
    lacks = ("attention", "swiglu", "swiglu_oai", "add_id", "silu")
    facts = [
        replace(d.facts, ops=frozenset(k for k in d.facts.ops if k.split(":")[0] not in lacks))
        for d in inner
    ]
    limited = limited_devices(inner, replace(probe(inner), devices=tuple(facts)))
    with np.load(ORACLE / f"{name}.npz") as arrays:
        tokens, wanted = arrays["tokens_33"], arrays["logits_33"]
    with session(name, limited, offload=Offload(overrides=(TWO,)), pipelining=mode) as s:
        found = s.feed(tokens, all_logits=True)
        plan = s.last_plan
    assert not {n.op for n in plan.nodes} & set(lacks)
    assert len({split.device for split in plan.splits.splits}) == 2
    assert np.abs(found - wanted).max() < 1e-4


def test_one_host_sync_for_a_batch(devices):
    """However many micro-batches it has, and none at all where nothing is requested."""
    names = ("cpu:0", "cpu:1")
    how = {"offload": Offload(overrides=(TWO,)), "pipelining": "on"}
    with session("llama-tiny-f32", devices[names], **how) as s:
        for count in (10, 20):
            s.feed(list(range(1, count + 1)))
            reads = [c for c in s.last_plan.commands if isinstance(c, HostSync)]
            assert [c.hazard.next_run for c in reads].count(False) == 1
            s.reset()


@pytest.mark.parametrize("mode", ["auto", "on", "off"])
def test_the_modes(mode, devices):
    names = ("cpu:0", "cpu:1")
    how = {"offload": Offload(overrides=(TWO,)), "pipelining": mode}
    with session("llama-tiny-f32", devices[names], **how) as s:
        s.feed(list(range(1, 16)))
        is_joined = " x 3" in s.last_plan.name
        assert is_joined == {"on": True, "off": False}.get(mode, is_joined)
    with session("llama-tiny-f32", devices[names][:1], pipelining=mode) as s:
        s.feed(list(range(1, 16)))
        assert " x 3" not in s.last_plan.name


def test_a_failed_batch_leaves_the_sequence_as_it_was(devices):
    with session("llama-tiny-f32", devices["cpu:0", "cpu:1"], pipelining="on") as s:
        s.feed([1, 2, 3])
        with pytest.raises(UsageError):
            s.feed(list(range(1, 100)))
        assert s.n_past == 3


@pytest.mark.parametrize("wrong", ["0", "-1", "many"])
def test_slots_that_make_no_sense(wrong, capsys):
    assert main(["run", "x.gguf", "-p", "1", "--pipeline-buffers", wrong]) == 2
    assert "auto" in capsys.readouterr().err
