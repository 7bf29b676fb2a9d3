"""``ggsched run --chat``: Ctrl-C, commands and lines, through a terminal and through a pipe."""

import io
import json
import sys

import pytest

from ggsched.cli.main import main
from tests.cli.terminal import Dialogue
from tests.cli.test_run_text import TEMPLATE
from tests.models.helpers import tiny_gguf
from tests.models.vocabularies import BPE_META, PREFIX

CPU = ("--devices", "cpu:0")
HINT = "/help lists commands."
TOKENS = BPE_META[PREFIX + "tokens"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("chat") / "m.gguf"
    meta = {**BPE_META, "tokenizer.chat_template": TEMPLATE}
    return str(tiny_gguf(path, meta=meta, vocab=len(BPE_META[PREFIX + "tokens"])))


@pytest.fixture
def talk(model, capsys, monkeypatch):
    """Give lines to a conversation through a pipe; return exit code, stdout and stderr."""

    def call(*lines, options=("-n", "3")):
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        code = main(["run", model, *CPU, "--chat", *options])
        return (code, *capsys.readouterr())

    return call


@pytest.fixture(scope="module")
def endless(tmp_path_factory):
    """A model without a token that ends a text."""
    tokens = [t if t not in ("<|end|>", "<|eot|>") else f"<|{i}|>" for i, t in enumerate(TOKENS)]
    meta = {k: v for k, v in BPE_META.items() if k != PREFIX + "eos_token_id"}
    meta |= {PREFIX + "tokens": tokens, "tokenizer.chat_template": TEMPLATE}
    path = tmp_path_factory.mktemp("endless") / "m.gguf"
    return str(tiny_gguf(path, meta=meta, vocab=len(tokens)))


def long(endless):
    """Begin a conversation whose answers last until they are stopped."""
    options = ("-c", "30000", "--temp", "1", "--override-kv", "llama.context_length=int:30000")
    return Dialogue("run", endless, *CPU, "--chat", *options, GGSCHED_STREAMS="1").until(HINT)


def test_ctrl_c_stops_the_answer_and_then_ends(endless):
    """The conversation goes on behind a stopped answer; the second Ctrl-C, at the prompt, ends."""
    dialogue = long(endless).until("> ").types("hello\n").until("hello\r\n").goes_on()
    dialogue.types("\x03").until("\n> ").types("world\n").until("world\r\n").goes_on()
    code, lines = dialogue.types("\x03").until("\n> ").interrupts()
    assert code == 130
    assert not any("error" in line or "Traceback" in line for line in lines)
    assert lines[0].startswith("Ctrl-C stops an answer, and ends at the prompt")


def test_what_was_stopped_is_kept(endless, tmp_path):
    path = tmp_path / "turns.json"
    dialogue = long(endless).until("> ").types("hello\n").until("hello\r\n").goes_on()
    dialogue.types("\x03").until("\n> ").types(f"/save {path}\n").until("\n> ").types("\x04")
    code, lines = dialogue.ends()
    assert code == 0, lines
    question, answer = json.loads(path.read_text())
    assert question == {"role": "user", "content": "hello"}
    assert answer["role"] == "assistant"
    assert answer["content"]


def test_history_and_errors_of_a_terminal(model):
    """The arrow gives the line before, and a command that fails does not end the conversation."""
    dialogue = Dialogue("run", model, *CPU, "--chat", "-n", "2", GGSCHED_STREAMS="1")
    dialogue.until(HINT).until("> ").types("/frob\n").until("there is no command '/frob'")
    dialogue.until("> ").types("\x1b[A").until("/frob").types("\n").until("no command").until("> ")
    dialogue.types("\x04")
    assert dialogue.ends()[0] == 0


def test_lines_that_end_with_a_backslash_go_on(talk):
    assert talk("hello\\", "world")[:2] == talk(options=("-n", "3", "-p", "hello\nworld"))[:2]


def test_commands(talk, tmp_path):
    path = tmp_path / "turns.json"
    alone, other = talk("hello")[1], talk("world")[1]
    both = talk("hello", "world")[1]
    assert talk("hello", "/clear", "world")[1] == alone + other
    assert talk("hello", "/regen")[1] == alone + alone
    code, out, err = talk("hello", f"/save {path}", "/help", "/exit", "world")
    assert (code, out) == (0, alone)
    assert "/load FILE" in err
    assert talk(f"/load {path}", "world")[1] == both.removeprefix(alone)
    code, out, err = talk("/help")
    assert (code, out, err.count("/")) == (0, "", 5)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("/regen", "/regen: there is no answer yet"),
        ("/save", "/save: name a file (/save FILE)"),
        ("/save /nowhere/x", "/nowhere/x: cannot write the conversation"),
        ("/load /nowhere/x", "/nowhere/x: cannot read the file"),
        ("/frob", "there is no command '/frob'"),
    ],
)
def test_commands_that_fail(talk, line, said):
    code, _, err = talk(line)
    assert code == 2
    assert said in err


@pytest.mark.parametrize(
    "text", ["x", "3", "[3]", '[{"role": "user"}]', '[{"role":"u","content":""}]']
)
def test_files_that_are_no_conversations(talk, tmp_path, text):
    path = tmp_path / "turns.json"
    path.write_text(text)
    code, _, err = talk(f"/load {path}")
    assert code == 2
    assert f"{path}: it is not a conversation" in err
    assert err.count("\n") == 1


def test_single_turns_and_the_length_of_answers(talk):
    """An answer ends with the model or the context, unless -n says otherwise."""
    code, out, _ = talk("hello", "world", options=("-n", "3", "--single-turn"))
    assert (code, out) == talk("hello")[:2]
    assert talk("hello", options=("-st", "-p", "hello", "-n", "3"))[1] == out
    whole = talk(options=("-p", "hello"))[1]
    assert whole == talk(options=("-p", "hello", "-n", "-1"))[1]
    assert whole == talk(options=("-p", "hello", "-n", "-2"))[1]
    assert len(whole) > len(talk(options=("-p", "hello", "-n", "32"))[1])


def test_what_was_interrupted_ends_its_line(endless):
    """The prompt of the shell stands on a line of its own."""
    options = ("-c", "30000", "--temp", "1", "-n", "-1", "-p", "hello")
    override = ("--override-kv", "llama.context_length=int:30000")
    dialogue = Dialogue("run", endless, *CPU, *options, *override, GGSCHED_STREAMS="1").shows_text()
    code, _ = dialogue.types("\x03").ends()
    assert code == 130
    assert dialogue.written.removesuffix(b"\x1b[?25h").endswith(b"^C\r\n")


def test_warnings_have_lines_of_their_own(endless):
    dialogue = Dialogue("run", endless, *CPU, "--chat", "-c", "40", "-n", "-1", "--temp", "1")
    code, lines = dialogue.until("> ").types("hello\n").until("is full").until("\n> ").interrupts()
    assert code == 130
    said = next(line for line in lines if "warning: the context of 40" in line)
    assert said.startswith("ggsched: ")


def test_an_interruption_at_any_time_shows_the_cursor_again(model):
    dialogue = Dialogue("run", model, *CPU, "-p", "hello", "-n", "3").until("\x1b[?25l")
    code, _ = dialogue.types("\x03").ends()
    assert code == 130
    assert dialogue.written.rfind(b"\x1b[?25h") > dialogue.written.rfind(b"\x1b[?25l")
