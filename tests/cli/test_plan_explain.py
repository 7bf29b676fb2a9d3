"""``ggsched plan --explain``: reasons, alternatives and locations, in words and as JSON."""

import json

import pytest

from ggsched.cli.main import main
from tests.models.helpers import ORACLE

LLAMA = str(ORACLE / "llama-tiny-f32.gguf")
SPREAD = ["--devices", "cpu:0,cpu:1", "-ot", r"blk\.2\.=cpu:0"]


@pytest.fixture
def explain(capsys):
    def call(*arguments):
        code = main(["plan", LLAMA, *SPREAD, "--explain", *arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.mark.usefixtures("narrow")
def test_a_node_in_words(explain):
    code, out, err = explain("blk.2.ffn_up")
    assert (code, err) == (0, "")
    assert all(len(line) <= 80 for line in out.splitlines())
    text = " ".join(out.split())
    assert "runs on cpu:0: it reads blk.2.ffn_up.weight: -ot blk\\.2\\." in text
    assert "elsewhere (by guesses by kind of device) cpu:1: a step" in text
    assert "of arenas" in text


def test_a_weight_in_words(explain):
    code, out, _ = explain("blk.0.attn_q.weight")
    assert code == 0
    text = " ".join(out.split())
    assert text.startswith("weight blk.0.attn_q.weight (64, 64) f32, 16,384 bytes lives on cpu:1:")
    assert "block 0 is on the host (no accelerator is in use)" in text
    assert "home on cpu:1" in text


@pytest.mark.parametrize("name", ["n12", "t7", "blk.1.k_cache", "tokens", "bounds"])
def test_json(explain, name):
    code, out, _ = explain(name, "--json", "--n-tokens", "3")
    assert code == 0
    data = json.loads(out)
    assert data["rates"] == "guesses by kind of device"
    assert data["step_s"] > 0
    places = data.get("places", data.get("result"))
    assert places
    assert all(place["device"] in ("cpu:0", "cpu:1", "host") for place in places)
    is_input = data.get("role") == "input"
    assert [other["device"] for other in data["alternatives"]] == ([] if is_input else ["cpu:0"])


def test_unknown_names_have_close_matches(explain):
    code, out, err = explain("blk.1.fn_upp")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "no node and no tensor 'blk.1.fn_upp' (close: blk.1.ffn_up" in err
