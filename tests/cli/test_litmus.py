"""``ggsched litmus``: verdicts, witnesses, exit codes."""

import json
from pathlib import Path

import pytest

from ggsched.cli.main import main

CORPUS = sorted(
    str(p)
    for p in (Path(__file__).parents[1] / "litmus").iterdir()
    if p.suffix in (".md", ".litmus")
)
RACE = "litmus one race\nA: run > x#1\n+ H: sync A\nH: get x?1 > y\n"
WRONG = "litmus two value\nA: run > x#1\nH: get x?1 > y\n"


@pytest.fixture
def litmus(capsys, tmp_path):
    """Judge texts, each in a file of its own; return exit code, stdout and stderr."""

    def call(*texts, options=()):
        paths = [tmp_path / f"{i}.litmus" for i in range(len(texts))]
        for path, text in zip(paths, texts, strict=True):
            path.write_text(text, encoding="utf-8")
        code = main(["litmus", *map(str, paths), *options])
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.mark.usefixtures("narrow")
def test_text(litmus):
    code, out, err = litmus(RACE)
    assert (code, err) == (0, "")
    assert out == (
        "one      broken  race\n"
        "    RAW on x[0:1]: nothing orders line 2 'A: run > x#1' before line 4 'H: get\n"
        "      x?1 > y'\n"
        "    fix: let H wait for A after line 2 and before line 4\n"
        "one      fixed   clean\n"
        "2 verdicts, 0 not as stated, checker and explorer agree\n"
    )


def test_not_as_stated(litmus):
    code, out, _ = litmus(RACE, WRONG, options=["--quiet"])
    assert code == 1
    lines = [line for line in out.splitlines() if not line.startswith(" ")]
    assert lines == [
        "two      broken  race  but stated is value",
        "two      fixed   race  but stated is clean",
        "4 verdicts, 2 not as stated, checker and explorer agree",
    ]


def test_json(litmus):
    code, out, err = litmus(RACE, WRONG, options=["--json"])
    assert (code, err) == (1, "")
    data = json.loads(out)
    assert [(d["id"], d["variant"], d["verdict"], d["expected"]) for d in data] == [
        ("one", "broken", "race", "race"),
        ("one", "fixed", "clean", "clean"),
        ("two", "broken", "race", "value"),
        ("two", "fixed", "race", "clean"),
    ]
    assert [d["ok"] for d in data] == [True, True, False, False]
    assert all(d["agree"] for d in data)
    assert all(bool(d["witness"]) == (d["verdict"] != "clean") for d in data)
    assert data[0]["explorer"]["verdict"] == "race"
    assert data[0]["file"].endswith("0.litmus")


@pytest.mark.parametrize("command", ["litmus", "check"])
def test_a_wait_on_what_nobody_records_is_warned_of(tmp_path, capsys, command):
    """It orders nothing, and a misspelt name looks as if it did. One variant may leave it out."""
    path = tmp_path / "w.litmus"
    lines = ["litmus w race", "A: run > x#1", "+ A: rec e", "B: wait e", "B: wait ee", "B: sync A"]
    path.write_text("\n".join([*lines, "B: run x?1 > y", "H: sync f", "H: sync _on_purpose"]))
    main([command, str(path)])
    said = capsys.readouterr().err.splitlines()
    assert said == [
        f"ggsched: warning: {path}:5: nobody records ee, so this wait has no effect: B: wait ee",
        f"ggsched: warning: {path}:8: nobody records f, so this wait has no effect: H: sync f",
    ]


@pytest.mark.usefixtures("narrow")
def test_the_corpus(capsys):
    assert main(["litmus", *CORPUS]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert all(len(line) <= 80 for line in out.splitlines())
    assert "checker and explorer agree" in out.splitlines()[-1]


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("", "0.litmus"),
        ("litmus one\nA: run", "0.litmus:1"),
        (RACE + "nonsense", "0.litmus:5"),
        (RACE + "litmus empty race\n", "0.litmus:5"),
    ],
)
def test_malformed(litmus, text, where):
    for texts in ([text], [text, RACE]):
        code, out, err = litmus(*texts, options=["--json"])
        assert (code, out) == (2, "")
        assert f"{where}: " in err
        assert err.count("\n") == 1


def test_no_file(capsys, tmp_path):
    assert main(["litmus"]) == 2
    assert main(["litmus", str(tmp_path / "none.litmus")]) == 2
    assert "cannot read the file" in capsys.readouterr().err


def test_stdin(capsys, monkeypatch, tmp_path):
    source = tmp_path / "in"
    source.write_text(RACE, encoding="utf-8")
    with source.open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert main(["litmus", "-"]) == 0
