"""``ggsched run`` refuses what does not fit before it loads anything, and says what would fit."""

import re
import shlex

import pytest

from ggsched.cli.main import main
from ggsched.run.store import TensorStore
from tests.models.helpers import ORACLE

LLAMA = str(ORACLE / "llama-tiny-f32.gguf")
QUANTISED = str(ORACLE / "llama-tiny-q8_0.gguf")
MOE = str(ORACLE / "qwen3moe-tiny-f32.gguf")


@pytest.fixture
def call(capsys):
    def call(*arguments):
        code = main([*map(str, arguments)])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def refuse(self, arena, tensor):
    raise AssertionError(f"{arena.name} was loaded")


def advised(err):
    """Return the options that the message names."""
    found = re.search(r"it would fit with: (.*?)( instead of .*)?\)\n", err)
    assert found, err
    return shlex.split(found[1])


CASES = {
    "a smaller context": ((LLAMA, "--devices", "cpu:0", "-c", 100_000), 8_000_000),
    "layers elsewhere": ((LLAMA, "--devices", "sim:0,sim:1", "-ts", "1,0", "-c", 64), 530_000),
    "packed weights": ((QUANTISED, "--devices", "sim:0", "-c", 64, "--weights", "expand"), 420_000),
    "experts": ((MOE, "--devices", "sim:0,cpu:0", "-c", 1024, "-ub", 16), 1_700_000),
}


@pytest.mark.parametrize("name", CASES)
def test_the_advice_is_options_that_work(name, call, monkeypatch):
    arguments, free = CASES[name]
    monkeypatch.setattr("ggsched.scheduler.free_nbytes", lambda device: free)
    run = ["--tokens", "1,2,3", "-n", 2]
    with monkeypatch.context() as patch:
        patch.setattr(TensorStore, "tensor", refuse)
        code, out, err = call("run", *arguments, *run)
    assert (code, out) == (2, "")
    assert "does not fit the memory that is free" in err
    assert err.splitlines()[-1].startswith("ggsched: error: ")
    kept = [a for a in arguments if a not in ("-ts", "1,0")]  # the message says: instead of -ts
    assert ("instead of -ts" in err) == ("-ts" in arguments)
    code, out, err = call("run", *kept, *advised(err), *run)
    assert (code, len(out.split())) == (0, 2), err


def test_it_says_so_if_nothing_would_fit(call, monkeypatch):
    monkeypatch.setattr("ggsched.scheduler.free_nbytes", lambda device: 10_000)
    code, _, err = call("run", LLAMA, "--devices", "cpu:0", "--tokens", "1")
    assert code == 2
    assert "nothing fits: -c 256 comes closest and lacks" in err
    assert err.count("\n") == 1


def test_weights_that_stay_in_the_mapped_file_need_no_memory(call, monkeypatch):
    """The weights alone have 500 kB."""
    monkeypatch.setattr("ggsched.scheduler.free_nbytes", lambda device: 300_000)
    code, out, err = call("run", LLAMA, "--devices", "cpu:0", "-c", 32, "--tokens", "1", "-n", 1)
    assert (code, len(out.split())) == (0, 1), err


def test_the_check_can_be_left_out(call, monkeypatch):
    monkeypatch.setattr("ggsched.scheduler.free_nbytes", lambda device: 10_000)
    arguments = ["run", LLAMA, "--devices", "cpu:0", "--tokens", "1", "-n", 1, "--no-memory-check"]
    code, out, err = call(*arguments)
    assert (code, len(out.split())) == (0, 1), err


@pytest.mark.parametrize(
    "arguments",
    [
        ("bench", "-p", 10**8, "-n", 0),
        ("bench", "-p", 0, "-n", 1, "-d", 10**25),
        ("bench", "-p", 4, "-n", 0, "-npl", 10**9),
        ("perplexity", "--tokens", ",".join("1" * 10_000), "-c", 10_000),
    ],
)
def test_other_commands_that_load_a_model(call, monkeypatch, arguments):
    monkeypatch.setattr("ggsched.scheduler.free_nbytes", lambda device: 500_000)
    monkeypatch.setattr(TensorStore, "tensor", refuse)
    command, *options = arguments
    code, out, err = call(command, LLAMA, "--devices", "cpu:0", *options)
    assert (code, out) == (2, "")
    assert "does not fit the memory that is free" in err


@pytest.mark.parametrize(("where", "fits"), [("sim:0", False), ("sim:1", True)])
def test_a_draft_model_beside_the_model(call, monkeypatch, where, fits):
    """Either fits a device alone; nothing is loaded of what does not fit together."""
    monkeypatch.setattr("ggsched.scheduler.free_nbytes", lambda device: 800_000)
    arguments = (LLAMA, "--devices", "sim:0", "-c", 64, "-md", LLAMA, "--draft-devices", where)
    if not fits:
        monkeypatch.setattr(TensorStore, "tensor", refuse)
    code, out, err = call("run", *arguments, "--tokens", "1,2,3", "-n", 2)
    assert (code, len(out.split())) == ((0, 2) if fits else (2, 0)), err
    assert ("the draft model does not fit beside the model: " in err) != fits
