"""Models beside llama.cpp: the file, the worker and its timeouts, rows; no peer is needed."""

import sys

import numpy as np
import pytest

from benchmarks.peers import __main__ as command
from benchmarks.peers import bench_models
from benchmarks.peers.bench_models import EXACT, PEER, WORKER, Case, Times, differences, rows_of
from benchmarks.peers.installed import known_peers, reason_missing
from benchmarks.peers.model_sides import open_side
from benchmarks.peers.model_worker import feed_all
from benchmarks.peers.random_gguf import write_random_gguf
from benchmarks.peers.worker_process import WorkerError, WorkerProcess
from ggsched_llm.hparams import HParams, RopeParams
from ggsched_llm.load import load_model

TINY = HParams(
    "llama", "tiny", 64, 32, 32, 2, 2, 1, 16, 48, 2**-17, 0.25, RopeParams(16, "adjacent", 1e4)
)
SIZES = ("--threads", "1", "--ctx", "64", "--vocab", "32", "--prompt", "4", "--decode", "3")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_random_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf", TINY)


def test_the_file_says_what_was_asked_for(tiny):
    model = load_model(tiny)
    assert model.hparams == TINY
    assert {w.shape for w in model.spec.weights.values()} >= {(32, 32), (48, 32), (16, 32)}


def test_the_same_tokens_give_the_same_logits_expanded_and_packed(tiny):
    rng = np.random.default_rng(0)
    prompt, steps = (rng.integers(0, 32, n, dtype=np.int32) for n in (5, (3, 1)))
    found = []
    for name in ("ggsched", "ggsched packed"):
        side = open_side(name, tiny, 1, 64)
        first, again = (feed_all(side, prompt, steps) for _ in range(2))
        side.close()
        assert np.array_equal(first[1], again[1])
        assert first[1].shape == (4, 32)
        assert min(first[0].values()) > 0
        found.append(first[1])
    assert max(differences(*found)) < 1e-4


def test_a_worker_answers(tiny, tmp_path):
    with WorkerProcess(WORKER, ["ggsched", str(tiny), *SIZES], 1, 60) as worker:
        assert worker.answer() == {"ready": True}
        assert set(worker.ask("round")) == {"prefill_s", "decode_s"}
        worker.ask(f"logits {tmp_path / 'found.npy'}")
    assert np.load(tmp_path / "found.npy").shape == (4, 32)


def test_a_worker_that_ends_says_why(tmp_path):
    missing = str(tmp_path / "missing.gguf")
    with (
        WorkerProcess(WORKER, ["ggsched", missing, *SIZES], 1, 60) as worker,
        pytest.raises(WorkerError, match=r"missing\.gguf"),
    ):
        worker.answer()


def test_a_worker_that_says_nothing_is_given_up():
    with (
        WorkerProcess("json.tool", [], 1, 0.2) as worker,
        pytest.raises(WorkerError, match="no answer"),
    ):
        worker.answer()


def test_rows_and_differences_by_hand():
    case = Case("m", None, 4, 8, 10, 2, ("ggsched", PEER), 0.5)
    took = {"ggsched": Times([2.0, 1.0], [1.0, 1.0]), PEER: Times([1.0, 1.0], [0.5, 2.0])}
    wanted = np.array([[0.0, 2.0], [0.0, 4.0]], np.float32)
    found = wanted + np.array([[0.5, 0.5], [0.0, 0.0]], np.float32)
    assert differences(found, wanted) == [0.5, 0.0]
    rows = rows_of(case, 1, took, {"ggsched": found, PEER: wanted + wanted, EXACT: wanted})
    assert [(r.value, r.low, r.high) for r in rows[:2]] == [(10, 5, 10), (1.0, 0.5, 1.0)]
    assert rows[-2].value == 0.5
    assert rows[-1].value > 0.5
    with pytest.raises(ValueError, match="logits differ"):
        rows_of(case, 1, took, {"ggsched": wanted + wanted, PEER: wanted, EXACT: wanted})


def test_a_peer_that_is_missing_is_named_with_the_reason(monkeypatch):
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    assert "llama_cpp" in reason_missing("llama_cpp")
    found = known_peers()
    assert found["llama-cpp-python"].startswith("not measured: ")
    assert found["networkx"][0].isdigit()


def test_without_llama_cpp_there_are_no_rows_of_models(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    assert bench_models.run() == []
    assert "llama-cpp-python is not measured" in capsys.readouterr().err


def test_the_command_refuses_what_it_does_not_know(capsys):
    with pytest.raises(SystemExit) as end:
        command.main(["nothing"])
    assert end.value.code == 2
    assert "no suite 'nothing'" in capsys.readouterr().err
