"""``ggsched calibrate``: what it prints, where it keeps it, and that planning finds it."""

import json
import re
import time

import pytest

from ggsched.cli.main import main
from ggsched_calibrate import timing
from tests.calibrate.undisturbed import trust_what_is_measured

FEW = ["--devices", "cpu:0", "--time-budget", "0.5"]


@pytest.fixture(autouse=True)
def undisturbed(monkeypatch):
    trust_what_is_measured(monkeypatch)
    monkeypatch.setattr(timing, "others_of_this_process", lambda: None)


@pytest.fixture
def calibrate(capsys):
    def call(*arguments):
        code = main(["calibrate", *map(str, arguments)])
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.mark.usefixtures("narrow")
def test_text_fits_a_terminal_and_progress_goes_to_stderr(calibrate, tmp_path):
    path = tmp_path / "r.json"
    code, out, err = calibrate(*FEW, "-o", path)
    assert (code, err) == (0, "calibrating cpu:0\n")
    lines = out.splitlines()
    assert all(len(line) <= 80 for line in lines[:-1])
    assert lines[0].split() == ["device", "rate", "of", "compute", "memory", "time"]
    assert any(re.search(r"FLOP/s .* .?B/s", line) for line in lines)
    assert any(line.startswith("host -> cpu:0") for line in lines)
    assert lines[-1].endswith(f"kept in {path}")


def test_json(calibrate, tmp_path, monkeypatch):
    path = tmp_path / "r.json"
    monkeypatch.setenv("GGSCHED_RATES", str(path))
    code, out, _ = calibrate(*FEW, "--json")
    assert code == 0
    data = json.loads(out)
    kept = json.loads(path.read_text(encoding="utf-8"))
    assert data["file"] == str(path)
    assert kept["devices"].keys() == {data["devices"]["cpu:0"]["identity"]}
    assert {(link["src"], link["dst"]) for link in data["links"]} == {
        ("host", "cpu:0"),
        ("cpu:0", "host"),
    }
    assert all(len(link["samples"]) == 4 for link in data["links"])
    (known,), (said,) = kept["devices"].values(), data["devices"].values()
    assert said["kernels"] == known["kernels"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--time-budget", "0"], "'0' is not a time from 0.1 to 600 s"),
        (["--devices", "gone:0"], "gone"),
        ([*FEW, "-o", "/dev/null/rates.json"], "cannot write the rates"),
    ],
)
def test_refused(calibrate, arguments, message):
    code, out, err = calibrate(*arguments)
    assert (code, out) == (2, "")
    assert message in err.splitlines()[-1]


def test_a_damaged_file_is_named_once_and_made_anew(calibrate, tmp_path):
    path = tmp_path / "r.json"
    path.write_text("{", encoding="utf-8")
    code, _, err = calibrate(*FEW, "-o", path)
    assert code == 0
    assert err.count("is ignored") == 1
    assert json.loads(path.read_text(encoding="utf-8"))["devices"]


def test_a_busy_machine_is_named_and_nothing_is_kept(calibrate, tmp_path, monkeypatch):
    """Other processes use a hundred processors all the time."""
    others = lambda: 100 * time.perf_counter()  # noqa: E731
    monkeypatch.setattr(timing, "others_of_this_process", lambda: others)
    path = tmp_path / "r.json"
    code, out, _ = calibrate(*FEW, "-o", path)
    assert code == 3
    said = " ".join(out.split())
    assert re.search(
        r"disturbed: \d+ rates of cpu:0, as of .+: other processes used [\d.]+ pro", said
    )
    assert "older ones" not in out
    assert "copies" not in out
    assert "cpu:0 nothing: disturbed" in said
    assert f"nothing of cpu:0 is kept in {path}" in out.splitlines()[-1]
    assert json.loads(path.read_text(encoding="utf-8"))["devices"] == {}
    code, out, _ = calibrate(*FEW, "-o", path, "--json")
    assert (code, json.loads(out)["unknown"]) == (3, ["cpu:0"])
