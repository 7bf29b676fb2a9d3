"""Thousands of damaged files: each ends in one clear line, in bounded time and memory."""

import os
import re
import resource
import subprocess
import sys
import time
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from ggsched.errors import ModelError
from ggsched_llm.graph import build_model_graph
from ggsched_llm.load import load_model, weight_array
from tests.models.gguf_layout import string_bytes
from tests.models.gguf_mutants import Mutant, gguf_mutants
from tests.models.helpers import ORACLE, tiny_gguf
from tests.models.reference_models import write_reference
from tests.models.vocabularies import BPE_META, SPM_META

MAX_SECONDS = 5.0  # of the processor; a mutant takes milliseconds
MAX_NBYTES = 50_000_000


def use(path, policy):
    """Do everything that a user does with a model short of running it."""
    model = load_model(path, weights=policy)
    build_model_graph(model.spec, n_tokens=2, n_kv=32, n_out=1, n_ctx=64)
    for name, spec in model.spec.weights.items():
        assert weight_array(model, name).nbytes == _nbytes(spec)
    if model.tokenizer.has_text:
        ids = model.tokenizer.encode("12+3=")
        model.tokenizer.decode(ids)
        assert model.tokenizer.stop_ids is not None


def _nbytes(spec):
    n = spec.dtype.row_nbytes(spec.shape[-1])
    for extent in spec.shape[:-1]:
        n *= extent
    return n


def refusal(path, mutant, policy):
    """Return the error with which a mutant is refused, or None."""
    try:
        use(path, policy)
    except ModelError as error:
        return error
    except Exception as error:
        pytest.fail(f"{mutant.name}: {error!r}")
    return None


def check(path, mutant, policy):
    """Return whether the mutant was refused."""
    path.write_bytes(mutant.data)
    allow(MAX_NBYTES)
    started = time.process_time()
    error = refusal(path, mutant, policy)
    assert time.process_time() - started < MAX_SECONDS, mutant.name
    if error is not None:
        text = str(error)
        assert text.startswith(str(path)), mutant.name
        assert text.isprintable(), mutant.name  # so it is one line, and harmless to a terminal
        assert len(text) < len(str(path)) + 400, mutant.name
        assert error.hint or error.why, mutant.name
    if mutant.expect != "either":
        assert (error is not None) == (mutant.expect == "error"), mutant.name
    return error is not None


def check_all(path, mutants):
    """Check mutants and return how many there were and how many of them were refused."""
    tally = Counter()
    for i, mutant in enumerate(mutants):
        tally[check(path, mutant, ("expand", "packed")[i % 2])] += 1
    return tally.total(), tally[True]


def allow(nbytes):
    """Let this process map only so much more than it has: whoever wants more fails."""
    if sys.platform == "linux":
        now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + nbytes, resource.RLIM_INFINITY))


def in_child(work, folder):
    """Do ``work(folder)`` of this file where memory is bounded: what is free already would hide
    what is taken, and to note each allocation takes four times as long as all else."""
    code = f"from tests.models import test_bad_files as t; t.{work}(t.Path({str(folder)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, timeout=1800, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "MALLOC_ARENA_MAX": "1"},  # others are mapped before they are used
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def sources(tmp_path):
    """Healthy files whose headers hold, together, every kind of field that the reader knows."""
    small = tmp_path / "healthy.gguf"
    yield "q8_0", (ORACLE / "llama-tiny-q8_0.gguf").read_bytes()
    yield "gpt-oss", tiny_gguf(small, "gpt-oss").read_bytes()
    yield "qwen3moe", tiny_gguf(small, "qwen3moe").read_bytes()
    for name in ("qwen3next-f32", "mamba2-f32"):
        yield name, write_reference(small, name).read_bytes()
    for kind, meta in (("bpe", BPE_META), ("spm", SPM_META)):
        vocab = len(meta["tokenizer.ggml.tokens"])
        data = tiny_gguf(small, "llama", meta=meta, vocab=vocab).read_bytes()
        yield kind, data


