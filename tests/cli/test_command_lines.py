"""The first minutes of those who come from llama.cpp: what command lines answer first."""

import shlex
from pathlib import Path

import pytest

from ggsched.cli.main import main
from tests.cli.terminal import CommandsInTerminal
from tests.models.helpers import ORACLE

LLAMA = str(ORACLE / "llama-tiny-f32.gguf")
CPU = f"{LLAMA} --devices cpu:0"
SHORT = {
    "$R": f"{CPU} --tokens 1,2 -n 1",
    "$B": f"{CPU} -p 2 -n 0 -r 1",
    "$P": CPU,
    "$M": LLAMA,
}
TABLE = [
    tuple(part.strip() for part in line.split(" | ", 2))
    for line in Path(__file__).with_name("command_lines.txt").read_text().splitlines()
    if not line.startswith("#")
]
WIDTHS = (40, 79, 80, 120, 200)


def words(line):
    for name, text in SHORT.items():
        line = line.replace(name, text)
    return shlex.split(line.replace("\\", "\\\\"))


@pytest.fixture(scope="module")
def token():
    """The token that a short run of the model generates."""
    from ggsched_llm.load import load_model
    from ggsched_llm.session import Session

    with Session(load_model(LLAMA), ["cpu:0"]) as session:
        return str(next(session.generate([1, 2], 1)))


def test_the_table_is_long_and_has_each_line_once():
    assert len(TABLE) >= 150
    assert len({line for line, *_ in TABLE}) == len(TABLE)


@pytest.mark.parametrize(("line", "code", "first"), TABLE, ids=[row[0] for row in TABLE])
def test_first_lines_and_exit_codes(line, code, first, token, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(words(line)) == int(code)
    out, err = capsys.readouterr()
    is_message = code != "0" or first.startswith("ggsched: note")
    said = (err if is_message else out).partition("\n")[0]
    assert said.startswith(first.replace("$T", token)), (out, err)
    assert "Traceback" not in err
    if code == "2":
        assert err.count("\n") == 1
        assert out == ""


@pytest.fixture(scope="module")
def terminal():
    commands = CommandsInTerminal()
    yield commands
    commands.close()


@pytest.mark.parametrize(("line", "code", "first"), TABLE, ids=[row[0] for row in TABLE])
def test_in_a_terminal_it_is_the_same(line, code, first, token, terminal, tmp_path):
    """Narrow and wide, folded at words."""
    width = WIDTHS[len(line) % len(WIDTHS)]
    found, screen = terminal.run(words(line), tmp_path, width)
    assert found == int(code), screen.lines
    assert screen.unknown == []
    text = " ".join(row.strip() for row in screen.lines)
    assert first.replace("$T", token).strip("| ") in text, screen.lines
