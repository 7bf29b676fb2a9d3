"""``ggsched run``: what it prints where, its exit codes, and what it says when it cannot."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from ggsched.cli.main import main
from ggsched.errors import DeviceFault
from ggsched.topology.caps import offers
from ggsched_llm.load import load_model
from ggsched_llm.session import Session
from tests.models.helpers import ORACLE, tiny_gguf
from tests.models.vocabularies import BPE_META, PREFIX

LLAMA = str(ORACLE / "llama-tiny-f32.gguf")
MOE = str(ORACLE / "qwen3moe-tiny-f32.gguf")
TOKENS = ["--tokens", "3,1,4,1,5"]
CPU = ["--devices", "cpu:0"]
CPUS = ["--devices", "cpu:0,cpu:1"]


@pytest.fixture
def run(capsys):
    """Run the command; return its exit code, stdout and stderr."""

    def call(*arguments, model=LLAMA):
        code = main(["run", model, *map(str, arguments)])
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def data(run):
    """Run the command with ``--json``; return what it prints."""

    def call(*arguments, model=LLAMA):
        code, out, err = run(*arguments, "--json", model=model)
        assert (code, err) == (0, "")
        return json.loads(out)

    return call


@pytest.fixture(scope="module")
def talker(tmp_path_factory):
    """A model with a tokenizer."""
    path = tmp_path_factory.mktemp("models") / "talker.gguf"
    vocab = len(BPE_META[PREFIX + "tokens"])
    return str(tiny_gguf(path, meta=BPE_META, vocab=vocab))


class TestResult:
    def test_ids_on_stdout_numbers_on_stderr(self, run):
        code, out, err = run(*TOKENS, "-n", 4, *CPU)
        assert code == 0
        assert len(out.split()) == 4
        assert all(word.isdigit() for word in out.split())
        assert out.endswith("\n")
        assert err.startswith("prompt 5 tokens at ")
        assert "1 host syncs per token" in " ".join(err.split())

    def test_text(self, run, talker, data):
        code, out, _ = run("-p", "hello", "-n", 6, *CPU, model=talker)
        assert code == 0
        again = data("-p", "hello", "-n", 6, *CPU, model=talker)
        assert out == again["text"] + "\n"
        assert again["prompt_tokens"] != []
        by_ids = data("--tokens", ",".join(map(str, again["prompt_tokens"])), "-n", 6, model=talker)
        assert by_ids["tokens"] == again["tokens"]

    def test_json_says_all_that_it_promises(self, data):
        found = data(*TOKENS, "-n", 4, *CPUS, "-ot", r"blk\.1\.=cpu:0")
        assert set(found) == {"prompt_tokens", "tokens", "text", "stats"}
        assert found["prompt_tokens"] == [3, 1, 4, 1, 5]
        assert len(found["tokens"]) == 4
        assert found["text"] is None  # the file has no tokenizer
        stats = found["stats"]
        assert stats["splits"] == 3
        assert stats["commands"]["launch"] == 3
        assert stats["waits"] == stats["commands"]["wait"] == 2
        assert stats["host_syncs_per_token"] == 1.0
        assert stats["copied_bytes"]["cpu:0->cpu:1"] > 0
        assert stats["copied_bytes"]["cpu:1->host"] == 4 * 256
        assert set(stats["arena_bytes"]) == set(stats["weight_bytes"]) == {"cpu:0", "cpu:1"}
        assert sum(stats["weight_bytes"].values()) == load_model(LLAMA).weight_nbytes()
        assert stats["plan_ms"] > 0
        assert stats["tokens_per_s"] > 0
        assert (stats["prompt_tokens"], stats["decode_tokens"]) == (5, 3)

    def test_the_devices_do_not_matter(self, data):
        one = data(*TOKENS, "-n", 12, *CPU)["tokens"]
        assert data(*TOKENS, "-n", 12, *CPUS, "-ot", r"blk\.[02]=cpu:0")["tokens"] == one
        assert data(*TOKENS, "-n", 12, *CPU, "-ub", 1)["tokens"] == one
        assert data(*TOKENS, "-n", 12, *CPU, "-b", 2)["tokens"] == one
        assert data(*TOKENS, "-n", 12, *CPU, "--weights", "packed")["tokens"] == one

    def test_nothing_to_generate(self, run, data):
        code, out, _ = run(*TOKENS, "-n", 0, *CPU)
        assert (code, out) == (0, "\n")
        found = data(*TOKENS, "-n", 0, *CPU)
        assert found["tokens"] == []
        assert found["stats"]["tokens_per_s"] == 0

    def test_seeds(self, data):
        def drawn(seed):
            return data(*TOKENS, "-n", 10, "--temp", 3, "--seed", seed, *CPU)["tokens"]

        assert drawn(1) == drawn(1)
        assert len({tuple(drawn(seed)) for seed in range(4)}) > 1

    def test_without_temperature_the_seed_does_not_matter(self, data):
        assert (
            data(*TOKENS, "-n", 6, "--seed", 5, *CPU)["tokens"] == data(*TOKENS, "-n", 6)["tokens"]
        )

    def test_stops_where_the_context_ends(self, run):
        code, out, err = run(*TOKENS, "-n", 50, "-c", 8, *CPU)
        assert code == 0
        assert len(out.split()) == 4
        assert "ggsched: warning: the context of 8 tokens is full (see -c)" in err

    def test_goes_on_where_the_context_is_shifted(self, run):
        code, out, err = run(*TOKENS, "-n", 20, "-c", 8, "--context-shift", "--keep", 2, *CPU)
        assert code == 0
        assert len(out.split()) == 20
        assert "warning" not in err
        code, _, err = run(*TOKENS, "-n", 20, "-c", 8, "--context-shift", "--keep", 7, *CPU)
        assert code == 2
        assert "cannot keep 7 tokens" in err


class TestLogits:
    @pytest.mark.parametrize("n", [0, 1, 4])
    def test_one_row_for_each_token_that_is_fed(self, run, data, tmp_path, n):
        path = tmp_path / "logits.npy"
        assert run(*TOKENS, "-n", n, "--logits", path, *CPU, "-ub", 2)[0] == 0
        logits = np.load(path)
        assert logits.shape == (5 + max(0, n - 1), 256)
        assert logits.dtype == np.float32
        tokens = data(*TOKENS, "-n", n, *CPU)["tokens"]
        assert [int(row.argmax()) for row in logits[4:]][:n] == tokens

    def test_agree_with_what_was_recorded(self, run, tmp_path):
        with np.load(ORACLE / "llama-tiny-f32.npz") as recorded:
            tokens, wanted = recorded["tokens_7"], recorded["logits_7"]
        path = tmp_path / "logits.npy"
        assert run("--tokens", ",".join(map(str, tokens)), "-n", 0, "--logits", path)[0] == 0
        np.testing.assert_allclose(np.load(path), wanted, atol=1e-4)

    def test_a_path_that_cannot_be_written_is_told_first(self, run, tmp_path):
        path = tmp_path / "no" / "logits.npy"
        code, out, err = run(*TOKENS, "--logits", path, *CPU)
        assert (code, out) == (2, "")
        assert f"{path}: cannot write the logits: No such file" in err

    def test_a_failure_leaves_what_is_there(self, run, tmp_path):
        old, new = tmp_path / "old.npy", tmp_path / "new.npy"
        old.write_bytes(b"kept")
        for path in (old, new):
            assert run(*TOKENS, "--logits", path, model="missing.gguf")[0] == 2
        assert old.read_bytes() == b"kept"
        assert not new.exists()

    def test_a_directory(self, run, tmp_path):
        code, _, err = run(*TOKENS, "--logits", tmp_path, *CPU)
        assert code == 2
        assert "is a directory" in err


REFUSED = {
    "no prompt": ([], "give the prompt as -p TEXT, as -f FILE or as --tokens 1,2,3"),
    "two prompts": (
        [*TOKENS, "-p", "x"],
        "give the prompt as -p TEXT, as -f FILE or as --tokens 1,2,3",
    ),
    "text without tokenizer": (["-p", "x"], "has no tokenizer (pass --tokens 1,2,3)"),
    "empty tokens": (["--tokens", ""], "is not a list of whole numbers"),
    "token that is none": (["--tokens", "1,256"], "token 256 is not in the vocabulary: it has 256"),
    "huge token": (["--tokens", "99999999999999999999"], "is not in the vocabulary"),
    "unknown backend": ([*TOKENS, "--devices", "gone:0"], "no backend 'gone' is installed"),
    "unknown device": ([*TOKENS, "--devices", "cpu:99"], "there is no device cpu:99"),
    "no number": ([*TOKENS, "--devices", "cpu:x"], "'cpu:x' is not a device"),
    "one device twice": ([*TOKENS, "--devices", "cpu:0,cpu:0"], "named twice"),
    "no device": ([*TOKENS, "--devices", ""], "has an empty name"),
    "negative layers": ([*TOKENS, "-ngl", -2], "a number of layers is not negative"),
    "layers in words": ([*TOKENS, "-ngl", "abc"], "neither a number of layers nor 'all'"),
    "negative experts": ([*TOKENS, "--n-cpu-moe", -1], "-1 is not in the range"),
    "rule without device": ([*TOKENS, "-ot", "nonsense"], "is not REGEX=DEVICE"),
    "rule for an unknown device": ([*TOKENS, "-ot", "attn=gpu:0"], "device 'gpu:0'"),
    "rule for nothing": ([*TOKENS, "-ot", "zzz=cpu:0"], "-ot zzz matches no tensor"),
    "no expression": ([*TOKENS, "-ot", "(=cpu:0"], "is not a regular expression"),
    "shares of nobody": ([*TOKENS, "-ts", "1,1"], "-ts 1,1: one share of 0 or more"),
    "prompt too long": ([*TOKENS, "-c", 4], "0 + 5 tokens do not fit the context: it holds 4"),
    "negative tokens": ([*TOKENS, "-n", -3], "'-3' is neither a number of tokens nor -1 or -2"),
    "no micro-batch": ([*TOKENS, "-ub", 0], "'0' is neither a number from 1 on nor 'auto'"),
    "negative temperature": ([*TOKENS, "--temp", -1], "'-1' is not a number of 0 or more"),
    "temperature that is not a number": ([*TOKENS, "--temp", "nan"], "'nan' is not a number"),
    "infinite temperature": ([*TOKENS, "--temp", "inf"], "'inf' is not a number"),
    "negative seed": ([*TOKENS, "--seed", -2], "'-2' is neither a number of 0 or more nor -1"),
    "unknown policy": ([*TOKENS, "--weights", "zip"], "'zip' is not one of"),
    "more memory than there is": ([*TOKENS, "-c", 10**12], "does not fit the memory that is free"),
}


@pytest.mark.parametrize(("arguments", "message"), REFUSED.values(), ids=REFUSED)
def test_refused(run, arguments, message):
    devices = [] if "--devices" in arguments else CPU
    code, out, err = run(*arguments, *devices)
    assert (code, out) == (2, "")
    lines = [line for line in err.splitlines() if not line.startswith("ggsched: warning:")]
    assert len(lines) == 1
    assert lines[0].startswith("ggsched: error: ")
    assert message in lines[0]


class TestFiles:
    def refuse(self, run, path, message):
        code, out, err = run(*TOKENS, *CPU, model=str(path))
        assert (code, out) == (2, "")
        assert err.count("\n") == 1
        assert err.startswith(f"ggsched: error: {path}")
        assert message in err

    def test_missing(self, run, tmp_path):
        self.refuse(run, tmp_path / "gone.gguf", "No such file")

    def test_directory(self, run, tmp_path):
        self.refuse(run, tmp_path, "it is a directory")

    def test_empty(self, run, tmp_path):
        (tmp_path / "empty.gguf").touch()
        self.refuse(run, tmp_path / "empty.gguf", "is empty")

    def test_of_another_kind(self, run, tmp_path):
        (tmp_path / "x.gguf").write_bytes(b"PK\x03\x04" + bytes(100))
        self.refuse(run, tmp_path / "x.gguf", "")

    @pytest.mark.parametrize("share", [0.001, 0.01, 0.5, 0.999])
    def test_truncated(self, run, tmp_path, share):
        whole = (ORACLE / "llama-tiny-f32.gguf").read_bytes()
        (tmp_path / "cut.gguf").write_bytes(whole[: int(len(whole) * share)])
        self.refuse(run, tmp_path / "cut.gguf", "")

    def test_no_model_at_all(self, capsys):
        assert main(["run"]) == 2
        assert "Missing argument 'MODEL'" in capsys.readouterr().err


class TestRemarks:
    def test_layers_without_accelerator(self, run):
        code, _, err = run(*TOKENS, "-n", 1, "-ngl", 2, *CPU)
        assert code == 0
        assert "ggsched: warning: -ngl has no effect: cpu:0: no accelerator" in err

    def test_a_cache_that_no_device_can_write(self, run, monkeypatch):
        def without(ops, op, dtype):
            return (op, dtype) != ("set_rows", "f16") and offers(ops, op, dtype)

        monkeypatch.setattr("ggsched_llm.offload.offers", without)
        code, _, err = run(*TOKENS, "-n", 1, "-ngl", 99, "-ctk", "f16", *CPU)
        assert code == 2
        assert "cpu:0 lacks set_rows:f16 (-ctk f32)" in err

    @pytest.mark.parametrize("option", [["--cpu-moe"], ["--n-cpu-moe", 2]])
    def test_experts_of_a_model_without(self, run, option):
        code, _, err = run(*TOKENS, "-n", 1, *option, *CPU)
        assert code == 0
        assert "ggsched: warning: --n-cpu-moe has no effect: the model has no experts" in err
        assert "no effect" not in run(*TOKENS, "-n", 1, *option, *CPU, model=MOE)[2]

    def test_context_beyond_training(self, run):
        code, _, err = run(*TOKENS, "-n", 1, "-c", 300, *CPU)
        assert code == 0
        assert "a context (-c) of 300 tokens is more than the 256 of training" in err


class TestVerify:
    @pytest.fixture
    def checked(self, monkeypatch):
        """Names of plans that the sanitizer has looked at."""
        from ggsched import planner

        names = []
        usual = planner.check_plan

        def check(plan, *, order=True, **given):
            if order:  # else it is compared with its graph and the machine alone
                names.append(plan.name)
            return usual(plan, order=order, **given)

        monkeypatch.setattr(planner, "check_plan", check)
        return names

    def test_is_the_default(self, run, checked):
        assert run(*TOKENS, "-n", 2, *CPU)[0] == 0
        assert len(checked) == 2

    def test_can_be_left_out(self, run, checked):
        assert run(*TOKENS, "-n", 2, *CPU, "--no-verify")[0] == 0
        assert checked == []

    def test_option_before_environment(self, run, checked, monkeypatch):
        monkeypatch.setenv("GGSCHED_SANITIZE", "off")
        assert run(*TOKENS, "-n", 2, *CPU)[0] == 0
        assert checked == []
        assert run(*TOKENS, "-n", 2, *CPU, "--verify")[0] == 0
        assert len(checked) == 2


class TestTrouble:
    def test_a_device_that_fails(self, run, monkeypatch):
        def failing(self, tokens, **options):
            raise DeviceFault("n7 mul_mat failed", where="cpu:0 stream 0")

        monkeypatch.setattr(Session, "feed", failing)
        code, out, err = run(*TOKENS, *CPU)
        assert (code, out) == (3, "")
        assert "cpu:0 stream 0: n7 mul_mat failed" in err

    def test_interrupted(self, run, monkeypatch):
        def interrupted(self, tokens, **options):
            raise KeyboardInterrupt

        monkeypatch.setattr(Session, "feed", interrupted)
        assert run(*TOKENS, *CPU) == (130, "", "")

    @pytest.mark.parametrize("options", [[], ["--json"]])
    def test_nobody_reads_the_output(self, options):
        reader, writer = os.pipe()
        os.close(reader)
        command = [
            sys.executable,
            "-m",
            "ggsched",
            "run",
            LLAMA,
            *TOKENS,
            "-n",
            "4",
            *CPU,
            *options,
        ]
        done = subprocess.run(
            command, stdout=writer, stderr=subprocess.PIPE, timeout=120, check=False
        )
        os.close(writer)
        assert done.returncode == 141
        assert b"Traceback" not in done.stderr
        assert b"error" not in done.stderr

    def test_off_a_terminal_there_is_no_progress_bar(self, run):
        _, out, err = run(*TOKENS, "-n", 1, *CPU)
        assert "\x1b" not in out + err
        assert "loading" not in err
