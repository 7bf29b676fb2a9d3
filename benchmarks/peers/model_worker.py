"""One side of the comparison of models, in a process of its own, pinned to its cores.

Run by ``bench_models``. Reads a line and answers with a line of JSON: ``round`` runs the prompt and
the decoding steps once and gives ``{"prefill_s": s, "decode_s": s}``; ``logits FILE`` does the same
and writes the logits of the prompt's last token and of each step; ``quit`` ends it. An error ends
it with a message on stderr.
"""

import argparse
import json
import os
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.model_sides import Side, open_side


def main() -> int:
    """Answer requests until one says quit or the input ends."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.model_worker")
    parser.add_argument("side")
    parser.add_argument("model", type=Path)
    for name in ("threads", "ctx", "vocab", "prompt", "decode"):
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[: options.threads])
    rng = np.random.default_rng(7)
    prompt = rng.integers(0, options.vocab, options.prompt, dtype=np.int32)
    steps = rng.integers(0, options.vocab, (options.decode, 1), dtype=np.int32)
    side = open_side(options.side, options.model, options.threads, options.ctx)
    with closing(side):
        _answer({"ready": True})
        for line in sys.stdin:
            verb, _, file = line.strip().partition(" ")
            if verb == "quit":
                break
            times, logits = feed_all(side, prompt, steps)
            if verb == "logits":
                np.save(file, logits)
            _answer(times)
    return 0


def feed_all(
    side: Side, prompt: np.ndarray, steps: np.ndarray
) -> tuple[dict[str, float], np.ndarray]:
    """Feed a prompt and then given tokens one by one; return seconds, and logits of all of them."""
    side.reset()
    rows = []
    began = time.perf_counter()
    rows.append(side.feed(prompt))
    prefilled = time.perf_counter()
    for step in steps:
        rows.append(side.feed(step))  # noqa: PERF401
    ended = time.perf_counter()
    times = {"prefill_s": prefilled - began, "decode_s": ended - prefilled}
    return times, np.stack(rows)


def _answer(data: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(data) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
