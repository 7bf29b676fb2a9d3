"""Sessions over two devices of which one fails, hangs, is lost, is slow or small: an error for the
call or the right logits, never a wait without end; after ``reset`` the right logits again."""

import numpy as np
import pytest

from ggsched.config import Settings
from ggsched.errors import DeviceFault, OutOfDeviceMemory, SyncTimeout, UsageError
from ggsched_llm.load import load_model
from ggsched_llm.offload import Offload
from ggsched_llm.session import Session, SessionOptions
from ggsched_testing.sim import InjectedFaults, SimConfig, SimWorld
from ggsched_testing.sim.costs import Costs
from tests.models.helpers import tiny_gguf
from tests.support.profile import NIGHTLY

TOKENS = np.random.default_rng(0).integers(0, 8, 24).tolist()
WAYS = {
    "shares": {"split_mode": "tensor", "pipelining": "off"},
    "two at once": {"split_mode": "tensor"},
    "stages": {"pipelining": "on", "offload": Offload(tensor_split=(1.0, 1.0))},
    "batches in a row": {
        "pipelining": "on", "offload": Offload(tensor_split=(1.0, 1.0)), "n_batch": 8,
    },
}  # fmt: skip
LAME = Costs(launch_s=5e-4, node_s=2e-4, transfer_s=1e-3, memory_bytes_per_s=1e9)
PLACES = 6 if NIGHTLY else 3
"""Commands of a prompt that go wrong, evenly through it."""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("faults") / "model.gguf"
    tiny_gguf(path)
    return load_model(path)


@pytest.fixture(scope="module")
def expected(model):
    _, session = opened(model, [SimConfig()])
    with session:
        return session.feed(TOKENS)


def opened(model, configs, timeout_s=2.0, **options):
    world = SimWorld(configs)
    chosen = SessionOptions(n_ctx=64, n_ubatch=4, **{"n_batch": 32, **options})
    settings = Settings(timeout_s=timeout_s)
    return world, Session(model, world.open_all(), chosen, settings=settings)


def gpus(**second):
    shared = {"kind": "gpu", "reads_peers": True}
    return [SimConfig(**shared), SimConfig(**shared, **second)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["fail", "hang", "lose", "refuse"])
def test_a_prompt_that_a_device_does_not_survive(model, expected, way, kind):
    world, session = opened(model, gpus(), timeout_s=0.2, **WAYS[way])
    with session:
        for _ in range(2):
            session.feed(TOKENS)
            session.reset()
        before = world.enqueued
        session.feed(TOKENS)
        session.reset()
        count = world.enqueued - before
        assert len(session.last_plan.streams.streams) == (4 if way == "two at once" else 2)
        for place in range(0, count, -(-count // PLACES)):
            world.faults = InjectedFaults(**{kind: frozenset({world.enqueued + place})})
            with pytest.raises((DeviceFault, SyncTimeout, UsageError)):
                session.feed(TOKENS)
            world.faults = InjectedFaults()
            session.scheduler.reset(world.open_all() if kind in ("lose", "hang") else None)
            session.reset()
            np.testing.assert_allclose(session.feed(TOKENS), expected, atol=1e-5)
            session.reset()


@pytest.mark.parametrize("way", WAYS)
def test_a_device_that_is_a_hundred_times_slower(model, expected, way):
    _, session = opened(model, gpus(costs=LAME), **WAYS[way])
    with session:
        np.testing.assert_allclose(session.feed(TOKENS), expected, atol=1e-5)


def test_shares_of_unequal_memory(model, expected):
    """Equal shares do not fit the small device: which one it is and what helps; a share does."""
    _, session = opened(model, gpus(memory_nbytes=12_000), split_mode="tensor")
    with session, pytest.raises(OutOfDeviceMemory, match="sim:1: requested"):
        session.feed(TOKENS)
    shares = Offload(tensor_split=(3.0, 1.0))
    configs = gpus(memory_nbytes=12_000)
    _, session = opened(model, configs, split_mode="tensor", offload=shares)
    with session:
        np.testing.assert_allclose(session.feed(TOKENS), expected, atol=1e-5)
        held = session.scheduler.resident_nbytes("weight")
        assert held["sim:1"] < held["sim:0"]
