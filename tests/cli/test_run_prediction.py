"""``ggsched run`` says what a step was predicted to take beside what it took."""

import json
import re

import pytest

from ggsched.cli.main import main
from ggsched_llm.timing import Timing
from tests.models.helpers import ORACLE

LLAMA = str(ORACLE / "llama-tiny-f32.gguf")


@pytest.fixture
def run(capsys):
    def call(*arguments):
        assert main(["run", LLAMA, "--devices", "cpu:0", "--tokens", "1,2,3", *arguments]) == 0
        return capsys.readouterr()

    return call


def test_json_and_line(run):
    stats = json.loads(run("-n", "6", "--json").out)["stats"]
    assert stats["rates"] == "guesses by kind of device"
    assert stats["predicted_step_ms"] > 0
    slowest_possible = 1e3 / stats["tokens_per_s"]
    assert 0 < stats["fastest_step_ms"] <= slowest_possible * 1.001
    line = " ".join(run("-n", "6").err.split())
    step = r"a step [\d.]+ [mµn]?s at best, predicted [\d.]+ [mµn]?s by guesses by kind of device$"
    assert re.search(step, line)


def test_without_a_decoding_step_nothing_is_compared(run):
    stats = json.loads(run("-n", "1", "--json").out)["stats"]
    assert "predicted_step_ms" not in stats
    assert "predicted" not in run("-n", "1").err


def test_the_fastest_step_counts():
    timing = Timing()
    for seconds in (3.0, 1.0, 2.0):
        timing.note_step(seconds)
    assert (timing.decode_tokens, timing.decode_s, timing.fastest_step_s) == (3, 6.0, 1.0)
