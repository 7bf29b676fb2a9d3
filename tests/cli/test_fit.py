"""``--fit`` on the command line: what may be chosen, what is said, what is refused."""

import json

import pytest

from ggsched.cli.main import main
from ggsched_llm.fit import read_margin
from tests.models.helpers import ORACLE

LLAMA = str(ORACLE / "llama-tiny-f32.gguf")
MOE = str(ORACLE / "qwen3moe-tiny-f32.gguf")


@pytest.fixture
def call(capsys):
    def call(*arguments):
        code = main([*map(str, arguments)])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_says_what_and_why_and_runs(call):
    code, out, err = call(
        "run", MOE, "--devices", "sim:0,sim:1", "--fit", "--tokens", "1,2,3", "-n", 2
    )
    assert code == 0
    assert len(out.split()) == 2
    lines = err.splitlines()
    assert lines[0].startswith("fit: -ngl ")
    assert "\nit takes sim:" in err


def test_smaller_contexts_are_tried_where_none_is_given(call, monkeypatch):
    monkeypatch.setattr("ggsched.scheduler.free_nbytes", lambda device: 2_600_000)
    arguments = ["plan", MOE, "--devices", "cpu:0", "--memory", "--json", "--fit"]
    code, out, err = call(*arguments, "-ub", 64)
    assert code == 0
    assert json.loads(out)["n_ctx"] == 256
    monkeypatch.setattr("ggsched.scheduler.free_nbytes", lambda device: 1_300_000)
    code, _, err = call(*arguments, "-ub", 64)
    assert code == 2
    assert "no way to spread the model fits: -c 256 comes closest and lacks" in err
    assert err.count("\n") == 1


def test_a_draft_model_has_its_memory_first(call, monkeypatch):
    """Layers that fit a device alone leave it for its draft, or there is no way."""
    free = 1_000_000
    monkeypatch.setattr("ggsched.scheduler.free_nbytes", lambda device: free)
    arguments = [LLAMA, "--memory", "--json", "--fit", "-ub", 8, "-c", 64]
    for devices, draft, fits in (
        ("sim:0", [], True),
        ("sim:0", ["-md", LLAMA], False),
        ("sim:0,sim:1", ["-md", LLAMA], True),
    ):
        code, out, err = call("plan", *arguments, "--devices", devices, *draft)
        assert (code == 0) == fits, err
        if not fits:
            assert "no way to spread the model fits" in err
            continue
        for name, own in json.loads(out)["devices"].items():
            assert ("draft" in own) == bool(draft)
            if name.startswith("sim"):
                assert own["one_plan_at_a_time"] + own.get("draft", 0) <= free


@pytest.mark.usefixtures("narrow")
def test_a_draft_model_is_listed(call):
    """And counts where it is said that something does not fit."""
    arguments = ["plan", LLAMA, "--devices", "cpu:0,cpu:1", "--memory", "-c", 64]
    code, out, err = call(*arguments, "-md", LLAMA, "--draft-devices", "cpu:1")
    assert (code, err) == (0, "")
    (line,) = [line for line in out.splitlines() if line.startswith("draft model")]
    here, there, host = (int(n.replace(",", "")) for n in line.split()[2:])
    assert there > 500_000
    assert (here, host) == (0, 0)


def test_margins():
    assert read_margin("512MiB") == (512 << 20, 0.0)
    assert read_margin("0") == (0, 0.0)
    assert read_margin("12.5%") == (0, 0.125)
    for text in ("", "%", "100%", "-1%", "nan%", "much", "-5"):
        with pytest.raises(ValueError, match="is not a"):
            read_margin(text)
