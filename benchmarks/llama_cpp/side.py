"""Our side: a process per model and threads; prints JSON with the best of some rounds."""

import argparse
import json
import sys
import time

import numpy as np

from ggsched.config import Settings
from ggsched_llm.load import load_model
from ggsched_llm.session import Session, SessionOptions


def main() -> None:
    """Measure prompts of some lengths, and decoding."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--prompts", default="")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    prompts = [int(n) for n in options.prompts.split(",") if n]
    model = load_model(options.model, weights="packed")
    longest = max([*prompts, 1]) + options.tokens + 16
    settings = Settings.from_environment(threads=options.threads)
    rng = np.random.default_rng(7)
    rates = {}
    sizes = SessionOptions(n_ctx=longest, n_ubatch=512)
    with Session(model, ["cpu:0"], sizes, settings=settings) as session:
        for count in prompts:
            times = []
            for _ in range(options.rounds + 1):
                tokens = rng.integers(0, model.hparams.n_vocab, count).tolist()
                session.reset()
                began = time.perf_counter()
                session.feed(tokens)
                times.append(time.perf_counter() - began)
            rates[f"pp{count}"] = count / min(times[1:])
        steps = []
        for _ in range(options.rounds + 1):
            session.reset()
            ends = [time.perf_counter() for _ in session.generate([1], options.tokens)]
            steps.append((ends[-1] - ends[0]) / (len(ends) - 1))
        rates[f"tg{options.tokens}"] = 1 / min(steps[1:])
    sys.stdout.write(json.dumps(rates) + "\n")


if __name__ == "__main__":
    main()
