"""Time to the first token of a model file: where it goes, with cold and warm caches of kernels.

    python -m benchmarks.first_token FILE --devices cuda:0 [-p 512] [-n 16] [--phases] [--plain]

Each round is a process of its own, so that nothing is loaded before. The first one has an empty
cache of compiled kernels, the others have what it left. Printed for each: seconds from the start
of the process, and of the parts, of which some lie within others; the bytes of weights for each
second of loading. What is required is ``open_s <= bytes / 20 GB/s + 1 s`` with warm caches.

``open_s`` is from the model's file to the end of the first prefill, less what the second one takes.
Read the file once before, if its pages are to be in memory.

With ``--phases`` a line for each part: thread, when it began after the file was opened, seconds,
and of these seconds in which the thread computed. Modules of a plug-in are imported before the
file is opened, since calls of theirs are timed (``plugin_import_s``); with ``--plain`` nothing is
timed inside, and they are imported when the device is opened, as they are for a user.
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
from itertools import groupby
from threading import current_thread
from time import perf_counter, thread_time
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

GOAL_BYTES_PER_S = 20e9
SHORTEST_S = 1e-3
"""Shorter phases are not shown."""

PARTS = {
    "devices": ("ggsched.scheduler", "", "opened"),
    "driver started": ("ggsched_cuda.driver", "", "find_gpus"),
    "graph": ("ggsched.models.batch_runner", "", "build_model_graph"),
    "check": ("ggsched.planner", "", "check_plan"),
    "pass of a weight": ("ggsched.run.loading", "Loader", "_upload_pieces"),
    "run": ("ggsched.run.executor", "Executor", "run"),
    "plan": ("ggsched.planner", "Planner", "plan"),
    "loading": ("ggsched.run.resources", "Resources", "__init__"),
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
    parser.add_argument("--phases", action="store_true", help="show each part as it comes")
    parser.add_argument("--plain", action="store_true", help="nothing is timed inside")
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
    phases: list[Phase] = []
    with ExitStack() as stack:
        if options.profile:
            stack.enter_context(_profiled())
        began = perf_counter()
        for name, place in PARTS.items() if not options.plain else ():
            stack.enter_context(_timed(name, place, spent, phases))
        found["plugin_import_s"] = perf_counter() - began
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
                if options.phases:
                    _show(phases, began)
                nbytes = sum(session.scheduler.resident_nbytes("weight").values())
                spent.clear()
        found["prefill_s"] = [round(s, 4) for s in prefills]
        times = [perf_counter()]
        times += [perf_counter() for _ in session.generate([1], options.predict)]
        found["decode_ms"] = [round(1e3 * t, 1) for t in np.diff(times).tolist()[:6]]
        found["decode_parts"] = {k: round(v, 3) for k, v in spent.items()}
    found["weights_gb"] = nbytes / 1e9
    if not options.plain:
        found["load_gb_per_s"] = nbytes / 1e9 / max(1e-9, found["parts"]["loading"])
    found["open_s"] = found["first_token_s"] - prefills[1]
    found["open_goal_s"] = nbytes / GOAL_BYTES_PER_S + 1.0
    return {k: round(v, 3) if isinstance(v, float) else v for k, v in found.items()}


class Phase(NamedTuple):
    """A call that was timed: when it began, how long it took, how long its thread computed."""

    name: str
    thread: str
    began: float
    seconds: float
    computing: float


def _show(phases: list[Phase], began: float) -> None:
    """Print calls in order; those of one name and thread that follow each other as one."""
    phases.sort(key=lambda p: p.began)
    for (name, thread), calls in groupby(phases, key=lambda p: (p.name, p.thread)):
        some = list(calls)
        seconds, computing = (sum(p[i] for p in some) for i in (3, 4))
        if seconds > SHORTEST_S:
            sys.stdout.write(
                f"{some[0].began - began:7.3f} {thread[:20]:20} {name:20} {len(some):4} "
                f"{seconds:7.3f} {computing:7.3f}\n"
            )


@contextmanager
def _timed(
    name: str, place: tuple[str, str, str], spent: dict[str, float], phases: list[Phase]
) -> Iterator[None]:
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
        began, computed = perf_counter(), thread_time()
        try:
            return original(*args, **kwargs)
        finally:
            seconds = perf_counter() - began
            spent[name] += seconds
            thread = current_thread().name
            phases.append(Phase(name, thread, began, seconds, thread_time() - computed))

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
