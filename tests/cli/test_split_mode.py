"""``-sm tensor`` of run and plan."""

import re

import pytest

from ggsched.cli.main import main
from ggsched.plan.codec import plan_from_json
from ggsched.sanitize import check_plan
from tests.models.helpers import ORACLE

LLAMA = str(ORACLE / "llama-tiny-f32.gguf")
TWO = ["--devices", "cpu:0,cpu:1", "-c", "64", "-sm", "tensor"]
TOKENS = ["--tokens", "1,2,3", "-n", "4"]


@pytest.fixture
def call(capsys):
    def run(*arguments):
        code = main([*map(str, arguments)])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_a_run_generates_what_one_device_generates(call):
    _, alone, _ = call("run", LLAMA, "--devices", "cpu:0", "-c", "64", *TOKENS)
    code, out, err = call("run", LLAMA, *TWO, "-ts", "3,1", *TOKENS, "--report")
    assert (code, out) == (0, alone)
    assert re.search(r"cpu:0->cpu:1 .* read by \d+ launches, [\d.]+ .s", err)
    assert re.search(r"cpu:1->cpu:0 .* read by \d+ launches, [\d.]+ .s", err)
    assert re.search(r"^idle [\d.]+%$", err, re.M), "devices that share layers are no stages"


def test_stages_are_compared_with_equal_ones(call):
    _, _, err = call("run", LLAMA, *TWO[:4], "-ts", "1,1", *TOKENS, "--report")
    assert re.search(r"^idle [\d.]+%; 2 equal stages and one micro-batch at a time", err, re.M)


def test_a_plan_names_parts_and_is_clean(call):
    code, out, err = call("plan", LLAMA, *TWO, "--json")
    assert (code, err) == (0, "")
    plan = plan_from_json(out)
    assert check_plan(plan).is_clean
    assert {s.device for s in plan.splits.splits} == {0, 1}
    code, out, _ = call("plan", LLAMA, *TWO, "--verbose")
    assert re.search(r"cpu:1->cpu:0 .* each run, read by launches", out)
    assert "blk.0.attn_q.weight#1" in out
    assert "of axis 0 (-sm tensor)" in out


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["-ngl", "2"], "-ngl 2 with -sm tensor: no CPU is beside the devices that share layers"),
        (["-ts", "1,1,1"], "one share of 0 or more for each device"),
        (["--tensor-group", "3"], "groups of 3 for 2 devices"),
    ],
)
def test_refusals_are_one_line(call, arguments, what):
    code, out, err = call("run", LLAMA, *TWO, *TOKENS, *arguments)
    assert (code, out) == (2, "")
    assert what in " ".join(err.split())
    assert "Traceback" not in err
