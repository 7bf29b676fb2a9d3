"""The how-to's program runs, and its commands exist."""

import re
from pathlib import Path

import click

from ggsched.cli.main import cli

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "profile-a-run.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_the_program_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.S)
    exec(compile(code, str(PAGE), "exec"), {})
    assert "'busy'" in capsys.readouterr().out
    assert (tmp_path / "example.html").stat().st_size > 10_000


def test_the_commands_have_these_options():
    context = click.Context(cli)
    for line in re.findall(r"^    ggsched (.*)$", TEXT, re.M):
        name, *words = line.split("#")[0].split()
        known = {opt for p in cli.get_command(context, name).params for opt in p.opts}
        used = {word for word in words if re.match(r"-{1,2}[a-z]", word)}
        assert used <= known, (name, used - known)