# With vocabularies most fields are elements of arrays, all alike.
STEPS = {
    "q8_0": 7,
    "gpt-oss": 9,
    "qwen3moe": 9,
    "qwen3next-f32": 89,
    "mamba2-f32": 41,
    "bpe": 53,
    "spm": 131,
}


def some_mutants(folder):
    total = refused = 0
    for kind, data in sources(folder):
        n, bad = check_all(folder / "mutant.gguf", islice(gguf_mutants(data), 0, None, STEPS[kind]))
        total, refused = total + n, refused + bad
        assert bad > 0.8 * n, kind
    assert refused > 900
    assert total > 1300


def all_mutants(folder):
    for kind, data in sources(folder):
        step = 10 if kind == "spm" else 1
        mutants = islice(gguf_mutants(data, flips=3000, seed=1), 0, None, step)
        check_all(folder / "mutant.gguf", mutants)


def a_greedy_reader(folder):
    """Many small pieces are as much as a large one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{__name__}.load_model", lambda *a, **k: [bytes(99) for _ in range(400_000)])
        with pytest.raises(pytest.fail.Exception, match="MemoryError"):
            check(folder / "mutant.gguf", Mutant("any", b""), "packed")


def test_mutants_end_in_one_line(tmp_path):
    in_child("some_mutants", tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_reader_that_takes_too_much_is_noticed(tmp_path):
    in_child("a_greedy_reader", tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_mutants(tmp_path):
    in_child("all_mutants", tmp_path)


def test_mutants_are_the_same_in_every_run():
    data = (ORACLE / "llama-tiny-q8_0.gguf").read_bytes()
    names = [m.name for m in gguf_mutants(data)]
    assert names == [m.name for m in gguf_mutants(data)]
    assert len(set(names)) > 0.97 * len(names)


def test_paths_that_are_no_files(tmp_path):
    for path, word in ((tmp_path, "directory"), (tmp_path / "none.gguf", "No such file")):
        with pytest.raises(ModelError, match=word):
            load_model(path)
    with pytest.raises(ModelError, match="not a regular file"):
        load_model("/dev/zero")
    with pytest.raises(ModelError, match="cannot read"):
        load_model("a\0b")


def test_pipe_does_not_wait_for_a_writer(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ModelError, match="not a regular file"):
        load_model(pipe)


def test_unreadable_file(tmp_path):
    path = tiny_gguf(tmp_path / "m.gguf")
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
    with pytest.raises(ModelError, match="Permission denied"):
        load_model(path)


@pytest.mark.parametrize("arch", ["llama", "qwen3moe", "gpt-oss"])
def test_each_weight_is_asked_for_by_name(tmp_path, arch):
    path = tmp_path / "m.gguf"
    whole = load_model(tiny_gguf(path, arch))
    for name in whole.spec.weights:
        # A hole in the data would be found first, so the tensor is renamed.
        old = string_bytes(name.encode())
        data = tiny_gguf(path, arch).read_bytes()
        assert data.count(old) == 1
        path.write_bytes(data.replace(old, old[:-1] + b"_"))
        # The embedding could take the place of the output matrix, so its new name is refused.
        wanted = "output.weigh_' is not used" if name == "output.weight" else name
        with pytest.raises(ModelError, match=re.escape(wanted)):
            load_model(path)


def test_a_bias_that_other_blocks_have_is_missed(tmp_path):
    """The architecture does without biases; a model that has them does not."""
    data = write_reference(tmp_path / "m.gguf", "qwen2-q8_0").read_bytes()
    old = string_bytes(b"blk.1.attn_k.bias")
    assert data.count(old) == 1
    (tmp_path / "m.gguf").write_bytes(data.replace(old, old[:-1] + b"_"))
    with pytest.raises(ModelError, match=r"'blk\.1\.attn_k\.bias'.*'blk\.0\.attn_k\.bias'"):
        load_model(tmp_path / "m.gguf")
