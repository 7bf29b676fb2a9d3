"""Closed and full streams, streams without Unicode, devices and FIFOs as files, Ctrl-C early."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ggsched.cli import main as main_module
from ggsched.cli.main import main
from ggsched.errors import UsageError
from ggsched.files import reading
from ggsched.files.reading import read_argument
from tests.models.helpers import ORACLE

LLAMA = str(ORACLE / "llama-tiny-f32.gguf")
DEMO = "ggsched/data/addition-moe.gguf"


def shell(text, **changes):
    """Run a line of sh in which ``G`` is the command; return code, stdout and stderr."""
    line = text.replace("G ", f"{sys.executable} -m ggsched ")
    done = subprocess.run(
        ["sh", "-c", line], capture_output=True, timeout=60, env={**os.environ, **changes}
    )
    return done.returncode, done.stdout, done.stderr.decode()


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        ("G env >&-", 3, "stdout is closed, so results have nowhere to go"),
        ("G env > /dev/full", 3, "the output: No space left on device"),
        ("G env --json > /dev/full", 3, "the output: No space left on device"),
        ("G check - <&-", 2, "-: cannot read the file: stdin is closed"),
        (f"G run {DEMO} -f - <&-", 2, "-: cannot read the file: stdin is closed"),
        (
            f"G run {DEMO} -f - </dev/zero",
            2,
            "-: cannot read the file: it is too long: more than 256.0 MiB",
        ),
    ],
)
def test_streams_that_cannot_be_used_are_one_line(line, code, message):
    found, _, err = shell(line)
    assert (found, err) == (code, f"ggsched: error: {message}\n")


def test_without_stderr_results_come_all_the_same():
    code, out, _ = shell("G env --json 2>&-")
    assert code == 0
    assert out.startswith(b"[") or out.startswith(b"{")


@pytest.mark.parametrize(
    ("line", "code", "result"),
    [
        ("G env --json 2> /dev/full", 0, b"{"),
        ("G env --no-such-option 2> /dev/full", 2, b""),
        (f"G run {DEMO} -p 1+1= -n 2 2> /dev/full", 0, b"2\n"),
        (f"G run {DEMO} -p 1+1= -n 2 --devices nothing:0 2> /dev/full", 2, b""),
    ],
)
def test_messages_that_cannot_be_written_change_nothing(line, code, result):
    found, out, err = shell(line)
    assert (found, err) == (code, "")
    assert out.startswith(result)


def test_a_stdout_of_ascii_shows_other_characters_written_out(tmp_path):
    program = tmp_path / "x.litmus"
    program.write_text("litmus \u00e9\u4e2d\n", encoding="utf-8")
    code, _, err = shell(f"G check {program}", PYTHONIOENCODING="ascii:strict")
    assert code == 2
    assert err.startswith("ggsched: error: ")
    assert "Traceback" not in err


def test_devices_and_fifos_as_files(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(reading, "_PATIENCE_S", 0.1)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for arguments in (
        ["check", "/dev/zero"],
        ["litmus", "/dev/zero"],
        ["trace", "/dev/zero"],
        ["plan", LLAMA, "--topology", "/dev/zero"],
        ["run", "/dev/zero", "-p", "x"],
        ["run", DEMO, "-f", "/dev/zero"],
        ["perplexity", DEMO, "-f", "/dev/zero"],
    ):
        assert main(arguments) == 2
        assert "/dev/zero: " in (err := capsys.readouterr().err)
        assert "it is not a regular file" in err
        assert err.count("\n") == 1
    for command in (["check"], ["run", DEMO, "-f"], ["perplexity", DEMO, "-f"]):
        assert main([*command, str(fifo)]) == 2
        assert "it is a FIFO, and nobody writes to it" in capsys.readouterr().err
    writer = threading.Thread(target=fifo.write_bytes, args=(b"x" * 100_000,))
    writer.start()
    assert read_argument(str(fifo)) == b"x" * 100_000
    writer.join()


def test_what_has_no_end_is_refused(tmp_path):
    path = tmp_path / "long"
    path.write_bytes(b"x" * 101)
    assert len(read_argument(str(path), limit=101)) == 101
    with pytest.raises(UsageError, match="is too long: more than 100 B"):
        read_argument(str(path), limit=100)


@pytest.mark.parametrize("text", ["nan", "inf", "-1", "0", "x", "601"])
def test_times_that_are_none(text, capsys):
    assert main(["calibrate", "--time-budget", text]) == 2
    err = capsys.readouterr().err
    assert "is not a time from 0.1 to 600 s" in err
    assert err.count("\n") == 1


def test_an_interrupted_import_is_an_interruption(capsys, monkeypatch):
    """A module in C may raise another error in its place."""

    def get(self, ctx, name):
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            raise ImportError("numpy failed to import") from error

    monkeypatch.setattr(main_module.Commands, "get_command", get)
    assert main(["run"]) == 130
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("raises", ["raise", "raise RuntimeError from"])
@pytest.mark.parametrize(
    "module", ["ggsched.cli.main", "ops_of_test", "ggsched_commands.run", "ggsched_llm.load"]
)
def test_ctrl_c_while_modules_are_imported(module, raises):
    """The signal comes when the module is looked for; a class statement raises another error."""
    program = (
        "import os, runpy, signal, sys\n"
        "class Find:\n"
        "    def find_spec(self, name, *rest):\n"
        f"        if name == {module!r}:\n"
        "            try:\n"
        "                os.kill(os.getpid(), signal.SIGINT)\n"
        "            except KeyboardInterrupt as error:\n"
        f"                {raises} error\n"
        "sys.meta_path.insert(0, Find())\n"
        f"sys.argv = ['ggsched', 'run', {LLAMA!r}, '--tokens', '1']\n"
        "runpy.run_module('ggsched', run_name='__main__')\n"
    )
    before = signal.getsignal(signal.SIGINT)
    environ = {**os.environ, "GGSCHED_OPS": "ops_of_test" if module == "ops_of_test" else "none"}
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, capture_output=True, timeout=60, env=environ)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    ("command", "options", "what"),
    [
        ("run", ("--tokens", "1", "--logits", "{model}"), "--logits would write over the model"),
        ("run", ("--tokens", "1", "--trace", "./{model}"), "--trace would write over the model"),
        ("run", ("--trace", "x", "--html", "x", "-f", "y"), "--html would write over --trace"),
        ("run", ("-f", "{model}", "--html", "link"), "--html would write over the prompt file"),
        ("plan", ("--dot", "x", "-o", "x"), "--dot would write over -o"),
        ("plan", ("--html", "{model}"), "--html would write over the model"),
        ("plan", ("-o", "-"), "-: -o writes a file, not standard output"),
        ("run", ("--tokens", "1", "--trace", "-"), "-: --trace writes a file, not standard"),
    ],
)
def test_no_file_is_written_over(tmp_path, monkeypatch, capsys, command, options, what):
    monkeypatch.chdir(tmp_path)
    content = Path(LLAMA).read_bytes()
    model = tmp_path / "m.gguf"
    model.write_bytes(content)
    (tmp_path / "link").symlink_to(model)
    arguments = [option.format(model=model.name) for option in options]
    assert main([command, model.name, "--devices", "cpu:0", *arguments]) == 2
    err = capsys.readouterr().err
    assert what in err
    assert err.count("\n") == 1
    assert model.read_bytes() == content
    assert not (tmp_path / "-").exists()
    nowhere = ["--trace", "/dev/null", "--logits", "/dev/null", "--devices", "cpu:0", "-n", "1"]
    assert main(["run", model.name, "--tokens", "1", *nowhere]) == 0


def test_a_picture_that_does_not_fit_the_disk(capsys):
    assert main(["plan", LLAMA, "--devices", "cpu:0", "--dot", "/dev/full"]) == 2
    assert "/dev/full: cannot write the picture: No space left" in capsys.readouterr().err
