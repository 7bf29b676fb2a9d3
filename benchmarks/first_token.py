"""Time to the first token of a model file: where it goes, with cold and warm caches of kernels.

    python -m benchmarks.first_token FILE --devices cuda:0 [-p 512] [-n 16]

Each round is a process of its own, so that nothing is loaded before. The first one has an empty
cache of compiled kernels, the others have what it left. Printed for each: seconds from the start
of the process, and of the parts, of which some lie within others; the bytes of weights for each
second of loading. What is asked for is ``open_s <= bytes / 20 GB/s + 1 s`` with warm caches.

``open_s`` is from the model's file to the end of the first prefill, less what the second one takes.
Read the file once before, if its pages are to be in memory.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from time import perf_counter
from typing import Any
from unittest.mock import patch

import numpy as np

GOAL_BYTES_PER_S = 20e9
PARTS = {
    "plan": ("ggsched.planner", "Planner", "plan"),
    "buffers and weights": ("ggsched.run.resources", "Resources", "_arenas"),
    "wait for weights": ("ggsched.run.loading", "Loader", "close"),
    "device memory": ("ggsched_cuda.driver", "", "take_memory"),
    "pinned memory": ("ggsched_cuda.driver", "", "take_pinned"),
    "programs": ("ggsched.run.resources", "Resources", "_compile"),
    "lower": ("ggsched_cuda.program", "", "lower"),
    "kernels compiled": ("ggsched_cuda.programs", "", "compile_text"),
    "modules loaded": ("ggsched_cuda.driver", "", "load_module"),
    "functions loaded": ("ggsched_cuda.driver", "", "function_of"),
    "cuBLAS started": ("ggsched_cuda_kernels.blas.driver", "", "make_handle"),
    "cuBLAS kernels": ("ggsched_cuda.blas_kernels", "BlasKernels", "load"),
    "executor": ("ggsched.run.executor", "Executor", "__init__"),
    "context": ("ggsched_cuda.driver", "", "context_of"),
}
"""What is timed: module, class if any, name."""


def main() -> None:
    """Run the rounds, or one of them in this process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_token", description=__doc__)
    parser.add_argument("file")
    parser.add_argument("--devices", default="cuda:0")
    parser.add_argument("-p", "--prompt", type=int, default=512)
    parser.add_argument("-n", "--predict", type=int, default=16)
    parser.add_argument("-c", "--ctx", type=int, default=4096)
    parser.add_argument("-r", "--rounds", type=int, default=3)
    parser.add_argument("--one", action="store_true", help="one round, in this process")
    parser.add_argument("--profile", action="store_true", help="with a profile of the first step")
    options = parser.parse_args()
    if options.one:
        sys.stdout.write(json.dumps(one_round(options)) + "\n")
        return
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "XDG_CACHE_HOME": cache}
        for number in range(options.rounds):
            sys.stdout.write(f"{'warm' if number else 'cold'}: ")
            sys.stdout.flush()
            command = [sys.executable, "-m", "benchmarks.first_token", *sys.argv[1:], "--one"]
            subprocess.run(command, check=True, env=environment)


def one_round(options: argparse.Namespace) -> dict[str, Any]:
    """Return what opening, two prefills and a few steps take."""
    began = perf_counter()
    from ggsched.models.load import load_model
    from ggsched.models.session import Session, SessionOptions

    found: dict[str, Any] = {"import_s": perf_counter() - began}
    spent: dict[str, float] = defaultdict(float)
    with ExitStack() as stack:
        if options.profile:
            stack.enter_context(_profiled())
        for name, place in PARTS.items():
            stack.enter_context(_timed(name, place, spent))
        began = perf_counter()
        model = load_model(options.file)
        sizes = SessionOptions(n_ctx=options.ctx, n_ubatch=options.prompt)
        session = stack.enter_context(Session(model, options.devices.split(","), sizes))
        found["session_s"] = perf_counter() - began
        rng = np.random.default_rng(1)
        tokens = rng.integers(0, model.hparams.n_vocab, options.prompt).tolist()
        prefills = []
        for _ in range(4):
            session.reset()
            step = perf_counter()
            session.feed(tokens)
            prefills.append(perf_counter() - step)
            if len(prefills) == 1:
                found["first_token_s"] = perf_counter() - began
                found["parts"] = {k: round(v, 3) for k, v in spent.items()}
                nbytes = sum(session.scheduler.resident_nbytes("weight").values())
                spent.clear()
        found["prefill_s"] = [round(s, 4) for s in prefills]
        times = [perf_counter()]
        times += [perf_counter() for _ in session.generate([1], options.predict)]
        found["decode_ms"] = [round(1e3 * t, 1) for t in np.diff(times).tolist()[:6]]
        found["decode_parts"] = {k: round(v, 3) for k, v in spent.items()}
    found["weights_gb"] = nbytes / 1e9
    found["load_gb_per_s"] = nbytes / 1e9 / max(1e-9, found["parts"]["buffers and weights"])
    found["open_s"] = found["first_token_s"] - prefills[1]
    found["open_goal_s"] = nbytes / GOAL_BYTES_PER_S + 1.0
    return {k: round(v, 3) if isinstance(v, float) else v for k, v in found.items()}


@contextmanager
def _timed(name: str, place: tuple[str, str, str], spent: dict[str, float]) -> Iterator[None]:
    """Add up the seconds of all calls of a function; nothing where its module is not there."""
    module, owner, function = place
    try:
        target: Any = import_module(module)
    except ImportError:
        yield
        return
    target = getattr(target, owner) if owner else target
    original: Callable[..., Any] = getattr(target, function)

    def call(*args: Any, **kwargs: Any) -> Any:
        began = perf_counter()
        try:
            return original(*args, **kwargs)
        finally:
            spent[name] += perf_counter() - began

    with patch.object(target, function, call):
        yield


@contextmanager
def _profiled() -> Iterator[None]:
    import cProfile
    import pstats

    profile = cProfile.Profile()
    profile.enable()
    try:
        yield
    finally:
        profile.disable()
        pstats.Stats(profile, stream=sys.stdout).sort_stats("tottime").print_stats(28)


if __name__ == "__main__":
    main()
