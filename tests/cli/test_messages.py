"""Lines that people and pipes get: folded or whole, once, and with advice that helps."""

import json
import shlex

import pytest

from ggsched.backend.registry import BackendStatus
from ggsched.cli.devices import state_of
from ggsched.cli.main import main
from ggsched.ir.user_ops import unregister_op
from ggsched_calibrate.device_rates import NO_TIME
from ggsched_calibrate.timing import NOT_TRUSTED
from ggsched_commands.calibrate import missing_lines
from tests.cli.terminal import in_terminal
from tests.models.helpers import ORACLE, tiny_gguf

LLAMA = str(ORACLE / "llama-tiny-f32.gguf")
CPU = ["--devices", "cpu:0"]


def test_lines_of_pipes_are_whole(capsys):
    """What is one line for a reader is one line for grep."""
    assert main(["run", LLAMA, *CPU, "--tokens", "1,2,3", "-n", "2"]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("prompt 3 tokens at ")
    assert "; a step " in line
    call = ["plan", LLAMA, "--devices", "cpu:0,cpu:1", "-ot", r"attn_(q|k)\.=cpu:0", "-v"]
    assert main(call) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) > 80
    assert not any(line.startswith("       ") for line in out.splitlines())


@pytest.mark.parametrize("width", [40, 100])
def test_errors_on_a_terminal_fold_at_words_and_name_the_program_once(width):
    code, screen = in_terminal("run", "demo", *CPU, width=width)
    assert code == 2
    text = " ".join(screen.lines)
    assert text.startswith("ggsched: error: give the prompt as -p TEXT, as -f FILE or as --tokens")
    assert text.count("ggsched") == 2  # and the command to copy
    assert (len(screen.lines) > 2) == (width == 40)


def test_a_live_line_is_gone_before_json():
    code, screen = in_terminal(
        "perplexity", LLAMA, *CPU, "-c", "8", "--tokens", ",".join(map(str, range(16))), "--json"
    )
    assert code == 0
    assert b"\xe2\xa0\x8b" in screen.written
    assert json.loads("\n".join(screen.lines))["parts"] == 2


def test_bench_warns_of_no_context_that_nobody_asked_for(capsys):
    assert main(["bench", "demo", *CPU, "-p", "80", "-n", "0", "-r", "1"]) == 0
    assert capsys.readouterr().err == ""
    assert main(["bench", "demo", *CPU, "-p", "80", "-n", "0", "-r", "1", "-c", "128"]) == 0
    assert "a context (-c) of 128 tokens is more than the 64" in capsys.readouterr().err


def test_rates_that_lacked_time_or_were_disturbed_are_counted():
    late = [f"{device}: {what}: {NO_TIME}" for device in ("a:0", "b:0") for what in "xyz"]
    doubted = [f"b:0: {what}: {NOT_TRUSTED}, they differ" for what in ("nodes", "pool")]
    found = list(missing_lines(["a:0: w: no mul_mat", *doubted, *late]))
    assert found == [
        "not measured: a:0: w: no mul_mat",
        "disturbed: 2 rates of b:0, as of nodes: they differ; older ones are kept",
        "not measured, since no time was left: 3 rates of a:0, 3 rates of b:0; "
        "a larger --time-budget measures all",
    ]
    assert list(missing_lines([])) == []


def test_devices_that_have_to_be_named_have_a_state_of_their_own(capsys):
    assert main(["devices"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line]
    assert next(row for row in rows if row[0] == "sim")[1:3] == ["when", "named"]


@pytest.mark.parametrize(
    ("state", "reason", "shown"),
    [
        ("ready", "it offers no device unless one is named", "when named"),
        ("unavailable", "not installed: ray", "not installed"),
        ("unavailable", "no driver answers", "unavailable"),
        ("broken", "RuntimeError: boom", "broken"),
    ],
)
def test_states_of_backends_without_devices(state, reason, shown):
    assert state_of(BackendStatus("x", "", "", state, reason)) == shown


def test_a_folder_that_is_no_model(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["run", ".", "-p", "x"]) == 2
    err = capsys.readouterr().err
    assert "it is a directory (give a .gguf file, or a folder of Hugging Face" in err


WRONG = """
import numpy as np
import ggsched
from ggsched import Sample

def twice(x):
    return 2 * x

ggsched.register_op("{name}", version="1", operands=("x",), reference=twice,
                    kernels={{"cpu": lambda x: 3 * x}}, samples=[Sample([(3, 4)])])
"""


def test_the_replay_of_an_op_replays(tmp_path, monkeypatch, capsys):
    (tmp_path / "wrong_ops.py").write_text(WRONG.format(name="thrice_of_test"))
    monkeypatch.chdir(tmp_path)
    try:
        call = ["conform", "cpu", "--op", "wrong_ops:thrice_of_test", "--max-examples", "3"]
        assert main(call) == 1
        out = capsys.readouterr().out
        replay = next(line for line in out.splitlines() if "replay: " in line)
        words = shlex.split(replay.partition("replay: ")[2])
        assert words[0] == "ggsched"
        assert words[-4:] == ["--max-examples", "3", "--op", "wrong_ops:thrice_of_test"]
        assert main(words[1:]) == 1
        assert replay in capsys.readouterr().out
    finally:
        unregister_op("thrice_of_test")


def test_converting_again_is_advised_where_it_helps(tmp_path, capsys):
    path = tiny_gguf(tmp_path / "m.gguf", meta={"llama.attention.head_count": 77})
    assert main(["run", str(path), *CPU, "--tokens", "1"]) == 2
    assert "(convert the model again)" in capsys.readouterr().err
    kv = "llama.attention.head_count=int:77"
    assert main(["run", LLAMA, *CPU, "--tokens", "1", "--override-kv", kv]) == 2
    err = capsys.readouterr().err
    assert "(keys were replaced: leave out --override-kv)" in err
    assert "again" not in err
