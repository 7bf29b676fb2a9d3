"""``ggsched devices --json`` writes what ``ggsched plan --topology`` reads."""

import json

import pytest

from ggsched.cli.main import main
from ggsched.topology.codec import topology_to_text
from ggsched.topology.model import CopyPath, Topology
from ggsched_testing.generators.topologies import ALL_OPS
from ggsched_testing.plan_builder import fake_device
from tests.models.helpers import ORACLE

MODEL = str(ORACLE / "llama-tiny-f32.gguf")


@pytest.fixture
def call(capsys):
    def run(*arguments):
        code = main([*map(str, arguments)])
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def two_gpus(tmp_path):
    gpu = {"ops": ALL_OPS, "memory_nbytes": 8 << 30}
    host = {"ops": ALL_OPS, "is_host": True, "kind": "cpu"}
    facts = (
        fake_device("cuda:0", **gpu),
        fake_device("cuda:1", **gpu),
        fake_device("cpu:0", **host),
    )
    pairs = [(a, b) for a in range(3) for b in range(3) if a != b]
    topology = Topology(
        facts,
        {(a, b): CopyPath(a, b, min(a, b)) for a, b in pairs},
        dict.fromkeys(pairs, "native"),
    )
    path = tmp_path / "two-gpus.json"
    path.write_text(topology_to_text(topology), encoding="utf-8")
    return path


def without_time(text):
    return {k: v for k, v in json.loads(text).items() if k != "planning_s"}


def test_the_plan_for_a_file_is_the_plan_for_the_machine(call, tmp_path, monkeypatch):
    monkeypatch.setenv("GGSCHED_BACKENDS", "cpu")
    code, out, err = call("devices", "--json")
    assert (code, err) == (0, "")
    path = tmp_path / "here.json"
    path.write_text(out, encoding="utf-8")
    _, here, _ = call("plan", MODEL, "--json")
    code, there, err = call("plan", MODEL, "--topology", path, "--json")
    assert (code, err) == (0, "")
    assert without_time(there) == without_time(here)


def test_a_machine_that_is_not_here(call, two_gpus):
    code, out, err = call("plan", MODEL, "--topology", two_gpus, "-ngl", 2)
    assert (code, err) == (0, "")
    assert "d0 cuda:0" in out
    assert "d2 cpu:0" in out
    code, out, err = call("plan", MODEL, "--topology", two_gpus, "--devices", "cuda:1,cpu:0")
    assert (code, err) == (0, "")
    assert "d0 cuda:1" in out
    assert "cuda:0" not in out


def test_memory_of_a_machine_that_is_not_here(call, two_gpus):
    code, out, err = call("plan", MODEL, "--topology", two_gpus, "--memory")
    assert (code, err) == (0, "")
    assert "cuda:0" in out


@pytest.mark.parametrize("content", ["", "{}", "[]", "\x00", '{"topology": null}'])
def test_a_damaged_file_is_one_line(call, tmp_path, content):
    path = tmp_path / "machine.json"
    path.write_text(content, encoding="utf-8")
    code, out, err = call("plan", MODEL, "--topology", path)
    assert (code, out) == (2, "")
    assert err.startswith("ggsched: error: ")
    assert "machine.json" in err
    assert err.count("\n") == 1


def test_a_file_or_device_that_is_not_there(call, tmp_path, two_gpus):
    code, _, err = call("plan", MODEL, "--topology", tmp_path / "none.json")
    assert (code, err.count("\n")) == (2, 1)
    code, _, err = call("plan", MODEL, "--topology", two_gpus, "--devices", "cuda:7")
    assert (code, err.count("\n")) == (2, 1)
    assert "devices: cuda:0, cuda:1, cpu:0" in err


def test_no_usable_device_is_no_topology(call, monkeypatch):
    monkeypatch.setattr("ggsched.backend.registry.open_devices", none_usable)
    code, out, _ = call("devices", "--json")
    assert code == 0
    assert json.loads(out)["topology"] is None


def none_usable(*_, **options):
    from ggsched.errors import BackendUnavailable

    raise BackendUnavailable("nothing here")
