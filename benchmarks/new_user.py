"""The first run of a new user: ``ggsched run FILE -p TEXT``, its memory beside the file, its time.

    python -m benchmarks.new_user                     all families, one file after the other
    python -m benchmarks.new_user phi3-mini gemma2-9b --whole --folder /tmp

Each file has the model's real width and vocabulary, random blocks as llama.cpp mixes them for
q4_k_m, and the first blocks of the model only unless the whole is requested. The run gets no other
flag, and caches of a user who never ran anything. Peak memory is the largest resident set, where
the pages of the mapped file that were looked at are counted; ``own`` is what of it is no file's.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.expert_files import write_model
from benchmarks.model_shapes import SHAPES

BLOCKS: Final[Mapping[str, int]] = {
    "llama-8b": 8,
    "mixtral-8x7b": 2,
    "qwen2-7b": 7,
    "qwen3-8b": 8,
    "qwen2moe-a2.7b": 4,
    "qwen3-30b": 4,
    "gemma2-9b": 18,
    "gemma3-12b": 14,
    "phi3-mini": 24,
    "deepseek2-lite": 6,
    "qwen3next-80b": 2,
    "qwen35moe-35b": 3,
    "mamba2-7b": 34,
    "gpt-oss-20b": 2,
}
"""Blocks of each file, with which it has 1.5 to 2.5 GB."""

ALLOWED: Final = 1.1
"""Peak memory over the bytes of the file."""

_PROMPT: Final = "hello world, what is the weather like today?"
_TOKENS: Final = 8
_EVERY_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class FirstRun:
    """What a run took.

    Attributes:
        file_nbytes: Of the model.
        peak_nbytes: Largest resident set.
        own_nbytes: Most that was resident of no file; looked at every hundredth of a second.
        seconds: From the start of the program to its end.
        is_ok: Whether it ended well and wrote text.
    """

    file_nbytes: int
    peak_nbytes: int
    own_nbytes: int
    seconds: float
    is_ok: bool

    @property
    def ratio(self) -> float:
        """Peak memory over the bytes of the file."""
        return self.peak_nbytes / self.file_nbytes


def first_run(file: Path, *more: str) -> FirstRun:
    """Run a model as a user does who never ran one; further options after the usual ones."""
    command = [sys.executable, "-m", "ggsched", "run", str(file), "-p", _PROMPT]
    with tempfile.TemporaryDirectory() as home, tempfile.TemporaryFile() as out:
        environment = {**os.environ, "XDG_CACHE_HOME": home}
        began = time.perf_counter()
        child = subprocess.Popen(
            [*command, "-n", str(_TOKENS), *more],
            env=environment,
            stdout=out,
            stdin=subprocess.DEVNULL,
        )
        own = 0
        while True:
            own = max(own, _own_nbytes(child.pid))
            pid, status, usage = os.wait4(child.pid, os.WNOHANG)
            if pid:
                break
            time.sleep(_EVERY_S)
        seconds = time.perf_counter() - began
        child.returncode = os.waitstatus_to_exitcode(status)
        is_ok = child.returncode == 0 and out.tell() > 0
    size = file.stat().st_size
    return FirstRun(size, usage.ru_maxrss * 1024, own, seconds, is_ok)


def _own_nbytes(pid: int) -> int:
    """Return what a process has resident that is no file's; 0 once it has ended."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    kib = [int(line.split()[1]) for line in lines if line.startswith(("RssAnon:", "RssShmem:"))]
    return sum(kib) * 1024


def main() -> int:
    """Measure the families that the command line names; 1 if one fails or takes too much."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.new_user", description=__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--whole", action="store_true", help="all blocks of a model, not a few")
    parser.add_argument("--folder", type=Path, help="for the files, which are deleted again")
    options = parser.parse_args()
    unknown = set(options.models) - set(SHAPES)
    if unknown:
        parser.error(f"no model {min(unknown)!r}; there are {', '.join(SHAPES)}")
    sys.stdout.write(
        "| model | architecture | blocks | file, GB | peak, GB | peak / file | own, MB | s |\n"
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n"
    )
    is_ok = True
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for name in options.models or BLOCKS:
            file = Path(folder) / f"{name}.gguf"
            blocks = int(SHAPES[name].keys["block_count"])  # type: ignore[arg-type]
            if not options.whole:
                blocks = BLOCKS.get(name, blocks)
            write_model(file, name, "q4_k_m", blocks, vocabulary=True)
            found = first_run(file)
            file.unlink()
            is_ok &= found.is_ok and found.ratio <= ALLOWED
            sys.stdout.write(
                f"| {name} | {SHAPES[name].arch} | {blocks} | {found.file_nbytes / 1e9:.2f} "
                f"| {found.peak_nbytes / 1e9:.2f} | {found.ratio:.2f} "
                f"| {found.own_nbytes / 1e6:.0f} | {found.seconds:.0f} |"
                f"{'' if found.is_ok else ' failed'}\n"
            )
            sys.stdout.flush()
    return 0 if is_ok else 1


if __name__ == "__main__":
    sys.exit(main())
