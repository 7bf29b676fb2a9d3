"""A draft model on the command line: the text, the figures, and what is said of options."""

import json
import logging
from importlib.resources import files

import pytest

from ggsched.cli.main import main
from ggsched_llm import draft as drafting
from tests.models.helpers import tiny_gguf
from tests.models.test_prediction_head import parts, write

DEMO = str(files("ggsched.data") / "addition-moe.gguf")
RUN = ["run", DEMO, "--devices", "cpu:0", "-p", "417+385=", "-n", "14", "--ignore-eos"]


@pytest.fixture
def eager(monkeypatch):
    monkeypatch.setattr(drafting.Pacing, "wants_draft", lambda self, more=0: True)
    monkeypatch.setattr(drafting.Pacing, "note_round", lambda self, n_tokens, seconds: None)


@pytest.mark.usefixtures("eager")
def test_the_text_and_the_figures(capsys):
    assert main(RUN) == 0
    text, _ = capsys.readouterr()
    assert main([*RUN, "-md", DEMO, "--draft-max", "3"]) == 0
    found, said = capsys.readouterr()
    assert found == text
    assert "draft: 1.00 accepted, 3.2 tokens a step; 3 of 4 steps drafted" in said
    assert main([*RUN, "-md", "demo", "--draft-max", "3", "--json"]) == 0
    stats = json.loads(capsys.readouterr().out)["stats"]
    assert stats["draft"] == {"rounds": 3, "drafted_tokens": 9, "accepted_tokens": 9}


def test_drafts_that_are_not_used(capsys):
    assert main([*RUN, "-n", "3", "-md", DEMO]) == 0
    assert "draft: not used: too few tokens, or it would gain no time" in capsys.readouterr().err


@pytest.mark.usefixtures("eager")
def test_bench_generates_what_is_predicted(capsys):
    bench = ["bench", DEMO, "--devices", "cpu:0", "-p", "4", "-n", "8", "-pg", "4,8", "-r", "2"]
    assert main([*bench, "-o", "json", "-md", DEMO]) == 0
    prompt, text, both = json.loads(capsys.readouterr().out)
    assert "drafted" not in prompt
    for test in (text, both):
        assert test["accepted"] == test["drafted"] > 0
        assert len(test["samples_ts"]) == 2


def test_options_without_a_draft_and_another_vocabulary(capsys, caplog, tmp_path):
    with caplog.at_level(logging.WARNING):
        assert main([*RUN, "--draft-max", "3", "-devd", "cpu:0"]) == 0
    assert "--draft-devices has no effect without -md" in caplog.text
    assert "--draft-max has no effect without -md" in caplog.text
    capsys.readouterr()
    other = str(tiny_gguf(tmp_path / "other.gguf"))
    assert main([*RUN, "-md", other]) == 2
    out, said = capsys.readouterr()
    assert out == ""
    assert said.startswith(f"ggsched: error: {other}: the draft model has another vocabulary: ")
    assert said.count("\n") == 1


@pytest.mark.usefixtures("eager")
def test_a_model_drafts_with_its_own_head(capsys, tmp_path):
    model = str(write(tmp_path / "m.gguf", *parts("glm4moe")))
    given = [model, "--devices", "sim:0", "-c", "64"]
    run = ["run", *given, "--tokens", "3,1,4", "-n", "9", "--json"]
    assert main(run) == 0
    alone = json.loads(capsys.readouterr().out)
    assert main([*run, "--spec-type", "draft-mtp", "--draft-max", "2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["tokens"] == alone["tokens"]
    draft = found["stats"]["draft"]
    assert draft["rounds"] < draft["drafted_tokens"] <= 2 * draft["rounds"]
    totals = []
    for more in ([], ["--spec-type", "draft-mtp"]):
        plan = ["plan", *given, "--memory", "--prompt-tokens", "4", "-n", "4", "--json", *more]
        assert main(plan) == 0
        totals.append(json.loads(capsys.readouterr().out)["devices"]["sim:0"]["weights"])
    assert totals[1] > totals[0]


def test_a_model_without_a_head(capsys):
    assert main([*RUN, "--spec-type", "draft-mtp"]) == 2
    out, said = capsys.readouterr()
    assert out == ""
    assert said.startswith(f"ggsched: error: {DEMO}: has no head that predicts further tokens: ")
    assert said.count("\n") == 1
