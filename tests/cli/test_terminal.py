"""What all subcommands have in common: 80 columns, colours on a terminal only, JSON, completion."""

import os
import pty
import subprocess
import sys

import click
import pytest
from rich.cells import cell_len

from ggsched.cli.main import cli, main
from tests.models.helpers import ORACLE

LLAMA = str(ORACLE / "llama-tiny-f32.gguf")
SPLIT = ["--devices", "cpu:0,cpu:1", "-ot", r"blk\.1\.=cpu:0"]
LITMUS = "tests/litmus/events.litmus"

TABLES = {
    "devices": ["devices"],
    "env": ["env"],
    "plan": ["plan", LLAMA, *SPLIT],
    "plan -v": ["plan", LLAMA, *SPLIT, "-v", "--n-tokens", "4"],
    "litmus": ["litmus", LITMUS],
    "check": ["check", LITMUS],
    "conform": ["conform", "cpu", "--rules", "STR-1,BUF-*", "--max-examples", "1"],
}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.usefixtures("narrow")
def test_tables_fit_80_columns_without_colours(name, capsys):
    main(TABLES[name])
    out = capsys.readouterr().out
    assert out.count("\n") > 2
    assert "\x1b" not in out
    assert max(cell_len(line.rstrip()) for line in out.splitlines()) <= 80


def commands():
    context = click.Context(cli)
    return {name: cli.get_command(context, name) for name in cli.list_commands(context)}


@pytest.mark.parametrize("name", commands())
def test_each_subcommand_has_json_and_help_that_fits(name):
    command = commands()[name]
    options = {opt for p in command.params for opt in p.opts}
    assert "--json" in options
    text = command.get_help(click.Context(command, info_name=name, max_content_width=80))
    assert max(map(len, text.splitlines())) <= 80


def on_a_terminal(*arguments, **changes):
    """Return what a command writes on a terminal."""
    main_end, command_end = pty.openpty()
    environ = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")}
    environ |= {"TERM": "xterm-256color", "COLUMNS": "80", **changes}
    process = subprocess.Popen(
        [sys.executable, "-m", "ggsched", *arguments],
        stdout=command_end,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environ,
    )
    os.close(command_end)
    written = b""
    while True:
        try:
            part = os.read(main_end, 1 << 16)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        written += part
    os.close(main_end)
    assert process.wait(60) == 0
    return written


def test_colours_on_a_terminal_unless_they_are_not_wanted():
    assert b"\x1b[" in on_a_terminal("devices")
    plain = on_a_terminal("devices", NO_COLOR="1")
    assert not any(code in plain for code in (b"\x1b[3", b"\x1b[9", b"\x1b[38"))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_offered(shell, monkeypatch, capsys):
    monkeypatch.setenv("_GGSCHED_COMPLETE", f"{shell}_source")
    if shell == "bash":
        monkeypatch.setattr("click.shell_completion.BashComplete._check_version", lambda *_: None)
    assert main([]) == 0
    assert "_GGSCHED_COMPLETE" in capsys.readouterr().out


def test_completion_completes_subcommands_and_options(monkeypatch, capsys):
    monkeypatch.setenv("_GGSCHED_COMPLETE", "zsh_complete")
    monkeypatch.setenv("COMP_WORDS", "ggsched tr")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert main([]) == 0
    assert "trace" in capsys.readouterr().out
    monkeypatch.setenv("COMP_WORDS", "ggsched trace --ht")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert main([]) == 0
    assert "--html" in capsys.readouterr().out
