"""Tokens of a micro-batch where nobody says it: more on GPUs that have all layers."""

from dataclasses import replace

import numpy as np
import pytest

from ggsched.errors import PlanError
from ggsched_llm.draft import Draft
from ggsched_llm.load import load_model
from ggsched_llm.memory_need import MemoryNeed, Need
from ggsched_llm.micro_batch_size import has_room, larger_steps
from ggsched_llm.offload import EMBEDDING, Homes
from ggsched_llm.session import Session
from ggsched_llm.session_options import SessionOptions
from ggsched_testing.plan_builder import fake_device
from ggsched_testing.sim import SimConfig, SimWorld
from tests.models.helpers import ORACLE

GPU, CPU = (replace(fake_device(f"{kind}:0"), kind=kind) for kind in ("gpu", "cpu"))
FREE = SessionOptions(n_ctx=4096)


def homes(*devices):
    return Homes({f"w{i}": d for i, d in enumerate(devices)} | {EMBEDDING: 0}, {}, (), None)


@pytest.mark.parametrize(
    ("options", "devices", "used", "lanes", "sizes"),
    [
        (FREE, (GPU,), (0,), 1, (2048, 1024)),
        (replace(FREE, n_batch=8192), (GPU,), (0,), 1, (4096, 2048, 1024)),
        (FREE, (CPU, GPU), (1, 1), 1, (2048, 1024)),  # the embedding stays on the host
        (FREE, (CPU, GPU), (0, 1), 1, ()),
        (FREE, (GPU, GPU), (0, 1), 1, ()),  # a pipeline
        (replace(FREE, split_mode="tensor"), (GPU, GPU), (0, 1), 2, (1024,)),
        (FREE, (CPU,), (0,), 1, ()),
        (replace(FREE, n_ubatch=512), (GPU,), (0,), 1, ()),
        (replace(FREE, n_batch=1500), (GPU,), (0,), 1, (1024,)),
        (replace(FREE, n_ctx=512), (GPU,), (0,), 1, ()),
    ],
)
def test_what_is_considered(options, devices, used, lanes, sizes):
    assert larger_steps(options, devices, homes(*used), lanes) == sizes


@pytest.mark.parametrize(("logits", "fits"), [(0, True), (40, True), (41, False)])
def test_room(logits, fits):
    need = MemoryNeed({}, {0: Need(weights=30, arenas=20), 1: Need()}, {}, 1, 1)
    assert has_room(need, logits, (100, 100)) is fits


@pytest.fixture
def small_sizes(monkeypatch):
    monkeypatch.setattr("ggsched_llm.micro_batch_size.DEFAULT_STEP", 8)
    monkeypatch.setattr("ggsched_llm.session_options.DEFAULT_STEP", 8)
    monkeypatch.setattr("ggsched_llm.micro_batch_size._SIZES", (32, 16))


def fed(lengths, **options):
    """Return the logits of prompts one after another, and the size behind each."""
    logits, steps = [], []
    model = load_model(ORACLE / "llama-tiny-f32.gguf")
    with Session(model, ["sim:0"], SessionOptions(n_ctx=64, **options)) as session:
        for n in lengths:
            logits.append(session.feed(range(1, n + 1)))
            steps.append(session.batches.step)
    return logits, steps


@pytest.mark.usefixtures("small_sizes")
def test_the_first_longer_prompt_decides():
    wanted, _ = fed([5, 40], n_ubatch=8)
    found, steps = fed([5, 40])
    assert steps == [8, 32]
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("small_sizes")
def test_a_size_stays_only_if_there_was_room(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("ggsched_llm.batch_runner.has_room", interrupted)
    model = load_model(ORACLE / "llama-tiny-f32.gguf")
    with Session(model, ["sim:0"], SessionOptions(n_ctx=64)) as session:
        with pytest.raises(KeyboardInterrupt):
            session.feed(range(1, 41))
        assert session.batches.step == 8


@pytest.mark.usefixtures("small_sizes")
def test_a_draft_model_takes_its_memory_first():
    """Of a device that holds the model with larger micro-batches, or the model and its draft."""
    model, options = load_model(ORACLE / "llama-tiny-f32.gguf"), SessionOptions(n_ctx=64)
    steps = []
    for has_draft in (False, True):
        (device,) = SimWorld([SimConfig(memory_nbytes=1_190_000)]).open_all()
        with Session(model, [device], options) as session:
            if has_draft:
                session.use_draft(model)
                assert session.draft.nbytes()["sim:0"] > 300_000
            session.feed(range(1, 41))
            steps.append(session.batches.step)
    assert steps == [32, 8]


@pytest.mark.usefixtures("small_sizes")
def test_a_draft_model_that_cannot_be_planned_takes_nothing(monkeypatch):
    def fail(draft):
        raise PlanError("no plan")

    monkeypatch.setattr(Draft, "nbytes", fail)
    model = load_model(ORACLE / "llama-tiny-f32.gguf")
    with Session(model, ["sim:0"], SessionOptions(n_ctx=64)) as session:
        session.use_draft(model)
        session.feed(range(1, 41))
        assert session.batches.step == 32


@pytest.mark.usefixtures("small_sizes")
def test_sizes_without_room_are_left_out(monkeypatch):
    monkeypatch.setattr("ggsched_llm.batch_runner.has_room", lambda need, logits, free: False)
    assert fed([40])[1] == [8]
