"""Expert options (offload, staging buffers, cache) and what ``run`` reports of them."""

import json

import pytest

from ggsched.cli.main import main
from tests.models.helpers import ORACLE

MOE = str(ORACLE / "qwen3moe-tiny-f32.gguf")
ASKED = ["--tokens", "3,1,4,1,5", "-n", "6", "--devices", "opencl:0,cpu:0", "--cpu-moe"]
LAYERS = 3


@pytest.fixture
def run(capsys):
    def call(*arguments):
        code = main(["run", MOE, *ASKED, *arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def data(run):
    def call(*arguments):
        code, out, err = run(*arguments, "--json")
        assert (code, err) == (0, "")
        return json.loads(out)

    return call


@pytest.mark.opencl
def test_the_way_of_the_experts_does_not_matter(data):
    ways = [
        ["--op-offload", "off"],
        ["--op-offload", "on", "--expert-staging-buffers", "1"],
        ["--op-offload", "on", "--expert-staging-buffers", "3"],
        ["--op-offload", "on", "--expert-staging-buffers", "1", "--expert-cache", "1MiB"],
        [],
    ]
    results = [data(*way)["tokens"] for way in ways]
    assert all(tokens == results[0] for tokens in results)


@pytest.mark.opencl
def test_the_ledger_is_in_the_stats(data):
    rows = data("--op-offload", "on", "--expert-staging-buffers", "1")["stats"]["experts"]
    steps = 1 + 5  # the prompt, and each token that is fed back
    assert rows["id_reads"] == steps * LAYERS
    total = rows["total"]
    assert total["decisions"] == 3 * steps * LAYERS  # up, gate and down
    assert 0 < total["uploaded_rows"] == total["chosen_rows"]
    assert sum(t["uploaded_nbytes"] for t in rows["tensors"].values()) == total["uploaded_nbytes"]
    assert set(rows["tensors"]) == {
        f"blk.{i}.ffn_{kind}_exps.weight -> opencl:0"
        for i in range(LAYERS)
        for kind in ("up", "gate", "down")
    }
    cached = data("--op-offload", "on", "--expert-staging-buffers", "1", "--expert-cache", "1MiB")[
        "stats"
    ]
    found = cached["experts"]["total"]
    assert found["chosen_rows"] == total["chosen_rows"]
    assert found["uploaded_rows"] + found["cached_rows"] == found["chosen_rows"]
    assert found["cached_rows"] > 0
    assert 0 < cached["experts"]["cache_bytes"]["opencl:0"] <= 1 << 20


@pytest.mark.opencl
def test_where_nothing_moves_nothing_is_said(data, run):
    assert "experts" not in data("--op-offload", "off")["stats"]
    assert "experts:" not in run("--op-offload", "off")[2]


@pytest.mark.opencl
def test_people_are_reported(run):
    text = " ".join(run("--op-offload", "on", "--expert-staging-buffers", "1")[2].split())
    assert "rows chosen in 18 decisions" in text
    assert "of them copied in" in text
    many = ",".join(str(i) for i in range(32))
    text = " ".join(run("--op-offload", "on", "--tokens", many)[2].split())
    assert "of whole layers, before anybody chose" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--op-offload", "maybe"], "'maybe' is not one of"),
        (["--expert-staging-buffers", "0"], "0 is not in the range"),
        (["--expert-cache", "many"], "'many' is not a number of bytes"),
    ],
)
def test_refused(run, arguments, message):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert message in " ".join(err.split())


@pytest.mark.opencl
def test_a_plan_says_what_was_predicted(capsys):
    options = ["--devices", "opencl:0,cpu:0", "--cpu-moe", "--op-offload", "on"]
    assert main(["plan", MOE, *options, "--expert-staging-buffers", "1"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "copy rows" in text
    assert "offload" in text
    assert main(["plan", MOE, *options, "--json"]) == 0
    offloads = json.loads(capsys.readouterr().out)["placement"]["offloads"]
    assert len(offloads) == LAYERS
    assert all(o["is_taken"] and o["here_s"] > 0 and o["there_s"] > 0 for o in offloads)


@pytest.mark.opencl
def test_a_budget_that_is_too_small_for_copied_rows_is_one_message(capsys):
    asked = ["--devices", "opencl:0,cpu:0", "--cpu-moe", "--op-offload", "on", "--n-tokens", "4"]
    assert main(["plan", MOE, *asked, "--memory-budget", "opencl:0=8KiB"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("ggsched: error: opencl:0: needs ")
    assert "bytes of compute memory, allowed are 8,192" in err
