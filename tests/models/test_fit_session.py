"""A session that was fitted runs within the memory that is free, to the end of its context."""

import random

import pytest

from ggsched.config import Settings
from ggsched.errors import OutOfDeviceMemory
from ggsched_llm.fit import FitRequest
from ggsched_llm.load import load_model
from ggsched_llm.offload import Offload
from ggsched_llm.session import Session, SessionOptions
from ggsched_testing.sim import SimConfig, SimWorld
from tests.models.helpers import tiny_gguf
from tests.support.profile import some

PROMPT = [1, 2, 3, 4, 5, 6, 7, 1, 2, 3]
CONTEXTS = (64, 32)
TOO_LITTLE = 150_000  # whatever is chosen
SETTINGS = Settings(sanitize="off")


def world(*memory):
    kinds = ("gpu", "gpu", "cpu")[3 - len(memory) :]
    return SimWorld(
        [SimConfig(kind=k, memory_nbytes=n) for k, n in zip(kinds, memory, strict=True)]
    )


def options(pipelining="off"):
    return SessionOptions(
        n_ctx=CONTEXTS[0],
        n_ubatch=8,
        pipelining=pipelining,
        fit=FitRequest(CONTEXTS[-1], (0, 0.0)),
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return load_model(tiny_gguf(tmp_path_factory.mktemp("m") / "m.gguf", "qwen3moe", layers=2))


@pytest.fixture(scope="module")
def expected(model):
    with Session(model, world(1 << 30).open_all(), settings=SETTINGS) as session:
        return list(session.generate(PROMPT, 60))


@pytest.mark.parametrize("seed", some(6, range(12)))
def test_runs_to_the_end_of_the_context(model, expected, seed):
    rng = random.Random(seed)
    memory = [rng.randint(10_000, 160_000) for _ in range(rng.randint(1, 2))]
    memory.append(rng.randint(60_000, 250_000))
    devices = world(*memory).open_all()
    wanted = options(rng.choice(["off", "auto"]))
    if sum(memory) < TOO_LITTLE:
        with pytest.raises(OutOfDeviceMemory, match="comes closest and lacks"):
            Session(model, devices, wanted, settings=SETTINGS)
        return
    session = Session(model, devices, wanted, settings=SETTINGS)
    with session:
        tokens = list(session.generate(PROMPT, 60))
        n_ctx = session.options.n_ctx
        assert n_ctx in CONTEXTS
        assert session.fit is not None
        assert session.n_past == n_ctx or len(tokens) == 60
        assert tokens == expected[: len(tokens)]


def test_what_is_open_is_closed_when_nothing_fits(model):
    made = world(1000, 1000)
    with pytest.raises(OutOfDeviceMemory, match="--fit: no way to spread the model fits"):
        Session(model, made.open_all(), options(), settings=SETTINGS)
    assert made.live()["streams"] == made.live()["buffers"] == 0


def test_pipelining_gives_way_to_memory(model):
    """With room for one micro-batch at a time only, they run one after another."""
    wide = SessionOptions(
        n_ctx=64, n_ubatch=8, fit=FitRequest(margin=(0, 0.0)),
        offload=Offload(n_gpu_layers=3),
    )  # fmt: skip
    with Session(model, world(1 << 30, 1 << 30).open_all(), wide, settings=SETTINGS) as session:
        need = session.fit.need
        least = [need.least[d].total for d in range(2)]
    with Session(model, world(*least).open_all(), wide, settings=SETTINGS) as session:
        assert session.fit.plans_kept == 1
        list(session.generate(PROMPT * 5, 14))
        assert session.n_past == 63
