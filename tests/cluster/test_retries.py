"""Generation that goes on from its tokens after a machine was lost."""

import json
import logging

import numpy as np
import pytest

from ggsched.backend.registry import open_devices
from ggsched.cli.main import main
from ggsched.config import Settings
from ggsched.errors import DeviceFault, UsageError
from ggsched.run import runtime as opening
from ggsched_cluster.remote_devices import open_group
from ggsched_llm.load import load_model
from ggsched_llm.session import Session, SessionOptions
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


def kill(machines, name):
    lost = machines.found[name]
    lost.dead = "it was killed"
    lost.end(5)


def test_a_machine_that_is_lost_while_a_session_is_set_up_again(machines, monkeypatch):
    """A retry covers what it sets up: the second one ends the failure of the first."""
    llama = load_model(ORACLE / "llama-tiny-f32.gguf")
    with Session(llama, ["cpu:0"], SessionOptions(n_ctx=32)) as session:
        wanted = list(session.generate(PROMPT, COUNT))
    settings, restarts, found = Settings(timeout_s=20), [], []
    with Session(llama, ["threads://"], SessionOptions(n_ctx=32), settings=settings) as session:
        settle = session._settle

        def settled():
            restarts.append(len(found))
            if len(restarts) == 1:
                kill(machines, "a")
                session.scheduler.clear_states()  # a request, which finds that out
            settle()

        monkeypatch.setattr(session, "_settle", settled)
        for token in session.generate(PROMPT, COUNT, retries=2):
            found.append(token)
            if len(found) == 3:
                kill(machines, "b")
    assert (found, restarts) == (wanted, [3, 3])


def test_reset_goes_on_with_the_machines_that_are_left(machines):
    llama = load_model(ORACLE / "llama-tiny-f32.gguf")
    with Session(llama, ["cpu:0"], SessionOptions(n_ctx=32)) as session:
        wanted = session.feed(PROMPT)
    settings = Settings(timeout_s=20)
    with Session(llama, ["threads://"], SessionOptions(n_ctx=32), settings=settings) as session:
        session.feed(PROMPT)
        machines.names = ("a",)
        kill(machines, "b")
        with pytest.raises(DeviceFault, match=r"was lost: .* \(reset\(\) goes on with"):
            session.feed([1])
        session.reset()
        assert len(session.scheduler.devices) == 1
        np.testing.assert_allclose(session.feed(PROMPT), wanted, rtol=0, atol=2e-5)


def test_a_result_is_written_when_a_machine_is_lost_after_it(machines, monkeypatch, capsys):
    """Only the statistics lack what the machine would have said."""
    from ggsched_commands import run as run_command

    text = run_command._generate

    def generate(*args):
        tokens = text(*args)
        kill(machines, "b")
        return tokens

    monkeypatch.setattr(run_command, "_generate", generate)
    model = str(ORACLE / "llama-tiny-f32.gguf")
    options = ["--tokens", "3,1,4", "-n", "4", "--devices", "threads://", "--json"]
    assert main(["run", model, *options]) == 0
    captured = capsys.readouterr()
    done = json.loads(captured.out)
    assert len(done["tokens"]) == 4
    assert done["stats"]["weight_bytes"] == {}
    assert "the result is complete, statistics are not: threads://b: the machine" in captured.err


def test_a_run_whose_setup_fails_starts_again(machines, monkeypatch, capsys):
    from ggsched_commands import model_options

    faults = [DeviceFault("the machine was lost", where="threads://b")]

    def log(session):
        if faults:
            raise faults.pop()

    monkeypatch.setattr(model_options, "_log_session", log)
    model = str(ORACLE / "llama-tiny-f32.gguf")
    options = ["--tokens", "3,1,4", "-n", "4", "--devices", "threads://", "--json"]
    assert main(["run", model, *options, "--retries", "1"]) == 0
    captured = capsys.readouterr()
    assert len(json.loads(captured.out)["tokens"]) == 4
    assert "threads://b: the machine was lost; starting again" in captured.err
