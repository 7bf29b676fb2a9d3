"""Prefill and decoding of a model file by depth: how rates fall as the cache fills. JSON lines.

    python -m benchmarks.depth FILE --devices cuda:0 -p 512,4096,16384 -d 0,4096,16384,65536 -n 32

Rates of prefill are the best of several rounds in one batch; decoding is the median step behind so
many tokens. The cache at a depth holds zeros: time does not depend on what is in it, and filling it
would take longer than what is measured. Beside ``llama-bench -p ... -n 32 -d ... -fa 1``.
"""

import argparse
import json
import sys
from time import perf_counter
from typing import Any

import numpy as np

from ggsched.models.load import load_model
from ggsched.models.session import Session, SessionOptions


def main() -> None:
    """Measure what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.depth", description=__doc__)
    parser.add_argument("file")
    parser.add_argument("--devices", default="cuda:0")
    parser.add_argument("-p", "--prompts", default="512,4096,16384")
    parser.add_argument("-d", "--depths", default="0,4096,16384,65536")
    parser.add_argument("-n", "--predict", type=int, default=32)
    parser.add_argument("-r", "--rounds", type=int, default=3)
    parser.add_argument("-ub", "--ubatch", type=int, default=512)
    parser.add_argument("-ctk", "--cache-type", default="auto")
    options = parser.parse_args()
    prompts, depths = ([int(n) for n in text.split(",") if n] for text in
                       (options.prompts, options.depths))  # fmt: skip
    n_ctx = max([*prompts, *(d + options.predict + 8 for d in depths)])
    sizes = SessionOptions(
        n_ctx=n_ctx, n_batch=max(2048, *prompts), n_ubatch=options.ubatch,
        cache_type=options.cache_type,
    )  # fmt: skip
    model = load_model(options.file)
    tokens = np.random.default_rng(1).integers(0, model.hparams.n_vocab, n_ctx).tolist()
    with Session(model, options.devices.split(","), sizes) as session:
        for n in prompts:
            _say(what=f"pp{n}", **_prefill(session, tokens[:n], options.rounds))
        for depth in depths:
            _say(what=f"tg{options.predict} @ {depth}", **_decode(session, depth, options.predict))


def _say(**found: Any) -> None:
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


def _prefill(session: Session, tokens: list[int], rounds: int) -> dict[str, Any]:
    seconds = []
    for _ in range(rounds + 1):
        session.reset()
        began = perf_counter()
        session.feed(tokens)
        seconds.append(perf_counter() - began)
    rates = [round(len(tokens) / s, 1) for s in seconds]
    return {"tokens_per_s": max(rates), "rounds": rates}


def _decode(session: Session, depth: int, n: int) -> dict[str, Any]:
    session.reset()
    session.batches.run(np.ones(1, np.int32), depth, all_logits=False, copy=False)
    session._n_past = depth
    times = []
    for _ in range(n + 4):
        began = perf_counter()
        session.feed([1])
        times.append(perf_counter() - began)
    return {
        "tokens_per_s": round(1 / float(np.median(times[4:])), 2),
        "first_steps_ms": [round(1e3 * t, 1) for t in times[:4]],
    }


if __name__ == "__main__":
    main()
