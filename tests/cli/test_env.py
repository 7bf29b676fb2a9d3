"""``ggsched env``."""

import json

import pytest

from ggsched.cli.main import main
from ggsched.config import VARIABLES


def test_each_variable_with_value_and_origin(monkeypatch, capsys):
    monkeypatch.setenv("GGSCHED_SEED", " 7 ")
    monkeypatch.setenv("GGSCHED_BACKENDS", "")
    assert main(["env", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["variables"]}
    assert set(rows) == {v.name for v in VARIABLES}
    assert (rows["GGSCHED_SEED"]["value"], rows["GGSCHED_SEED"]["origin"]) == ("7", "environment")
    assert rows["GGSCHED_SEED"]["default"] == "0"
    # Set to nothing is not set.
    assert rows["GGSCHED_BACKENDS"]["origin"] == "default"


@pytest.mark.usefixtures("narrow")
def test_the_table_names_all_and_fits(monkeypatch, capsys):
    monkeypatch.setenv("GGSCHED_BACKENDS", "cpu,opencl,some_other_backend")
    assert main(["env"]) == 0
    out = capsys.readouterr().out
    assert all(v.name in out for v in VARIABLES)
    assert max(len(line.rstrip()) for line in out.splitlines()) <= 80


def test_off_a_terminal_each_variable_has_one_line(monkeypatch, capsys):
    monkeypatch.setenv("GGSCHED_BACKENDS", "cpu,opencl,some_other_backend")
    assert main(["env"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(VARIABLES)


def test_a_misspelt_variable_is_reported(monkeypatch, capsys):
    monkeypatch.setenv("GGSCHED_SEDE", "7")
    assert main(["env"]) == 2
    assert "did you mean GGSCHED_SEED?" in capsys.readouterr().err
