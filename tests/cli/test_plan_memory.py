"""``ggsched plan --memory``: what a run takes, without loading anything."""

import json

import pytest

from ggsched.backend.free_memory import available_host_nbytes, free_nbytes
from ggsched.cli.main import main
from ggsched.run.store import TensorStore
from ggsched_llm.batch_runner import BatchRunner
from ggsched_testing.sim import SimConfig, SimWorld
from tests.backends.device_settings import base_device
from tests.models.helpers import ORACLE

LLAMA = str(ORACLE / "llama-tiny-f32.gguf")
MOE = str(ORACLE / "qwen3moe-tiny-f32.gguf")
SPREAD = ["--devices", "cpu:0,cpu:1", "-ot", r"blk\.1\.=cpu:0"]


@pytest.fixture
def call(capsys):
    def call(*arguments):
        code = main([*map(str, arguments)])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_equals_what_a_run_says_is_resident(call, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(TensorStore, "tensor", _refuse)
        code, out, err = call("plan", MOE, *SPREAD, "--memory", "--prompt-tokens", 3, "--json")
    assert (code, err) == (0, "")
    said = json.loads(out)
    assert said["fits"]
    assert (said["prompt_tokens"], said["predict"]) == (3, 32)
    code, out, _ = call("run", MOE, *SPREAD, "--tokens", "1,2,3", "--json")
    assert code == 0
    stats = json.loads(out)["stats"]
    for name, resident in (("weights", "weight_bytes"), ("states", "state_bytes")):
        assert {d: said["devices"][d][name] for d in ("cpu:0", "cpu:1")} == stats[resident]
    assert said["plans"] == stats["plans_made"]
    assert all(
        said["devices"][d]["arenas"] >= nbytes > 0 for d, nbytes in stats["arena_bytes"].items()
    )


def _refuse(self, arena):
    raise AssertionError(f"{arena.name} was loaded")


@pytest.mark.parametrize("devices", ["cpu:0", "cpu:0,cpu:1,cpu:2,cpu:3,cpu:4"])
@pytest.mark.usefixtures("narrow")
def test_table(call, devices):
    code, out, err = call("plan", MOE, "--devices", devices, "--memory", "-c", 64)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert all(len(line) <= 80 for line in lines)
    header = [word for line in lines if line.startswith("bytes") for word in line.split()[1:]]
    assert header == [*devices.split(","), "host", "memory"]
    # 33 tokens, then 31 that are fed back.
    assert "a prompt of 33 tokens and 32 generated" in lines[0]
    assert lines[-1].startswith("fits")
    totals = [w for line in lines if line.startswith("total") for w in line.split()[1:]]
    assert len(totals) == len(devices.split(",")) + 1
    assert sum(int(w.replace(",", "")) for w in totals) > 100_000


def test_what_does_not_fit_is_named(call, monkeypatch):
    monkeypatch.setattr("ggsched.scheduler.free_nbytes", lambda device: 1000)
    code, out, _ = call("plan", MOE, "--devices", "cpu:0", "--memory")
    assert code == 1
    assert out.splitlines()[-1] == "does not fit: cpu:0 (--fit looks for a way)"


def test_a_prompt_that_is_too_long(call):
    code, out, err = call(
        "plan", MOE, "--devices", "cpu:0", "--memory", "-c", 32, "--prompt-tokens", 33
    )
    assert (code, out) == (2, "")
    assert "33 tokens do not fit the context: it holds 32" in err


def test_free_memory(tmp_path):
    (device,) = SimWorld([SimConfig(memory_nbytes=1000)]).open_all()
    assert free_nbytes(device) == 1000
    device.allocate(300)
    assert free_nbytes(device) == 700
    assert 0 < free_nbytes(base_device()) <= base_device().facts.memory_nbytes
    meminfo = tmp_path / "meminfo"
    assert available_host_nbytes(str(meminfo)) is None
    meminfo.write_text("MemTotal: 9 kB\nMemAvailable:   5 kB\n")
    assert available_host_nbytes(str(meminfo)) == 5 * 1024
    for text in ("", "MemAvailable: much\n", "MemAvailable:\n"):
        meminfo.write_text(text)
        assert available_host_nbytes(str(meminfo)) is None


@pytest.mark.usefixtures("narrow")
def test_a_huge_context_is_answered_quickly_and_readably(call, monkeypatch):
    """Two billion tokens are 86 plans; numbers of any length keep their columns."""
    began = []
    real = BatchRunner.graph

    def graph(self, *size, **more):
        began.append(size)
        return real(self, *size, **more)

    monkeypatch.setattr(BatchRunner, "graph", graph)
    code, out, _ = call("plan", LLAMA, "--devices", "cpu:0", "--memory", "-c", 2**31 - 1)
    assert code == 1
    assert out.splitlines()[-1] == "does not fit: cpu:0 (--fit looks for a way)"
    assert len(began) < 1000
    rows = [line for line in out.splitlines() if line.startswith("total")]
    assert [len(row.split()) for row in rows] == [3]
    assert all(len(line) <= 80 for line in out.splitlines())
