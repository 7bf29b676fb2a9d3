"""Models of packages on ``cpu`` and in onnxruntime, on one thread each and on two.

On one thread by the processor time of both, by turns: onnxruntime computes on the caller's thread
and ggsched may on one of its own, so that on a busy machine wall time measures when that is woken.
On two threads by wall time, in blocks of a side, since idle threads of both look for work for a
while; the least of many runs, as one that is disturbed on either thread says nothing.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import ggsched
from benchmarks.measure import interleaved, ratio
from benchmarks.peers.installed import reason_missing
from benchmarks.peers.real_models import MODELS, PACKAGES, RealModel
from benchmarks.table import Row

ROUNDS = 40
BLOCKS = 6
RUNS = 20
"""Of a side in a block."""

REST_S = 0.1
"""Before each block: threads of the other side sleep by then."""

BOUND = "<= 1.5"
UNBOUND = ("speech", "recurrent")
"""Kinds of models whose runs take a fraction of a millisecond, more than half of it the host."""

Sides = Mapping[str, Callable[[], None]]


def run() -> list[Row]:
    """Measure the models that are installed."""
    why = reason_missing("onnxruntime")
    if why:
        return [Row("onnx", f"not measured: {why}", 0, 0, 0, "")]
    models = {name: model for name, model in MODELS.items() if model.path}
    rows = [_row(name, model, 1) for name, model in models.items()]
    if len(os.sched_getaffinity(0)) > 1:
        rows += [_row(name, model, 2) for name, model in models.items()]
    missing = [p for p in PACKAGES if not any(m.path for m in MODELS.values() if m.package == p)]
    return rows + [Row("onnx", f"{package}: not installed", 0, 0, 0, "") for package in missing]


def _row(name: str, model: RealModel, threads: int) -> Row:
    with _sides(model, threads) as sides:
        by_turns = partial(interleaved, rounds=ROUNDS, clock=time.process_time)
        took = (by_turns if threads == 1 else _by_blocks)(sides)
    least = min(took["ggsched"]) / min(took["onnxruntime"])
    _, low, high = ratio(took["ggsched"], took["onnxruntime"])
    milliseconds = " / ".join(f"{1e3 * min(took[side]):.2f}" for side in sides)
    which = "" if threads == 1 else f", {threads} threads"
    what = f"{name} ({model.package}) / onnxruntime{which}: {milliseconds} ms"
    return Row("onnx", what, least, low, high, bound="" if model.kind in UNBOUND else BOUND)


@contextmanager
def _sides(model: RealModel, threads: int) -> Iterator[Sides]:
    import onnxruntime

    inputs, path = model.draw(), model.path
    assert path is not None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    known = {i.name for i in session.get_inputs()}
    constants: dict[str, Any] = {n: v for n, v in model.constants.items() if n in known}
    given = {n: v for n, v in {**inputs, **constants}.items() if n in known}
    made = ggsched.from_onnx(path, constants=constants)
    own = {n: given[n] for n in inputs if n in given}
    with threads_of_ours(threads):
        devices = ggsched.open_devices(["cpu:0"])
        with ggsched.Scheduler(devices, weights=made.weight) as scheduler:
            yield {
                "ggsched": partial(made.run, scheduler, own),
                "onnxruntime": partial(session.run, None, given),
            }


@contextmanager
def threads_of_ours(count: int) -> Iterator[None]:
    """Compute on so many threads of the CPU device."""
    given = os.environ.get("GGSCHED_THREADS")
    os.environ["GGSCHED_THREADS"] = str(count)
    try:
        yield
    finally:
        if given is None:
            del os.environ["GGSCHED_THREADS"]
        else:
            os.environ["GGSCHED_THREADS"] = given


def _by_blocks(sides: Sides) -> dict[str, list[float]]:
    """Return the least wall time of each block of each side."""
    took: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(BLOCKS):
        for name, run_once in sides.items():
            time.sleep(REST_S)
            run_once()
            seconds = []
            for _ in range(RUNS):
                began = time.perf_counter()
                run_once()
                seconds.append(time.perf_counter() - began)
            took[name].append(min(seconds))
    return took
