"""``ggsched`` in a real terminal: what people see in the end, and what text may do to it."""

import re
from pathlib import Path

import pytest

from ggsched.printable import printable
from tests.cli.terminal import Dialogue, in_terminal
from tests.cli.test_run_text import TEMPLATE
from tests.models.helpers import ORACLE, tiny_gguf
from tests.models.vocabularies import BPE_META, PREFIX

LLAMA = str(ORACLE / "llama-tiny-f32.gguf")
DEMO = "ggsched/data/addition-moe.gguf"
FAST = {"GGSCHED_STREAMS": "1"}


@pytest.mark.parametrize("width", [40, 132])
def test_text_and_messages_stand_on_lines_of_their_own(width):
    """The live line is gone, and warnings, text and figures do not share lines."""
    code, screen = in_terminal(
        "run", DEMO, "-p", "417+385=", "-n", "8", "--devices", "cpu:0", "-c", "100000", width=width
    )
    assert code == 0, screen.lines
    assert b"\xe2\xa0\x8b" in screen.written  # a live line was there
    assert screen.unknown == []
    text = " ".join(screen.lines)
    assert text.startswith("ggsched: warning: a context (-c) of 100000 tokens is more than")
    assert "802" in screen.lines
    assert screen.lines[screen.lines.index("802") + 1].startswith("prompt 8 tokens at")
    assert not re.search("opening|loading|planning|compiling", text)


@pytest.mark.parametrize(
    ("options", "encoding"),
    [((), "utf-8"), (("--fit",), "ascii"), (("--devices", "cpu:0", "--report"), "utf-8")],
)
def test_messages_while_devices_are_opened_have_lines_of_their_own(options, encoding):
    """Which devices were chosen, and what fits, is said while a live line is shown."""
    code, screen = in_terminal(
        *("run", DEMO, "-p", "1+1=", "-n", "2", *options), width=100, PYTHONIOENCODING=encoding
    )
    assert code == 0, screen.lines
    assert screen.unknown == []
    assert not re.search("opening|loading|planning |compiling|running", "\n".join(screen.lines))
    assert "2" in screen.lines
    assert re.match("devices: |fit: |2$", screen.lines[0])


def test_a_conversation_has_the_terminal_for_itself(tmp_path):
    path = tmp_path / "m.gguf"
    meta = {**BPE_META, "tokenizer.chat_template": TEMPLATE}
    tiny_gguf(path, meta=meta, vocab=len(BPE_META[PREFIX + "tokens"]))
    call = ("run", str(path), "--devices", "cpu:0", "--chat", "-n", "3")
    dialogue = Dialogue(*call).until("commands.").until("> ").types("hello\n").until("\n> ")
    code, lines = dialogue.types("world\n").until("\n> ").types("\x04").ends()
    assert code == 0, lines
    assert [lines[1], lines[3], lines[5:]] == ["> hello", "> world", [">"]]
    assert not re.search("opening|loading|planning|compiling|running", "\n".join(lines))
    code, again = Dialogue(*call, "-p", "hello").until("commands.").until("> ").types("\x04").ends()
    assert (code, again) == (0, [lines[0], lines[2], ">"])


def test_results_go_where_stdout_goes(tmp_path):
    """A live line on stderr does not take over stdout."""
    with (tmp_path / "out.txt").open("wb") as file:
        code, screen = in_terminal(
            "run", DEMO, "-p", "417+385=", "-n", "8", "--devices", "cpu:0", stdout=file
        )
    assert code == 0, screen.lines
    assert (tmp_path / "out.txt").read_text() == "802\n"
    assert "802" not in "\n".join(screen.lines)


def test_a_warning_in_the_middle_of_text_begins_a_line():
    code, screen = in_terminal(
        "run", LLAMA, "--tokens", "1,2,3", "-n", "9", "--devices", "cpu:0", "-c", "8"
    )
    assert code == 0
    tokens, warning = screen.lines[:2]
    assert re.fullmatch(r"(\d+ )+\d+", tokens)
    assert warning == "ggsched: warning: the context of 8 tokens is full (see -c)"


@pytest.mark.opencl
def test_stages_are_shown_while_they_happen():
    _, screen = in_terminal("run", DEMO, "-p", "1+1=", "-n", "2", "--devices", "opencl:0")
    for stage in (b"opening devices", b"planning", b"compiling kernels"):
        assert stage in screen.written


@pytest.mark.parametrize("command", ["devices", "--version"])
def test_no_word_is_broken_in_a_narrow_terminal(command):
    code, screen = in_terminal(command, width=60)
    assert code == 0
    text = " ".join(" ".join(screen.lines).split())
    _, wide = in_terminal(command, width=500)
    for words in {word for line in wide.lines for word in line.split()} - {"description"}:
        assert words in text.split(), words


EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egpj\r\ud800"


def test_what_acts_on_a_terminal_is_written_out():
    assert printable(EVIL) == r"\x1b]0;owned\x07\x1b[2J\x9b31m\u202egpj\x0d\ud800"
    assert printable("tab\tline\n\u00e9\u4e2d\U0001f600 \u200d") == (
        "tab\tline\n\u00e9\u4e2d\U0001f600 \u200d"
    )


PROGRAM = """
import sys, json
from ggsched.cli import main as m
from ggsched.cli.console import messages, output, write_json
from ggsched.errors import PlanError
from rich.table import Table
import click, logging
EVIL = {evil!r}
@click.command()
def body():
    m.warn_on_stderr()
    grid = Table(); grid.add_column(EVIL); grid.add_row(EVIL)
    output().print(grid)
    output().print(EVIL)
    messages().print(EVIL)
    write_json({{EVIL: EVIL}})
    logging.getLogger("ggsched").warning("warned of %s", EVIL)
    raise PlanError(EVIL, where=EVIL)
m.Commands.get_command = lambda *a: body
sys.exit(m.main())
"""


def test_nothing_from_outside_acts_on_the_terminal():
    evil = EVIL.replace("\ud800", "")
    code, screen = in_terminal("try", program=["-c", PROGRAM.format(evil=evil)], width=200)
    assert code == 2
    assert b"\x1b]0;" not in screen.written
    assert b"\x1b[2J" not in screen.written
    assert "\x9b".encode() not in screen.written
    assert "\u202e".encode() not in screen.written
    assert screen.unknown == []
    text = "\n".join(screen.lines)
    assert text.count(r"\x1b]0;owned") >= 7


def test_only_the_boundary_writes():
    """All other modules of the command line go through it."""
    for path in (*Path("ggsched/cli").glob("*.py"), *Path("apps/ggsched_commands").glob("*.py")):
        assert not re.search(
            r"sys\.std(out|err)\.write|(?<![.\w])print\(|click\.echo", path.read_text()
        ), path


def test_names_in_files_are_written_out_by_check(tmp_path):
    path = tmp_path / "evil.litmus"
    path.write_text("litmus \x1b]0;owned\x07\n", encoding="utf-8")
    code, screen = in_terminal("check", str(path))
    assert code == 2
    assert b"\x1b]0;" not in screen.written
