"""Help in groups, the bundled model by name, completion in shells."""

import shlex
import shutil
import subprocess
import sys

import click
import pytest

from ggsched.cli.main import main
from ggsched_commands.help_groups import GROUPS
from ggsched_commands.model_file import EXAMPLE, bundled_model
from ggsched_commands.page import commands
from tests.models.helpers import ORACLE

GROUPED = ["run", "bench", "perplexity", "plan"]


@pytest.mark.parametrize("name", GROUPED)
def test_every_option_has_a_heading(name, capsys):
    assert main([name, "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    headings = [line[:-1] for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert headings == [h for h in GROUPS if h in headings] + ["Other options"]
    assert [
        line.split()[0] for line in lines[lines.index("Other options:") + 1 :] if line.strip()
    ] == ["-h,"]
    text = "\n".join(lines)
    for option in commands()[name].params:
        assert max(option.opts, key=len) in text or option.name == "model"


def test_commands_are_told_in_whole_sentences(capsys):
    """None is cut, and no command at all gives the same page."""
    assert main(["--help"]) == 0
    page = capsys.readouterr().out
    assert "..." not in page.partition("Commands:")[2]
    assert main([]) == 2
    assert capsys.readouterr().err == page


def test_every_option_says_what_it_does():
    silent = [
        (name, option.opts[-1])
        for name in GROUPED
        for option in commands()[name].params
        if isinstance(option, click.Option) and not option.help
    ]
    assert silent == []


def test_a_mistyped_command(capsys):
    assert main(["rum", "demo"]) == 2
    assert "'rum'. Did you mean 'run'?" in capsys.readouterr().err


def test_what_the_bundled_model_can_do_is_said(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["run", "demo"]) == 2
    assert EXAMPLE in capsys.readouterr().err
    assert main([*shlex.split(EXAMPLE)[1:], "--devices", "cpu:0"]) == 0
    assert capsys.readouterr().out == "802\n"
    assert main(["run", "demo", "-p", "hi", "--devices", "cpu:0"]) == 2
    assert "use only the characters '0123456789+='" in capsys.readouterr().err


def test_headings_name_options_that_exist_once():
    named = [name for names in GROUPS.values() for name in names]
    assert len(named) == len(set(named))
    known = {p.name for name in GROUPED for p in commands()[name].params}
    assert set(named) <= known


def test_the_bundled_model_by_name(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["run", "demo", "-p", "417+385=", "-n", "8", "--devices", "cpu:0"]) == 0
    assert capsys.readouterr().out.startswith("802")
    with bundled_model() as path:
        assert path.is_file()


def test_a_file_of_that_name_is_taken_first(capsys, tmp_path, monkeypatch):
    shutil.copy(ORACLE / "llama-tiny-f32.gguf", tmp_path / "demo")
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "demo", "-p", "4", "-n", "0", "-r", "1", "--devices", "cpu:0"]) == 0
    assert "llama" in capsys.readouterr().out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell):
    """As docs/how-to/complete-in-a-shell.md says."""
    code = "from ggsched.__main__ import command; command()"
    if shell == "bash" and shutil.which("bash") is None:
        pytest.skip("click asks bash for its version")
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.argv = ['ggsched']; {code}"],
        env={"_GGSCHED_COMPLETE": f"{shell}_source", "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"_GGSCHED_COMPLETE={shell}_complete" in done.stdout
