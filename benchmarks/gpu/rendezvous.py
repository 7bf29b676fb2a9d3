"""Two sessions at once whose kernels meet: ``python -m benchmarks.gpu.rendezvous``, on two GPUs.

Replays of one must not wait for those of the other in a circle, and both sessions have to make the
tokens that one makes alone. The exit code is 1 where they do not.
"""

import sys
import threading
from dataclasses import replace
from time import perf_counter
from typing import Final

import numpy as np

from benchmarks.gpu.running import model_of
from ggsched.ir.dtype import BF16
from ggsched_llm.session import Session, SessionOptions
from tests.support.shapes import LLAMA_1B, random_weights, spec_of

TOKENS: Final = 200


def main() -> int:
    """Run one alone, then two at once."""
    spec = spec_of(replace(LLAMA_1B, n_layer=4), BF16)
    options = SessionOptions(n_ctx=512, split_mode="tensor")
    prompt = np.random.default_rng(1).integers(0, spec.hparams.n_vocab, 8).tolist()

    made: dict[str, list[int]] = {}

    def run(name: str, session: Session) -> None:
        made[name] = [int(token) for token in session.generate(prompt, TOKENS)]

    devices = ["cuda:0", "cuda:1"]
    with (
        model_of(spec, random_weights(spec)) as loaded,
        Session(loaded, devices, options) as one,
        Session(loaded, devices, options) as other,
    ):
        run("alone", one)
        one.reset()
        began = perf_counter()
        threads = [
            threading.Thread(target=run, args=(name, session))
            for name, session in (("one", one), ("other", other))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = perf_counter() - began
    same = made["alone"] == made["one"] == made["other"]
    sys.stdout.write(f"{TOKENS} tokens each in {seconds:.2f} s, the same: {same}\n")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
