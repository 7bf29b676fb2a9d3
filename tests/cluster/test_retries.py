"""Generation that goes on from its tokens after a machine was lost."""

import logging

import pytest

from ggsched.backend.registry import open_devices
from ggsched.cluster.remote_devices import open_group
from ggsched.config import Settings
from ggsched.errors import DeviceFault, UsageError
from ggsched.models.load import load_model
from ggsched.models.session import Session, SessionOptions
from ggsched.run import open_devices as opening
from tests.cluster.workers import Members
from tests.models.helpers import ORACLE

PROMPT, COUNT = [3, 1, 4, 1, 5], 8


@pytest.fixture
def machines(monkeypatch):
    """Let ``threads://`` name the machines that are there; they can be changed."""
    there = Members("a", "b")

    def opened(specs, **more):
        if list(specs) == ["threads://"]:
            return open_group(there.start, backends=("cpu",), timeout_s=20)
        return open_devices(specs, **more)

    monkeypatch.setattr(opening, "open_devices", opened)
    return there


def generated(machines, retries, left=("a", "b")):
    llama = load_model(ORACLE / "llama-tiny-f32.gguf")
    settings = Settings(timeout_s=20)
    with Session(llama, ["threads://"], SessionOptions(n_ctx=32), settings=settings) as session:
        found = []
        for token in session.generate(PROMPT, COUNT, retries=retries):
            found.append(token)
            if len(found) == 3:
                machines.names = left
                lost = machines.found["b"]
                lost.dead = "it was killed"
                lost.end(5)
        return found, len(session.scheduler.devices)


@pytest.mark.parametrize("left", [("a", "b"), ("a",)])
def test_generation_goes_on_with_the_machines_that_are_left(left, machines, caplog):
    llama = load_model(ORACLE / "llama-tiny-f32.gguf")
    with Session(llama, ["cpu:0"], SessionOptions(n_ctx=32)) as session:
        wanted = list(session.generate(PROMPT, COUNT))
    with caplog.at_level(logging.WARNING, "ggsched"):
        assert generated(machines, 1, left) == (wanted, len(left))
    assert "the machine was lost" in caplog.text
    assert "going on from 8 tokens" in caplog.text


def test_without_retries_it_is_an_error(machines):
    with pytest.raises(DeviceFault, match="the machine was lost"):
        generated(machines, 0)


def test_a_sequence_with_other_tokens_cannot_be_begun_anew():
    llama = load_model(ORACLE / "llama-tiny-f32.gguf")
    with Session(llama, ["cpu:0"], SessionOptions(n_ctx=32)) as session:
        session.feed([1, 2])
        with pytest.raises(UsageError, match="cannot be restarted after a fault"):
            next(session.generate(PROMPT, 1, retries=1))
