"""Prefill and decoding of model files beside llama-bench, on any devices, by both command lines.

    python -m benchmarks.llama_table FILE ... --llama-bench PATH -p 512,4096 -n 32 -d 0,4096
        --ours "--devices cuda:0 --activations auto" --ours "--devices cuda:0 --activations f32"
        --theirs "-ngl 99 -fa 1"

For each file a row for each test and each variant of ours: the best rate of both sides, and ours
over llama.cpp's. Rows are printed as they come: a run that is cut short keeps what it found.
"""

import argparse
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.llama_cpp.rates import best_rates

PATIENCE_S = 240.0


def main() -> int:
    """Measure what the command line requests."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.llama_table", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--llama-bench", help="the program; without it only ours is measured")
    parser.add_argument("-p", "--prompts", default="512")
    parser.add_argument("-n", "--tokens", default="32")
    parser.add_argument("-d", "--depths", default="0")
    parser.add_argument("-r", "--repetitions", type=int, default=3)
    parser.add_argument("--ours", action="append", help="flags of ggsched bench; once a variant")
    parser.add_argument("--theirs", default="-ngl 99 -fa 1", help="flags of llama-bench")
    parser.add_argument("-o", "--output", type=Path, help="append each row as a line of JSON")
    given = parser.parse_args()
    sizes = ["-p", given.prompts, "-n", given.tokens, "-d", given.depths]
    sizes += ["-r", str(given.repetitions), "-o", "json"]
    for file in given.files:
        theirs: dict[str, float] = {}
        if given.llama_bench:
            flags = shlex.split(given.theirs)
            theirs = _rates([given.llama_bench, "-m", str(file), *flags, *sizes], "llama-bench")
        for variant in given.ours or [""]:
            command = [sys.executable, "-m", "ggsched", "bench", str(file), *shlex.split(variant)]
            for test, rate in _rates([*command, *sizes], f"ggsched bench {variant}").items():
                row = {
                    "file": file.name,
                    "test": test,
                    "variant": variant,
                    "tokens_per_s": round(rate, 2),
                }
                row |= {"llama_cpp": theirs.get(test), "ratio": _ratio(rate, theirs.get(test))}
                _log_row(row, given.output)
    return 0


def _rates(command: list[str], who: str) -> dict[str, float]:
    """Run a program that writes llama-bench's JSON; return the best rate of each test."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=PATIENCE_S
        )
    except subprocess.TimeoutExpired:
        sys.stdout.write(f"{who}: no result in {PATIENCE_S:.0f} s\n")
        return {}
    if done.returncode:
        sys.stdout.write(f"{who}: exit code {done.returncode}: {done.stderr[-400:]}\n")
        return {}
    return best_rates(done.stdout)


def _ratio(ours: float, theirs: float | None) -> float | None:
    return round(ours / theirs, 3) if theirs else None


def _log_row(row: dict[str, Any], output: Path | None) -> None:
    sys.stdout.write(
        f"{row['file']:24} {row['test']:16} {row['tokens_per_s']:10.1f} / "
        f"{row['llama_cpp'] or 0:10.1f} = {row['ratio'] or 0:5.2f}  {row['variant']}\n"
    )
    sys.stdout.flush()
    if output:
        with output.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    sys.exit(main())
