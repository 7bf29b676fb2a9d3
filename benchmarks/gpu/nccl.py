"""Sums over GPUs by NCCL and as launches of a plan: ``python -m benchmarks.gpu.nccl``.

For hidden states of some rows, f32: an all-reduce of NCCL from one process (PyTorch's
``torch.cuda.nccl``), enqueued many times in a row, and a link of a chain of plans, in which each
GPU scales what it has and adds up what all have (``benchmarks.gpu.tensor``). One line of JSON.
"""

import argparse
import json
import sys
from time import perf_counter
from typing import Any, Final

from benchmarks.gpu.tensor import HIDDEN, exchange

ROWS: Final = (1, 4, 32, 128, 512, 2048)
TIMES: Final = 200


def all_reduce_us(gpus: int, rows: int) -> float:
    """Return what NCCL takes for each of many all-reduces in a row, in us."""
    import torch

    nccl: Any = torch.cuda.nccl
    held = [torch.ones((rows, HIDDEN), device=f"cuda:{i}") for i in range(gpus)]
    sums = [torch.empty_like(h) for h in held]

    def run(times: int) -> float:
        for i in range(gpus):
            torch.cuda.synchronize(i)
        began = perf_counter()
        for _ in range(times):
            nccl.all_reduce(held, sums)
        for i in range(gpus):
            torch.cuda.synchronize(i)
        return perf_counter() - began

    run(20)
    return min(run(TIMES) for _ in range(3)) / TIMES * 1e6


def main() -> int:
    """Measure all sizes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.nccl", description=__doc__)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--rows", type=int, nargs="*", default=ROWS)
    asked = parser.parse_args()
    devices, found = [f"cuda:{i}" for i in range(asked.gpus)], []
    for rows in asked.rows:
        ours = exchange(devices, rows=rows)
        case = {"rows": rows, "nccl_us": all_reduce_us(asked.gpus, rows)}
        found.append(case | {k: ours[k] for k in ("nbytes", "link_us", "alone_us")})
        sys.stderr.write(f"{found[-1]}\n")
    sys.stdout.write(json.dumps({"gpus": asked.gpus, "cases": found}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
