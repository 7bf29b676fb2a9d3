"""Models where their files are mapped: memory, and files that change. Each in a child process."""

import json
import struct
import subprocess
import sys
import textwrap
from math import prod

import pytest

from ggsched.backend.registry import discover
from tests.models.helpers import F32_CODE, llama_shapes, tiny_gguf, tiny_meta, wide_gguf, write_gguf

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

MIB = 1 << 20
READY = {d.name for s in discover() for d in s.devices if d.state == "ready"}
ON_HOST = [name for name in ("cpu:0", "opencl:0") if name in READY]

MEMORY = """
def memory():
    with open("/proc/self/status") as file:
        rows = (line.split() for line in file if line.startswith(("VmHWM", "Rss")))
        return {row[0].rstrip(":"): int(row[1]) << 10 for row in rows}
"""


def in_child(code, *arguments):
    """Run a program; return its exit code, what it printed as JSON, and its messages."""
    done = subprocess.run(
        [sys.executable, "-c", MEMORY + textwrap.dedent(code), *map(str, arguments)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    return done.returncode, json.loads(done.stdout or "null"), done.stderr


def sparse_llama(path, *, e=4096, ff=14336, layers=32, vocab=64):
    """Write a model of 8B parameters in f16 that takes no space: all weights are a hole."""
    meta = tiny_meta("llama", layers=layers, vocab=vocab)
    meta |= {"llama.embedding_length": e, "llama.feed_forward_length": ff}
    meta |= {f"llama.attention.{n}": e // 128 for n in ("head_count", "head_count_kv")}
    meta |= {f"llama.attention.{n}_length": 128 for n in ("key", "value")}
    meta |= {"llama.rope.dimension_count": 128}
    shapes = llama_shapes(e, ff, layers, vocab)
    head = bytearray(write_gguf(path, meta, {}).read_bytes())
    head[8:16] = struct.pack("<Q", len(shapes))
    end = 24 + sum(len(part) for part in _entries(bytes(head), len(meta)))
    table, offset = b"", 0
    for name, shape in shapes.items():
        code, size = (1, 2) if len(shape) > 1 else (F32_CODE, 4)
        axes = struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1])
        table += struct.pack("<Q", len(name)) + name.encode() + axes
        table += struct.pack("<IQ", code, offset)
        offset += prod(shape) * size
    data = bytes(head[:end]) + table
    data += bytes(-len(data) % 32)
    path.write_bytes(data)
    with path.open("r+b") as file:
        file.truncate(len(data) + offset)
    return path


def _entries(head, count):
    """Return the bytes of the entries of the metadata."""
    from tests.models.gguf_layout import gguf_layout

    layout = gguf_layout(head[:8] + bytes(8) + head[16:])
    assert len(layout.entries) == count
    return layout.entry_bytes()


def test_opening_a_file_of_14_gb_reads_its_header(tmp_path):
    path = sparse_llama(tmp_path / "large.gguf")
    assert path.stat().st_size > 13e9
    code, found, errors = in_child(
        """
        import contextlib, json, sys
        from ggsched_llm.load import load_model
        from ggsched_llm.session import Session, SessionOptions
        with contextlib.suppress(ImportError):
            import llvmlite.binding  # a library is a file of its own
        before = memory()
        model = load_model(sys.argv[1])
        with Session(model, ["cpu:0"], SessionOptions(n_ctx=64)) as session:
            session.plan(8)
            after = memory()
        json.dump([before, after], sys.stdout)
        """,
        path,
    )
    assert code == 0, errors
    before, after = found
    assert after["RssFile"] - before["RssFile"] < 16 * MIB
    assert after["VmHWM"] - before["VmHWM"] < 64 * MIB


@pytest.mark.parametrize("device", ON_HOST)
def test_a_model_takes_its_file_its_arenas_and_150_mb(tmp_path, device):
    """With warm caches of kernels: PoCL's compiler keeps 110 MB of its own.

    Pages of libraries beyond 90 MB are the system's and not counted: Intel's OpenCL maps more.
    """
    path = wide_gguf(tmp_path / "wide.gguf", e=1024, ff=4096, layers=1)
    program = """
        import json, sys
        from ggsched_llm.load import load_model
        from ggsched_llm.session import Session, SessionOptions
        with Session(load_model(sys.argv[1]), [sys.argv[2]], SessionOptions(n_ctx=64)) as session:
            session.feed(list(range(16)))
            list(session.generate([1], 4))
            need = session.memory_need(16, 4)
            arenas = sum(session.scheduler.resident_nbytes("state").values())
            arenas += sum(a.nbytes for a in session.last_plan.memory.arenas if a.kind == "compute")
            libraries, mapped = 0, ""
            for line in open("/proc/self/smaps"):
                words = line.split()
                if not words[0].endswith(":"):
                    mapped = words[-1]
                elif words[0] == "Rss:" and ".so" in mapped:
                    libraries += 1024 * int(words[1])
            json.dump([memory(), arenas, libraries], sys.stdout)
        """
    for _ in range(2):
        code, found, errors = in_child(program, path, device)
        assert code == 0, errors
    used, arenas, libraries = found
    beyond = max(0, libraries - 90e6)
    assert used["VmHWM"] - beyond < path.stat().st_size + arenas + 150e6
    assert used["RssAnon"] < path.stat().st_size, "weights are not copied"


@pytest.mark.parametrize(
    ("device", "when"),
    [
        pytest.param(name, when, marks=() if i == k else pytest.mark.slow)
        for i, name in enumerate(ON_HOST)
        for k, when in enumerate(("before a run", "during a run"))
    ],
)
def test_a_file_that_is_truncated_is_named(tmp_path, device, when):
    """Also where threads that Python never saw read pages that are gone."""
    path = tiny_gguf(tmp_path / "tiny.gguf", vocab=4096)
    code, found, errors = in_child(
        """
        import json, os, sys
        from unittest.mock import patch
        from ggsched.errors import GgschedError
        from ggsched_llm.load import load_model
        from ggsched_llm.session import Session, SessionOptions
        path, device, when = sys.argv[1:]
        with Session(load_model(path), [device], SessionOptions(n_ctx=64)) as session:
            session.feed([1, 2, 3])
            os.truncate(path, 4096)
            store, calls = session.scheduler._store, []
            check = store.require_files
            def late():
                calls.append(1)
                if when == "before a run" or len(calls) > 1:
                    check()
            store.require_files = late
            try:
                session.feed([4000, 1])
            except GgschedError as error:
                json.dump([type(error).__name__, str(error), len(calls)], sys.stdout)
        """,
        path,
        device,
        when,
    )
    assert code == 0, errors
    kind, message, calls = found
    assert (kind, calls) == ("ModelError", 1 if when == "before a run" else 2)
    assert message.startswith(f"{path}: the file was truncated")


def test_the_command_says_which_file_was_truncated(tmp_path):
    path = tiny_gguf(tmp_path / "tiny.gguf")
    code, _, errors = in_child(
        """
        import os, sys
        from unittest.mock import patch
        from ggsched.cli.main import main
        from ggsched.run.executor import Executor
        path, start = sys.argv[1], Executor.start
        def cut(self, *args, **kwargs):
            os.truncate(path, 100)
            return start(self, *args, **kwargs)
        with patch.object(Executor, "start", cut):
            sys.exit(main(["run", path, "--tokens", "1,2", "-n", "2", "--devices", "cpu:0"]))
        """,
        path,
    )
    assert code == 2
    assert "tiny.gguf: the file was truncated" in " ".join(errors.split())
    assert "Traceback" not in errors
