"""``--streams``, ``--packing-effort`` and ``--memory-budget`` of run, plan and demo."""

import json

import pytest

from ggsched.cli.main import main
from ggsched.plan.codec import plan_from_json
from ggsched.sanitize import check_plan
from tests.models.helpers import ORACLE, wide_gguf

LLAMA = str(ORACLE / "llama-tiny-f32.gguf")
MOE = str(ORACLE / "qwen3moe-tiny-f32.gguf")
CPU = ["--devices", "cpu:0"]
GPU = ["--devices", "sim:0"]  # several streams run at full speed beside each other
CPUS = ["--devices", "cpu:0,cpu:1", "-ot", r"blk\.1\.=cpu:0"]
TOKENS = ["--tokens", "3,1,4,1,5", "-n", "8"]


@pytest.fixture(autouse=True)
def node_by_node(monkeypatch):
    """Groups leave next to no independent nodes in models as small as these."""
    monkeypatch.setenv("GGSCHED_FUSE", "0")


@pytest.fixture
def call(capsys):
    def run(*arguments):
        code = main([*map(str, arguments)])
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def plan(call):
    def run(*arguments, model=MOE):
        code, out, err = call("plan", model, "--json", *arguments)
        assert (code, err) == (0, "")
        read = plan_from_json(out)
        assert check_plan(read).is_clean
        return read

    return run


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """Return a model of which one token keeps several streams busy."""
    path = tmp_path_factory.mktemp("wide") / "wide.gguf"
    wide_gguf(path)
    return str(path)


class TestPlan:
    # There are not always as many nodes that could run at the same time.
    @pytest.mark.parametrize(("most", "used"), [(1, 1), (2, 2), (4, 3), (8, 4)])
    def test_a_number_is_the_most(self, plan, most, used):
        found = plan(*CPU, "--streams", most, "--n-tokens", 64)
        assert len(found.streams.streams) == used

    def test_auto_is_the_default_and_stays_sequential_where_nothing_is_gained(self, plan):
        auto, plain = plan(*GPU, "--streams", "auto"), plan(*GPU)
        assert auto.streams == plain.streams
        assert [gain.is_taken for gain in auto.streams.gains] == [False]

    def test_measure_shows_what_auto_does(self, plan):
        assert plan(*CPU, "--streams", "autotune").streams == plan(*CPU).streams

    def test_environment_and_option(self, plan, wide, monkeypatch):
        monkeypatch.setenv("GGSCHED_STREAMS", "3")
        assert len(plan(*CPU, model=wide).streams.streams) > 1
        assert len(plan(*CPU, "--streams", 1, model=wide).streams.streams) == 1

    def test_gains_are_reported(self, call, wide):
        _, out, _ = call("plan", wide, *GPU)
        (line,) = [line for line in out.splitlines() if line.startswith("  sim:0 s0:")]
        assert "sequential, " in line
        assert "4 streams are predicted to gain nothing" in " ".join(out.split())
        _, out, _ = call("plan", wide, *CPU, "--streams", 2)
        assert "cpu:0 s0: 2 streams, predicted " in out
        assert "cpu:0 2 streams" in out

    def test_a_budget_buys_bytes_with_waits(self, call, plan):
        several = [*CPU, "--streams", 4, "--n-tokens", 128]
        free = plan(*several)
        assert free.trades == ()
        least = plan(*CPU, "--streams", 1, "--n-tokens", 128)
        budget = (_arena(free) + _arena(least)) // 2
        tight = plan(*several, "--memory-budget", budget)
        assert tight.trades
        assert _arena(tight) <= budget < _arena(free)
        _, out, _ = call("plan", MOE, *several, "--memory-budget", f"cpu:0={budget}")
        assert "\ntrades\n" in out
        assert f"c{tight.trades[0].command}: this wait saves " in " ".join(out.split())

    def test_a_budget_that_cannot_be_kept(self, call):
        code, out, err = call("plan", LLAMA, *CPU, "--memory-budget", "64")
        assert (code, out) == (2, "")
        assert "bytes of compute memory, allowed are 64" in err

    def test_effort(self, plan):
        assert plan(*CPU, "--packing-effort", 1).memory == plan(*CPU).memory  # it is perfect

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--streams", "0"], "neither auto, autotune nor a number from 1 to 64"),
            (["--streams", "two"], "neither auto, autotune nor a number from 1 to 64"),
            (["--memory-budget", "64MB"], "is not a number of bytes such as 64MiB"),
            (["--memory-budget", "gpu:3=64MiB"], "the memory budget names 'gpu:3'"),
            (["--packing-effort", "-1"], "-1 is not in the range"),
        ],
    )
    def test_refused(self, call, arguments, message):
        code, out, err = call("plan", LLAMA, *CPU, *arguments)
        assert (code, out) == (2, "")
        assert err.startswith("ggsched: error: ")
        assert message in err


