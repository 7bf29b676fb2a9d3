import json

import pytest
from rich.cells import cell_len

from ggsched.cli.main import main
from ggsched.testing import conformance
from ggsched.testing.conformance import Harness
from tests.testing.broken_devices import DeafStream, cpu_with


@pytest.fixture
def deaf(monkeypatch):
    """Let every name stand for a broken device."""
    harness = cpu_with(DeafStream)
    monkeypatch.setattr(Harness, "named", classmethod(lambda cls, spec, allow=None: harness))


def test_a_backend_that_keeps_the_contract(capsys):
    assert main(["conform", "cpu", "--rules", "STR-5,EVT-3,CAP-*"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.strip()}
    assert rows["STR-5"] == ["5", "ok"]
    assert rows["CAP-1"] == ["6", "ok"]
    assert "cpu:0 keeps the contract" in out
    assert max(cell_len(line.rstrip()) for line in out.splitlines()) <= 80


def test_a_backend_that_breaks_it(deaf, capsys):
    assert main(["conform", "broken", "--rules", "EVT-2", "--seed", "4"]) == 1
    out = capsys.readouterr().out
    assert "EVT-2" in out
    assert "FAILED" in out
    assert "q1.wait(e0)" in out
    assert "replay: ggsched conform broken --rules evt2_holds_copies --seed 4" in out
    assert "breaks EVT-2" in out


def test_json(deaf, capsys):
    assert main(["conform", "broken", "--rules", "EVT-2", "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["format"] == "ggsched-conformance/1"
    assert data["broken_rules"] == ["EVT-2"]
    assert data["ok"] is False


def test_each_case_on_request(capsys):
    assert main(["conform", "sim:1", "--rules", "BUF-3", "-v"]) == 0
    out, err = capsys.readouterr()
    assert err.count("buf3_") == 4
    assert "sim:1 keeps the contract" in out


@pytest.mark.parametrize(
    "arguments",
    [
        ["nope"],
        ["cpu:one"],
        ["cpu", "--rules", "XYZ-1"],
        ["cpu", "--max-examples", "0"],
        ["cpu", "--seed", "-1"],
        [],
    ],
)
def test_what_makes_no_sense(arguments, capsys):
    assert main(["conform", *arguments]) == 2
    assert capsys.readouterr().err.startswith("ggsched: error:")


def test_what_is_not_there(monkeypatch, capsys):
    monkeypatch.setenv("GGSCHED_BACKENDS", "opencl")
    assert main(["conform", "cpu", "--rules", "STR-5"]) in (2, 3)
    assert "cpu" in capsys.readouterr().err


def test_examples_are_passed_on(monkeypatch):
    seen = {}

    def run(harness, **options):
        seen.update(options)
        return conformance.ConformanceReport("cpu:0", 0, ())

    monkeypatch.setattr(conformance, "run_conformance", run)
    assert main(["conform", "cpu", "--max-examples", "7", "--seed", "9"]) == 0
    assert (seen["max_examples"], seen["seed"], seen["rules"]) == (7, 9, None)
