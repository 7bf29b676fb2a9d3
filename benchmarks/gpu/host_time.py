"""What the host does between two decoding steps: ``python -m benchmarks.gpu.host_time``.

Greedy steps of a llama of 8B with random weights, one session on the first device and one that
shares layers over all. Medians in us of the time from one point to the next: the loop of whoever
takes tokens, the session, the scheduler, the executor, its wait for the devices. The tokens of both
sessions are compared; the exit code is 1 where they differ.
"""

import argparse
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from time import perf_counter
from typing import Any, Final
from unittest.mock import patch

import numpy as np

from ggsched.ir.dtype import BF16, dtype_by_name
from ggsched.run.executor import Executor
from ggsched.scheduler import Scheduler
from ggsched_llm.batch_runner import BatchRunner
from ggsched_llm.load import Model
from ggsched_llm.session import Session, SessionOptions
from tests.support.shapes import LLAMA_8B, SMALL, random_weights, spec_of

POINTS: Final = {
    "session": (Session, "_choose_next"),
    "runner": (BatchRunner, "run_and_choose"),
    "scheduler": (Scheduler, "start"),
    "executor": (Executor, "start"),
    "wait": (Executor, "_await"),
}
"""Calls of a step. The scheduler and the executor start the next one where that is done ahead."""


def noted(name: str, call: Callable[..., Any], at: dict[str, float]) -> Callable[..., Any]:
    """Return a call that notes when it begins and ends."""

    def run(*args: Any, **more: Any) -> Any:
        at[f"{name} begins"] = perf_counter()
        try:
            return call(*args, **more)
        finally:
            at[f"{name} ends"] = perf_counter()

    return run


def measure(spec: Any, devices: list[str], count: int, *, is_ahead: bool) -> list[int]:
    """Print medians of the second half of some steps; return the tokens."""
    source, at, rows, tokens = random_weights(spec), dict[str, float](), [], []
    nothing: Any = None
    prompt = np.random.default_rng(1).integers(0, spec.hparams.n_vocab, 8).tolist()
    options = SessionOptions(n_ctx=8 + count, split_mode="tensor" if len(devices) > 1 else "layer")

    def array(_: object, name: str) -> np.ndarray:
        return source(name)

    with (
        patch("ggsched_llm.session.weight_array", array),
        patch("ggsched_llm.sharing.weight_array", array),
        Session(Model(nothing, spec, nothing), devices, options) as session,
        ExitStack() as stack,
    ):
        session.batches.keeps &= is_ahead
        how = "ahead" if session.batches.keeps else "in turn"
        if not session.batches.chooses:
            how = "from logits"
        for name, (owner, method) in POINTS.items():
            call = noted(name, getattr(owner, method), at)
            stack.enter_context(patch.object(owner, method, call))
        last = perf_counter()
        for token in session.generate(prompt, count):
            tokens.append(token)
            at["token"] = perf_counter()
            rows.append({"loop": last, **at})
            last = perf_counter()
    rows = rows[len(rows) // 2 : -1]  # the last one has no step behind it
    points = sorted(rows[-1], key=rows[-1].__getitem__)
    steps = 1e6 * np.median(np.diff([row["token"] for row in rows]))
    sys.stdout.write(f"{', '.join(devices)}, steps {how}: {steps:.1f} us\n")
    host = 0.0
    for a, b in pairwise(points):
        took = 1e6 * float(np.median([row[b] - row[a] for row in rows]))
        host += 0.0 if a == "wait begins" else took
        sys.stdout.write(f"  {a:16} to {b:16} {took:9.1f}\n")
    sys.stdout.write(f"  all but the wait {host:29.1f}\n")
    return tokens


def main() -> int:
    """Measure one device, then all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.host_time", description=__doc__)
    parser.add_argument("--devices", default="cuda:0,cuda:1")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--type", default=BF16.name, help="of the matrices")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--small", action="store_true", help="a small model")
    asked = parser.parse_args()
    shape = replace(SMALL if asked.small else LLAMA_8B, n_layer=asked.layers)
    spec = spec_of(shape, dtype_by_name(asked.type))
    devices = asked.devices.split(",")
    sides = [devices[:1], devices] if len(devices) > 1 else [devices]
    found = [
        measure(spec, side, asked.steps, is_ahead=is_ahead)
        for is_ahead in (False, True)
        for side in sides
    ]
    same = sum(len(set(tokens)) == 1 for tokens in zip(*found, strict=True))
    sys.stdout.write(f"tokens that are the same: {same} of {asked.steps}\n")
    return 0 if same == asked.steps else 1


if __name__ == "__main__":
    sys.exit(main())
