"""``ggsched plan``: plans without running anything."""

import json

import pytest

from ggsched.cli.main import main
from ggsched.plan.codec import plan_from_json
from ggsched.run.store import TensorStore
from ggsched.sanitize import check_plan
from tests.models.helpers import ORACLE

LLAMA = str(ORACLE / "llama-tiny-f32.gguf")
MOE = str(ORACLE / "qwen3moe-tiny-f32.gguf")
CPUS = ["--devices", "cpu:0,cpu:1", "-ot", r"blk\.1\.=cpu:0"]


@pytest.fixture
def plan(capsys):
    def call(*arguments, model=LLAMA):
        code = main(["plan", model, *map(str, arguments)])
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture(autouse=True)
def nothing_is_loaded(monkeypatch):
    """Fail where a weight or a state becomes resident."""

    def tensor(self, arena):
        raise AssertionError(f"{arena.name} was loaded")

    monkeypatch.setattr(TensorStore, "tensor", tensor)


@pytest.mark.usefixtures("narrow")
def test_text(plan):
    code, out, err = plan(*CPUS)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("plan of ")
    for title in ("devices", "splits", "memory", "commands", "stats"):
        assert title in lines
    assert all(len(line) <= 80 for line in lines)
    assert sum(line.startswith("  s") for line in lines) == 3


def test_verbose_lists_the_home_of_every_tensor(plan):
    code, out, _ = plan(*CPUS, "-v")
    assert code == 0
    homes = [line.split() for line in out.splitlines() if line.startswith("home ")]
    assert ["home", "cpu:0", "blk.1.k_cache"] in [words[:3] for words in homes]
    assert len(homes) == 3 * (9 + 2) + 3


@pytest.mark.parametrize("options", [[], ["--n-tokens", 5], ["--n-past", 40], ["-c", 32]])
def test_json_is_a_clean_plan(plan, options):
    code, out, err = plan(*CPUS, *options, "--json")
    assert (code, err) == (0, "")
    read = plan_from_json(out)
    assert check_plan(read).is_clean
    assert read.commands


def test_file_holds_what_json_prints(plan, tmp_path):
    path = tmp_path / "plan.json"
    code, out, _ = plan(*CPUS, "-o", path)
    assert code == 0
    assert out.startswith("plan of ")
    code, printed, _ = plan(*CPUS, "--json")

    def content(text):
        return {k: v for k, v in json.loads(text).items() if k != "planning_s"}

    assert content(path.read_bytes()) == content(printed)


def test_micro_batches_and_buckets(plan):
    names = [
        plan(*CPUS, "--n-tokens", n, "--n-past", past)[1].splitlines()[0].split("'")[1]
        for n, past in ((1, 0), (1, 31), (1, 32), (7, 0), (200, 56))
    ]
    assert [name.split(maxsplit=1)[1] for name in names] == [
        "T1 N32",
        "T1 N32",
        "T1 N256",
        "T7 N32",
        "T200 N256",
    ]


def test_experts_on_the_host(plan):
    _, out, _ = plan("--devices", "cpu:0,cpu:1", "-ot", "exps=cpu:0", model=MOE)
    splits = [line for line in out.splitlines() if line.startswith("  s")]
    assert [line.split()[1] for line in splits] == ["cpu:1", "cpu:0"] * 3 + ["cpu:1"]


@pytest.mark.parametrize("how", ["memory", "cost", "equal"])
def test_layers_divided_among_processors(plan, how):
    code, out, err = plan("--devices", "cpu:0,cpu:1", "--split-by", how, "--n-tokens", 8)
    assert (code, err) == (0, "")
    splits = [line.split()[1] for line in out.splitlines() if line.startswith("  s")]
    assert splits == ["cpu:0", "cpu:1"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--split-by", "cost"], "no devices to divide layers among: devices: cpu:0"),
        (["--n-tokens", 0], "0 is not in the range"),
        (["--n-past", -1], "-1 is not in the range"),
        (["--n-past", 256], "256 + 1 tokens do not fit the context: it holds 256"),
        (["--n-tokens", 33, "-c", 32], "0 + 33 tokens do not fit the context: it holds 32"),
        (["-o", "no/such/plan.json"], "cannot write the plan: No such file"),
        (["-ot", "attn=gone:0"], "device 'gone:0'"),
        (["-ot", "zzz=cpu:0"], "matches no tensor"),
        (["-ngl", "x"], "neither a number of layers nor 'all'"),
        (["-p", "x"], "No such option"),
    ],
)
def test_refused(plan, arguments, message):
    code, out, err = plan("--devices", "cpu:0", *arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith("ggsched: error: ")
    assert message in err


def test_missing_file(plan):
    code, out, err = plan(model="gone.gguf")
    assert (code, out) == (2, "")
    assert "gone.gguf" in err


@pytest.mark.parametrize("written", ["-o", "--html", "--dot"])
@pytest.mark.parametrize("instead", [("--memory",), ("--explain", "n1")])
def test_what_prints_no_plan_writes_none(plan, tmp_path, written, instead):
    code, out, err = plan(*CPUS, *instead, written, tmp_path / "plan")
    assert (code, out) == (2, "")
    assert f"{written} with {instead[0]}" in err
    assert list(tmp_path.iterdir()) == []
