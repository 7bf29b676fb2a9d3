"""``--placement`` of run and plan."""

import json

import numpy as np
import pytest

from ggsched.cli.main import main
from ggsched.plan.codec import plan_from_json
from ggsched.sanitize import check_plan
from tests.models.helpers import ORACLE

LLAMA = str(ORACLE / "llama-tiny-f32.gguf")
TWO = ["--devices", "cpu:0,cpu:1", "-c", "64"]


@pytest.fixture
def call(capsys):
    def run(*arguments):
        code = main([*map(str, arguments)])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def plan_of(call, *arguments):
    code, out, err = call("plan", LLAMA, *TWO, "--json", *arguments)
    assert (code, err) == (0, "")
    plan = plan_from_json(out)
    assert check_plan(plan).is_clean
    return plan


@pytest.mark.parametrize("n_tokens", [1, 16])
def test_cost_compares_placements(call, n_tokens):
    plan = plan_of(call, "--placement", "cost", "--n-tokens", n_tokens)
    names = {c.name for c in plan.placement.candidates}
    assert {"cpu:0 alone", "ggml's rules", "list schedule"} <= names
    assert any(name.startswith("cpu:1") for name in names)
    assert plan_of(call, "--placement", "ggml").placement == plan_of(call).placement
    assert not plan_of(call).placement.candidates


def test_overrides_are_kept(call):
    rule = r"blk\.1\.ffn.*=cpu:1"
    plan = plan_of(call, "--placement", "cost", "-ot", rule)
    homes = {a.name: a.device for a in plan.memory.arenas if a.kind == "weight"}
    assert {d for name, d in homes.items() if name.startswith("blk.1.ffn")} == {1}


def test_text_and_explanation_name_the_candidates(call):
    code, out, err = call("plan", LLAMA, *TWO, "--placement", "cost")
    assert (code, err) == (0, "")
    assert "placements\n" in out
    assert "(taken)" in out
    code, out, err = call("plan", LLAMA, *TWO, "--placement", "cost", "--explain", "blk.1.ffn_up")
    assert (code, err) == (0, "")
    text = " ".join(out.split())
    assert "the least predicted time of the whole graph" in text
    assert "placements of the whole graph that were compared" in text
    code, out, _ = call(
        "plan", LLAMA, *TWO[:2], "--n-tokens", "128", "--streams", "2", "--explain", "blk.1.ffn_up"
    )
    assert "streams there: 2 streams, predicted" in " ".join(out.split())
    options = ["--placement", "cost", "--explain", "blk.0.attn_q.weight", "--json"]
    code, out, _ = call("plan", LLAMA, *TWO, *options)
    data = json.loads(out)
    assert data["reason"] == "chosen by --placement for a step of decoding"
    assert sum(c["is_taken"] for c in data["candidates"]) == 1


def test_logits_are_the_same(call, tmp_path):
    found = []
    for placement in ("ggml", "cost"):
        path = tmp_path / f"{placement}.npy"
        options = ["--tokens", "3,1,4,1,5", "-n", "4", "--placement", placement]
        code, _, err = call("run", LLAMA, *TWO, *options, "--logits", path)
        assert code == 0, err
        found.append(np.load(path))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [("-ngl", "1"), ("-ts", "1,1"), ("--split-by", "equal"), ("--fit",), ("--n-cpu-moe", "1")],
)
def test_layers_beside_cost_are_refused(call, options):
    code, out, err = call("plan", LLAMA, *TWO, "--placement", "cost", *options)
    assert (code, out) == (2, "")
    assert f"{options[0]} with --placement cost(effort=1)" in err
    assert err.count("\n") == 1
