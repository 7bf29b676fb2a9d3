"""What ``run`` and ``check`` say: rates without set-up, whether batches were pipelined, advice."""

import json
import re

import pytest

from ggsched.cli.main import main
from ggsched.run.resources import Resources
from ggsched.sanitize.report import Finding, Report
from ggsched_llm.load import load_model
from ggsched_llm.session import Session, SessionOptions
from tests.models.helpers import ORACLE

LLAMA = str(ORACLE / "llama-tiny-f32.gguf")
TWO = ["--devices", "cpu:0,cpu:1", "-ts", "1,1", "-ub", "2"]


@pytest.fixture
def call(capsys):
    def call(*arguments):
        code = main([*map(str, arguments)])
        out, err = capsys.readouterr()
        assert code == 0, err
        return out, err

    return call


SAID = {
    "on": (
        ["--pipeline", "on"],
        r"\npipelined: in 1 of 1 batches the micro-batches ran together",
    ),
    "one": (["--pipeline", "on", "-ub", "8"], r"\nnot pipelined: no batch had more than one micro"),
    "off": (["--pipeline", "off"], r"^(?!.*pipelined)"),
}


@pytest.mark.parametrize("name", SAID)
def test_whether_it_pipelined(name, call):
    options, said = SAID[name]
    run = ["run", LLAMA, *TWO, "--tokens", "1,2,3,4", "-n", 1, *options]
    err = " ".join(call(*run)[1].replace("\n", "\n ").split(" ")).replace("\n ", "\n")
    assert re.search(said, err, re.DOTALL), err
    stats = json.loads(call(*run, "--json")[0])["stats"]
    assert stats["pipelined_batches"] == (name == "on")
    assert stats["batches"] == (name != "one")


def test_rates_leave_out_planning_loading_and_compiling(monkeypatch):
    """The clock jumps a minute whenever a plan is bound; no token is charged for it."""
    late = [0.0]
    real = Resources.__init__

    def slow(self, *given):
        real(self, *given)
        late[0] += 60.0

    monkeypatch.setattr(Resources, "__init__", slow)
    import time

    now = time.perf_counter
    monkeypatch.setattr(time, "perf_counter", lambda: now() + late[0])
    with Session(load_model(LLAMA), ["cpu:0"], SessionOptions(n_ctx=32)) as session:
        assert len(list(session.generate([1, 2, 3], 4))) == 4
        timing = session.timing
    assert timing.setup_s > 110
    assert timing.prompt_s < 50
    assert timing.decode_s < 50
    assert timing.fastest_step_s < 50


def test_equal_advice_is_said_once():
    advice = [
        Finding("waste", f"nobody needs #{i}, the wait of host", i, "leave it out")
        for i in range(20)
    ]
    advice.insert(3, Finding("waste", "nobody reads what c7 copies", 7, "leave it out"))
    text = Report("x", 9, 1, (), tuple(advice)).to_text()
    assert text == (
        "x: 9 commands, 1 runs: clean\n"
        "20 times waste: nobody needs #0, the wait of host\n"
        "  the same for #1, #2, #3, #4, #5, #6, #7, #8, #9, #10, #11, #12 and 7 more\n"
        "  fix: leave it out\n"
        "waste: nobody reads what c7 copies\n"
        "  fix: leave it out\n"
    )
