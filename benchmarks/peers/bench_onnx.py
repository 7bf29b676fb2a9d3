"""Models of packages on ``cpu`` and in onnxruntime, one thread each, by the processor time of both.

Processor time, because onnxruntime computes on the caller's thread and ggsched on one of its own,
so that on a busy machine wall time measures when that is woken.
"""

import os
import time
from functools import partial
from typing import Any

import ggsched
from benchmarks.measure import interleaved, ratio
from benchmarks.peers.installed import reason_missing
from benchmarks.peers.real_models import MODELS, PACKAGES, RealModel
from benchmarks.table import Row

ROUNDS = 40
BOUND = "<= 1.5"
UNBOUND = ("speech", "recurrent")
"""Kinds of models whose runs take a fraction of a millisecond, more than half of it the host."""


def run() -> list[Row]:
    """Measure the models that are installed."""
    why = reason_missing("onnxruntime")
    if why:
        return [Row("onnx", f"not measured: {why}", 0, 0, 0, "")]
    given = os.environ.get("GGSCHED_THREADS")
    os.environ["GGSCHED_THREADS"] = "1"
    try:
        rows = [_compared(name, model) for name, model in MODELS.items() if model.path]
    finally:
        if given is None:
            del os.environ["GGSCHED_THREADS"]
        else:
            os.environ["GGSCHED_THREADS"] = given
    missing = [p for p in PACKAGES if not any(m.path for m in MODELS.values() if m.package == p)]
    return rows + [Row("onnx", f"{package}: not installed", 0, 0, 0, "") for package in missing]


def _compared(name: str, model: RealModel) -> Row:
    import onnxruntime

    inputs, path = model.draw(), model.path
    assert path is not None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    known = {i.name for i in session.get_inputs()}
    constants: dict[str, Any] = {n: v for n, v in model.constants.items() if n in known}
    given = {n: v for n, v in {**inputs, **constants}.items() if n in known}
    made = ggsched.from_onnx(path, constants=constants)
    device = ggsched.open_devices(["cpu:0"])
    with ggsched.Scheduler(device, weights=made.weight) as scheduler:
        sides = {
            "ggsched": partial(made.run, scheduler, {n: given[n] for n in inputs if n in given}),
            "onnxruntime": partial(session.run, None, given),
        }
        took = interleaved(sides, ROUNDS, time.process_time)
    least = min(took["ggsched"]) / min(took["onnxruntime"])
    _, low, high = ratio(took["ggsched"], took["onnxruntime"])
    milliseconds = " / ".join(f"{1e3 * min(took[side]):.2f}" for side in sides)
    what = f"{name} ({model.package}) / onnxruntime: {milliseconds} ms"
    return Row("onnx", what, least, low, high, bound="" if model.kind in UNBOUND else BOUND)
