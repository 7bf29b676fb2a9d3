"""``ggsched trace``, and what ``run`` and ``plan`` write to be looked at."""

import json

import pytest

from ggsched.cli.main import main
from ggsched.errors import DeviceFault
from ggsched_llm.session import Session
from tests.models.helpers import ORACLE

LLAMA = str(ORACLE / "llama-tiny-f32.gguf")
RUN = ["run", LLAMA, "--tokens", "3,1,4", "-n", "3", "--devices", "cpu:0,cpu:1"]
SPLIT = ["-ot", r"blk\.1\.=cpu:0"]


@pytest.fixture
def command(capsys):
    def call(*arguments):
        capsys.readouterr()
        code = main([str(a) for a in arguments])
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def recorded(command, tmp_path):
    path = tmp_path / "t.jsonl"
    assert command(*RUN, *SPLIT, "--trace", path)[0] == 0
    return path


@pytest.mark.parametrize("name", ["t.jsonl", "t.json"])
@pytest.mark.usefixtures("narrow")
def test_both_forms_can_be_checked_and_accounted_for(command, tmp_path, name):
    path = tmp_path / name
    assert command(*RUN, *SPLIT, "--trace", path)[0] == 0
    assert command("check", path)[0] == 0
    code, out, err = command("trace", path)
    assert (code, err) == (0, "")
    for word in ("busy", "cpu:0", "cpu:1", "host->cpu:1", "idle"):
        assert word in out
    assert max(map(len, out.splitlines())) <= 80
    is_perfetto = "traceEvents" in path.read_text()
    assert is_perfetto == (name == "t.json")


def test_json(command, recorded):
    code, out, err = command("trace", recorded, "--json")
    data = json.loads(out)
    assert (code, err) == (0, "")
    # The prompt, and each generated token but the last, which wait for each other.
    assert (data["runs"], data["micro_batches"], data["stages"]) == (3, 1, 2)
    for device in data["devices"]:
        assert sum(device["shares"].values()) == pytest.approx(1.0)
    assert 0 < data["bubble"] < 1


def test_some_runs_only(command, recorded):
    every = json.loads(command("trace", recorded, "--json")[1])
    later = json.loads(command("trace", recorded, "--json", "--runs", "1:")[1])
    one = json.loads(command("trace", recorded, "--json", "--runs", "0")[1])
    assert (later["runs"], one["runs"]) == (2, 1)
    assert later["commands"] + one["commands"] == every["commands"]
    code, _, err = command("trace", recorded, "--runs", "7:")
    assert code == 2
    assert "there are 3" in err


@pytest.mark.parametrize("runs", ["", ":", "x", "1:2:3", "-1"])
def test_ranges_that_are_none(command, recorded, runs):
    code, _, err = command("trace", recorded, "--runs", runs)
    assert code == 2
    assert "range of runs" in err


def test_page_and_perfetto_file(command, recorded, tmp_path):
    html, perfetto = tmp_path / "r.html", tmp_path / "r.json"
    assert command("trace", recorded, "--html", html, "--perfetto", perfetto)[0] == 0
    assert "<canvas" in html.read_text(encoding="utf-8")
    assert json.loads(perfetto.read_text())["traceEvents"]
    assert command("check", perfetto)[0] == 0


def test_a_run_writes_page_and_report(command, tmp_path):
    html = tmp_path / "r.html"
    code, out, err = command(*RUN, *SPLIT, "--html", html, "--report", "--json")
    assert code == 0
    assert "busy" in err
    assert json.loads(out)["account"]["runs"] == 3
    assert "<canvas" in html.read_text(encoding="utf-8")


def test_a_report_leaves_stdout_alone(command):
    code, out, err = command(*RUN, "--report")
    assert code == 0
    assert "busy" not in out
    assert "what would help most" in err


def test_a_run_that_fails_leaves_its_trace(command, tmp_path, monkeypatch):
    def fail(self, *_, **__):
        raise DeviceFault("it broke", where="cpu:0")

    monkeypatch.setattr(Session, "generate", fail)
    path = tmp_path / "t.json"
    code, _, err = command(*RUN, "--trace", path, "--report", "--html", tmp_path / "r.html")
    assert code == 3
    assert "it broke" in err
    assert command("check", path)[0] == 0
    code, _, err = command("trace", path)
    assert code in (0, 2)


@pytest.mark.parametrize("option", ["--trace", "--html"])
def test_a_file_that_cannot_be_written_costs_no_run(command, tmp_path, option, monkeypatch):
    monkeypatch.setattr(Session, "generate", lambda *_, **__: pytest.fail("it ran"))
    code, _, err = command(*RUN, option, tmp_path / "no" / "t.json")
    assert code == 2
    assert "cannot write" in err


def test_a_plan_as_a_page(command, tmp_path):
    path = tmp_path / "p.html"
    code, _, _ = command("plan", LLAMA, "--devices", "cpu:0,cpu:1", *SPLIT, "--html", path)
    text = path.read_text(encoding="utf-8")
    assert code == 0
    assert '"isExpected":true' in text


def test_what_is_no_trace(command, tmp_path):
    path = tmp_path / "x"
    path.write_text("{}")
    assert command("trace", path)[0] == 2
    assert command("trace", tmp_path / "missing")[0] == 2
