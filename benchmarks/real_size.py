"""A model file on devices: where the first step goes, prefill and decoding, memory. One JSON line.

    python -m benchmarks.real_size FILE --devices cuda:0,cpu:0 -ngl 9 -p 512 -n 32
    python -m benchmarks.real_size FILE --devices cuda:0,cpu:0 --n-cpu-moe 12 --op-offload auto

The first step is split into what it is made of: opening, the plan, loading weights (and their
bytes per second), compiling, and the first and the second run, of which the latter captures. Rates
are the best of several rounds, as those of llama-bench beside which they are read.
"""

import argparse
import json
import resource
import sys
from collections import Counter
from collections.abc import Callable
from time import perf_counter
from typing import Any
from unittest.mock import patch

import numpy as np

from ggsched.models.load import load_model
from ggsched.models.offload import Offload
from ggsched.models.session import Session, SessionOptions
from ggsched.passes.experts.policy import ExpertPolicy
from ggsched.run.resources import Resources


def main() -> None:
    """Measure what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.real_size", description=__doc__)
    parser.add_argument("file")
    parser.add_argument("--devices", help="names; those that are chosen by default if not given")
    parser.add_argument("-p", "--prompt", type=int, default=512)
    parser.add_argument("-n", "--predict", type=int, default=32)
    parser.add_argument("-r", "--rounds", type=int, default=3)
    parser.add_argument("-ngl", "--gpu-layers", type=int, default=None)
    parser.add_argument("--n-cpu-moe", type=int, default=0)
    parser.add_argument("--op-offload", choices=("auto", "on", "off"), default="auto")
    parser.add_argument("--weights", choices=("packed", "expand"), default="packed")
    options = parser.parse_args()
    sys.stdout.write(json.dumps(measured(options)) + "\n")


def measured(options: Any) -> dict[str, Any]:
    """Return what was found."""
    began = perf_counter()
    model = load_model(options.file, weights=options.weights)
    offload = Offload(
        n_gpu_layers=options.gpu_layers,
        n_cpu_moe=options.n_cpu_moe,
        experts=ExpertPolicy(options.op_offload, 2),
    )
    sizes = SessionOptions(
        n_ctx=options.prompt + options.predict + 16, n_ubatch=options.prompt, offload=offload
    )
    devices = options.devices.split(",") if options.devices else None
    with Session(model, devices, sizes) as session:
        found: dict[str, Any] = {
            "file": options.file,
            "devices": [d.name for d in session.scheduler.topology.devices],
            "rates": session.rates.source,
        }
        rng = np.random.default_rng(1)
        tokens = rng.integers(0, model.hparams.n_vocab, options.prompt).tolist()
        found["first_step"] = _first_step(session, tokens, perf_counter() - began)
        found["pp_tps"], found["pp_plan"] = _prefill(session, tokens, options.rounds)
        if options.predict > 1:
            found["tg_tps"], found["tg_plan"] = _decode(session, options)
        resident = session.scheduler.resident_nbytes("weight")
        found["weights_nbytes"] = resident
        total = session.scheduler.expert_ledger.total
        found["copied_weights_nbytes"] = total.uploaded_nbytes + total.layer_nbytes
    found["peak_rss_nbytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return found


def _first_step(session: Session, tokens: list[int], opening_s: float) -> dict[str, float]:
    """Run a prompt for the first time; return the seconds of its parts."""
    parts = {"open_s": opening_s, "load_s": 0.0, "compile_s": 0.0}

    def timed(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            began = perf_counter()
            try:
                return call(*args)
            finally:
                parts[name] += perf_counter() - began

        return run

    began = perf_counter()
    session.plan(len(tokens))
    parts["plan_s"] = perf_counter() - began
    began = perf_counter()
    with (
        patch.object(Resources, "_arenas", timed("load_s", Resources._arenas)),
        patch.object(Resources, "_compile", timed("compile_s", Resources._compile)),
    ):
        session.feed(tokens)
    first = perf_counter() - began
    parts["first_run_s"] = first - parts["load_s"] - parts["compile_s"]
    session.reset()
    began = perf_counter()
    session.feed(tokens)
    parts["second_run_s"] = perf_counter() - began
    nbytes = sum(session.scheduler.resident_nbytes("weight").values())
    parts["load_bytes_per_s"] = nbytes / max(parts["load_s"], 1e-9)
    parts["time_to_first_token_s"] = opening_s + parts["plan_s"] + first
    return {name: round(value, 4) for name, value in parts.items()}


def _prefill(session: Session, tokens: list[int], rounds: int) -> tuple[float, dict[str, Any]]:
    best = float("inf")
    for _ in range(rounds):
        session.reset()
        began = perf_counter()
        logits = session.feed(tokens)
        best = min(best, perf_counter() - began)
    assert np.isfinite(logits).all()
    return round(len(tokens) / best, 2), _account(session)


def _decode(session: Session, options: Any) -> tuple[float, dict[str, Any]]:
    """Return tokens per second behind the first one, by the median of the steps' times."""
    best = float("inf")
    for _ in range(options.rounds):
        session.reset()
        times = [perf_counter() for _ in session.generate([1], options.predict)]
        best = min(best, float(np.median(np.diff(times))))
    return round(1 / best, 2), _account(session)


def _account(session: Session) -> dict[str, Any]:
    """Return what the last plan consists of."""
    plan = session.last_plan
    assert plan is not None
    return {
        "commands": dict(Counter(type(c).__name__ for c in plan.commands)),
        "splits": len(plan.splits.splits),
        "offloaded": sum(o.is_taken for o in plan.placement.offloads),
        "offloadable": len(plan.placement.offloads),
    }


if __name__ == "__main__":
    main()
