"""Decoding and prefill on the CPU against llama-bench: same file, same machine, in turn.

    LLAMA_BENCH=path/to/llama-bench python -m benchmarks llama
    python -m benchmarks.bench_llama --llama-bench PATH --models 110m,1b,moe --threads 1,2,16

Values are ratios of tokens per second, ours over llama.cpp's, each the best of some rounds. Models
are written to a folder (``--folder``) and kept there.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.llama_cpp.models import MODELS, write_model
from benchmarks.llama_cpp.rates import best_rates
from benchmarks.measure import ratio
from benchmarks.table import Row, machine, render

VARIABLE = "LLAMA_BENCH"
TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0")
BOUNDS = {"tg": ">= 1.0", "pp": ">= 0.8"}


@dataclass(frozen=True, slots=True)
class Case:
    """What is measured.

    Attributes:
        model: Name of the model.
        dtype: Type of its matrices.
        threads: On both sides.
    """

    model: str
    dtype: str
    threads: int


@dataclass(frozen=True, slots=True)
class Options:
    """How it is measured.

    Attributes:
        llama_bench: The program.
        folder: Where models are kept.
        prompts: Lengths of prompts.
        tokens: Tokens to decode.
        rounds: How often the two sides take turns.
    """

    llama_bench: str
    folder: Path
    prompts: tuple[int, ...] = (128, 512)
    tokens: int = 32
    rounds: int = 3


def run() -> list[Row]:
    """Measure the small models on one and two threads."""
    program = os.environ.get(VARIABLE, "") or shutil.which("llama-bench")
    if not program:
        sys.stderr.write(f"left out: set {VARIABLE} to the path of llama-bench\n")
        return []
    cases = [
        *(Case("110m", dtype, threads) for dtype in TYPES for threads in (1, 2)),
        *(Case("moe", "mxfp4", threads) for threads in (1, 2)),
    ]
    with tempfile.TemporaryDirectory() as folder:
        return list(measure(cases, Options(program, Path(folder))))


def measure(cases: Sequence[Case], options: Options) -> Iterator[Row]:
    """Yield a row for each case and each length of a prompt, and one for decoding."""
    for case in cases:
        path = write_model(options.folder, case.model, case.dtype)
        ours: dict[str, list[float]] = {}
        theirs: dict[str, list[float]] = {}
        for _ in range(options.rounds):
            for found, into in (
                (_ours(path, case, options), ours),
                (_theirs(path, case, options), theirs),
            ):
                for test, rate in found.items():
                    into.setdefault(test, []).append(rate)
        for test, rates in ours.items():
            _, low, high = ratio(rates, theirs[test])
            best = max(rates) / max(theirs[test])
            what = f"{case.model} {case.dtype} {test}, {case.threads} threads"
            figures = f"{max(rates):.0f} / {max(theirs[test]):.0f} tokens/s"
            yield Row("llama", f"{what}: {figures}", best, low, high, bound=BOUNDS[test[:2]])


def _ours(path: Path, case: Case, options: Options) -> dict[str, float]:
    command = [
        sys.executable, "-m", "benchmarks.llama_cpp.side", str(path),
        "--threads", str(case.threads), "--tokens", str(options.tokens),
        "--prompts", ",".join(map(str, options.prompts)),
    ]  # fmt: skip
    found: dict[str, float] = json.loads(_output(command))
    return found


def _theirs(path: Path, case: Case, options: Options) -> dict[str, float]:
    command = [
        options.llama_bench, "-m", str(path), "-t", str(case.threads), "-ngl", "0", "-fa", "1",
        "-n", str(options.tokens), "-r", "3", "-o", "json",
        "-p", ",".join(map(str, options.prompts)) or "0",
    ]  # fmt: skip
    return best_rates(_output(command))


def _output(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return done.stdout


def main() -> int:
    """Measure what the command line requests."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_llama", description=__doc__)
    parser.add_argument("--llama-bench", default=os.environ.get(VARIABLE, "llama-bench"))
    parser.add_argument("--models", default="110m,1b,moe", help=f"of {', '.join(MODELS)}")
    parser.add_argument("--types", default=",".join(TYPES), help="of dense models")
    parser.add_argument("--experts", default="mxfp4", help="types of experts of moe")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--prompts", default="128,512")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    given = parser.parse_args()
    if shutil.which(given.llama_bench) is None:
        sys.stderr.write(f"no program {given.llama_bench!r}: name it with --llama-bench\n")
        return 0
    cases = [
        Case(model, dtype, int(threads))
        for model in given.models.split(",")
        for dtype in (given.experts if model == "moe" else given.types).split(",")
        for threads in given.threads.split(",")
    ]
    prompts = tuple(int(n) for n in given.prompts.split(",") if n)
    options = Options(given.llama_bench, given.folder, prompts, given.tokens, given.rounds)
    given.folder.mkdir(parents=True, exist_ok=True)
    sys.stdout.write("\n".join(f"  {k}: {v}" for k, v in machine().items()) + "\n\n")
    rows = []
    for row in measure(cases, options):
        sys.stderr.write(f"{row.what}: {row.value:.2f}\n")
        rows.append(row)
    sys.stdout.write(render(rows) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