def _arena(plan):
    (nbytes,) = [a.nbytes for a in plan.memory.arenas if a.kind == "compute"]
    return nbytes


class TestRun:
    def tokens(self, call, model, *arguments):
        code, out, err = call("run", model, *TOKENS, *arguments, "--json")
        assert (code, err) == (0, "")
        found = json.loads(out)
        return found["tokens"], found["stats"]

    def test_streams_do_not_change_tokens(self, call, wide):
        one, stats = self.tokens(call, wide, *CPU, "--streams", 1)
        assert stats["streams"] == {"cpu:0": 1}
        several, stats = self.tokens(call, wide, *CPU, "--streams", 4)
        assert several == one
        assert stats["streams"]["cpu:0"] > 1
        assert stats["host_syncs_per_token"] == 1
        assert stats["arena_ratio"] >= 1
        assert "streams_measured" not in stats

    @pytest.mark.parametrize("devices", [CPU, CPUS])
    def test_measured_runs_give_the_same_tokens(self, call, wide, devices):
        many = [*devices, "-n", 20]
        one, _ = self.tokens(call, wide, *many, "--streams", 1)
        measured, stats = self.tokens(call, wide, *many, "--streams", "autotune")
        assert measured == one
        decode = stats["streams_measured"][-1]
        assert decode["kept"] in ("sequential", "streams")
        assert decode["runs"] == 12
        faster = decode["streams_s"] < decode["sequential_s"]
        assert (decode["kept"] == "streams") == faster

    def test_what_was_measured_is_reported(self, call, wide):
        code, _, err = call("run", wide, *TOKENS, *CPU, "--streams", "autotune", "-n", 16)
        assert code == 0
        text = " ".join(err.split())
        assert "undecided after 1 runs: one stream not timed, several not timed" in text
        assert " kept: one stream " in text


def test_demo_takes_streams(call):
    code, out, _ = call("demo", "--devices", "cpu:0,cpu:1", "--streams", 2, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["right"]
    assert found["same"]
    assert max(found["stats"]["streams"].values()) > 1


@pytest.mark.parametrize(
    ("old", "new", "value"),
    [
        ("--memory-effort", "--packing-effort", "1"),
        ("--slots", "--pipeline-buffers", "3"),
        ("--expert-ring", "--expert-staging-buffers", "1"),
        ("--streams", "--streams", "measure"),
    ],
)
def test_old_names_of_options_are_accepted_and_not_shown(call, old, new, value):
    code, _, err = call("run", "absent.gguf", "-p", "1", old, value)
    assert code == 2
    assert "absent.gguf" in err
    assert "No such option" not in err
    _, out, _ = call("run", "--help")
    assert new in out
    assert old == new or old not in out


@pytest.mark.parametrize("misspelt", ["--slotss", "--expert-rings", "--memory-effor"])
def test_old_names_are_not_proposed(call, misspelt):
    code, _, err = call("plan", LLAMA, *CPU, misspelt, "2")
    assert code == 2
    assert misspelt in err
    assert misspelt[:-1] not in err.replace(misspelt, "")
    assert "--memory-effort" not in err
