"""Two logical devices on one GPU: a prompt in micro-batches, one after the other and at once."""

import sys
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from ggsched.ir.dtype import BF16
from ggsched.plan.command import HostSync
from ggsched.sanitize import check_plan
from ggsched_llm.offload import source_name
from ggsched_llm.session import Session, SessionOptions
from tests.support.shapes import SMALL, random_weights, spec_of

DEVICES = ("cuda:0/0", "cuda:0/1")
TOKENS, UBATCH = 512, 64


def run(*, quick: bool) -> dict[str, Any]:
    """Compare the logits and the times; look for waits of the host between micro-batches."""
    spec = spec_of(SMALL, BF16)
    weights = random_weights(spec)
    model: Any = _Model(spec, weights)
    tokens = np.random.default_rng(1).integers(0, SMALL.n_vocab, TOKENS).tolist()
    found: dict[str, Any] = {}
    logits = {}
    for name, devices in (("one device", ("cuda:0",)), ("two logical devices", DEVICES)):
        options = SessionOptions(n_ctx=2 * TOKENS, n_batch=TOKENS, n_ubatch=UBATCH)
        with Session(model, devices, options) as session:
            names = partial(source_name, session.spec)
            session.scheduler._store._weights = lambda name, of=names: weights(of(name))
            logits[name] = session.feed(tokens)
            seconds = []
            for _ in range(5):
                session.reset()
                began = perf_counter()
                session.feed(tokens)
                seconds.append(perf_counter() - began)
            plan: Any = session.last_plan
            found[name] = {
                "seconds": min(seconds),
                "host_syncs_of_the_last_run": sum(isinstance(c, HostSync) for c in plan.commands),
                "commands_of_the_last_run": len(plan.commands),
                "sanitizer": [str(f) for f in check_plan(plan).findings],
            }
    a, b = logits.values()
    difference = float(np.abs(a - b).max() / np.abs(a).max())
    found["difference"] = difference
    sys.stdout.write(f"   {found}\n")
    return {"ok": difference < 1e-4, **found}


class _Model:
    """A model without a file."""

    def __init__(self, spec: Any, weights: Any) -> None:
        self.spec = spec
        self.hparams = spec.hparams
        self.weights = weights
