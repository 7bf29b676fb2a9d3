"""Opening a model on the CPU: resident memory, and time against that of reading its pages.

    python -m benchmarks load
    python -m benchmarks.bench_load FILE ...

Every measurement is a process of its own that finds the file on disk and not in memory (Linux;
files in a memory file system are there already). Memory is the highest there was, less the file
and the plan's arenas; the model decodes four tokens. Opening ends before the first weight is read.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.llama_cpp.models import write_model
from benchmarks.measure import ratio
from benchmarks.table import Row, render

ROUNDS = 3

READING = """
import mmap, sys, time
import numpy as np
began = time.perf_counter()
data = np.memmap(sys.argv[1], np.uint8, "r")
data._mmap.madvise(mmap.MADV_WILLNEED)
checked = int(data[: data.size // 8 * 8].view(np.uint64).max())
print(time.perf_counter() - began)
"""

OPENING = """
import json, sys, time
began = time.perf_counter()
from ggsched_llm.load import load_model
from ggsched_llm.session import Session, SessionOptions
with Session(load_model(sys.argv[1]), ["cpu:0"], SessionOptions(n_ctx=64)) as session:
    session.plan(1)
    opened = time.perf_counter()
    steps = session.generate([1], 4)
    next(steps)
    first = time.perf_counter()
    list(steps)
    arenas = sum(session.scheduler.resident_nbytes("state").values())
    arenas += sum(a.nbytes for a in session.last_plan.memory.arenas if a.kind == "compute")
with open("/proc/self/status") as file:
    high = next(int(line.split()[1]) << 10 for line in file if line.startswith("VmHWM"))
print(json.dumps([opened - began, first - began, high, arenas]))
"""


def run() -> list[Row]:
    """Measure a small model."""
    with tempfile.TemporaryDirectory() as folder:
        return measure([write_model(Path(folder), "110m", "q8_0")])


def measure(files: Sequence[Path]) -> list[Row]:
    """Return three rows for each file."""
    if sys.platform != "linux":
        return []
    rows = []
    for file in files:
        reading, opening, first, beside = [], [], [], []
        for _ in range(ROUNDS):
            reading.append(float(_child(READING, file)))
            opened_s, first_s, high, arenas = json.loads(_child(OPENING, file))
            opening.append(opened_s)
            first.append(first_s)
            beside.append((high - arenas - file.stat().st_size) / 1e6)
        what = f"{file.name}, {file.stat().st_size / 1e9:.2f} GB"
        memory = sorted(beside)
        rows.append(
            Row("load", f"{what}: memory beside file and arenas", memory[-1], memory[0],
                memory[-1], "MB", "<= 150")
        )  # fmt: skip
        each = f"{min(opening):.2f} / {min(reading):.2f} s"
        rows.append(Row("load", f"{what}: opening / reading: {each}", *ratio(opening, reading)))
        each = f"{min(first):.2f} / {min(reading):.2f} s"
        rows.append(Row("load", f"{what}: first token / reading: {each}", *ratio(first, reading)))
    return rows


def _child(program: str, file: Path) -> str:
    with file.open("rb") as handle:
        os.fsync(handle.fileno())
        os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    command = [sys.executable, "-c", program, str(file)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    sys.stdout.write(render(measure([Path(name) for name in sys.argv[1:]])) + "\n")
