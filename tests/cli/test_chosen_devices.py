"""What ``run`` and ``plan`` say of devices that they chose, and for which tokens they chose."""

import json

import pytest

from ggsched.cli.main import main
from ggsched_llm import session
from ggsched_llm.default_devices import DefaultDevices, DeviceTime
from tests.models.helpers import ORACLE

LLAMA = str(ORACLE / "llama-tiny-f32.gguf")
CHOSEN = DefaultDevices(
    ("cpu:0",), (DeviceTime("cpu:0", 1.0), DeviceTime("other:0", 2.0)), (4, 3), "a test"
)
LINE = "devices: cpu:0: predicted for 4 + 3 tokens: cpu:0 1 s, other:0 2 s (a test)"


@pytest.fixture
def asked(monkeypatch):
    """Choose ``cpu:0``; return the tokens for which a choice was asked."""
    found = []

    def choose(spec, n_ctx, settings, expected):
        found.append(expected)
        return CHOSEN

    monkeypatch.setattr(session, "devices_by_default", choose)
    return found


@pytest.mark.parametrize(
    ("arguments", "tokens"),
    [
        (["run", LLAMA, "--tokens", "1,2,3,4", "-n", "3"], (4, 3)),
        (["run", LLAMA, "--tokens", "1,2,3,4", "-n", "-2", "-c", "16"], (4, 128)),
        (["plan", LLAMA, "--n-tokens", "4"], (4, 0)),
        (["plan", LLAMA], None),
        (["plan", LLAMA, "--memory", "--prompt-tokens", "5", "-n", "6"], (5, 6)),
        (["bench", LLAMA, "-p", "2", "-n", "0", "-r", "1"], None),
    ],
)
def test_times_are_compared_for_what_was_asked(asked, capsys, arguments, tokens):
    assert main(arguments) == 0
    assert asked == [tokens]
    if arguments[0] != "bench":
        assert LINE in " ".join(capsys.readouterr().err.split())


def test_the_choice_is_data_in_json(asked, capsys):
    assert main(["run", LLAMA, "--tokens", "1,2,3,4", "-n", "3", "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert json.loads(out)["stats"]["default_devices"] == {
        "names": ["cpu:0"],
        "candidates": [
            {"name": "cpu:0", "seconds": 1.0, "why_not": ""},
            {"name": "other:0", "seconds": 2.0, "why_not": ""},
        ],
        "tokens": [4, 3],
        "source": "a test",
    }


def said(capsys, *arguments):
    assert main(["plan", LLAMA, "--explain", *arguments]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_why_there_is_nothing_else(asked, capsys):
    text = said(capsys, "blk.0.attn_q.weight")
    assert "block 0 is on the host (the only device in use)" in text
    assert "the only device in use; chosen among others, see above: --devices cpu:0,other:0" in text
    text = said(capsys, "blk.0.attn_q.weight", "--devices", "cpu:0")
    assert text.endswith("cpu:0 is the only device in use")
    text = said(capsys, "tokens", "--devices", "cpu:0,cpu:1")
    assert text.endswith("an input is set by the host, and has no home of its own")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ([], "block 0 is on the host (no accelerator is in use)"),
        (["--devices", "sim:0,cpu:0"], "block 0 is offloaded (as all blocks are without -ngl)"),
        (["--devices", "sim:0,cpu:0", "-ngl", "1"], "block 0 is on the host (-ngl)"),
    ],
)
def test_an_option_is_a_reason_only_where_it_was_given(capsys, options, why):
    options = options or ["--devices", "cpu:0,cpu:1"]
    assert why in said(capsys, "blk.0.attn_q.weight", *options)


def test_lists_of_commands_are_cut(capsys):
    call = ["plan", LLAMA, "--devices", "cpu:0,cpu:1", "-ot", r"attn=cpu:0", "--n-tokens", "4"]
    assert main(call) == 0
    short = capsys.readouterr().out
    assert main([*call, "-v"]) == 0
    whole = capsys.readouterr().out
    shown = short.partition("\ncommands\n")[2].partition("\n\n")[0].splitlines()
    assert shown[-1].startswith("  ... and ")
    assert shown[-1].endswith(" more commands")
    assert "more commands" not in whole
