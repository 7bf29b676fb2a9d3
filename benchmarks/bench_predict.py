"""Predictions against what is measured, on the llama of the decoding benchmark.

The machine is calibrated first, in the same process. A ratio of 1 means that the fastest step takes
what was predicted; rates are the best that was seen, too. Guesses by kind of device stand beside,
as what a calibration replaces.
"""

import time

import numpy as np

from benchmarks.bench_decode import N_KV, N_PAST, dense_110m, random_model
from benchmarks.table import Row
from ggsched.backend.probe import probe
from ggsched.backend.registry import open_devices
from ggsched.config import Settings
from ggsched.errors import GgschedError
from ggsched.ir.graph import Graph
from ggsched.passes.cost.predict import predict_step
from ggsched.passes.place import Constraints
from ggsched.run.release import close_all
from ggsched.scheduler import Scheduler
from ggsched.topology.cost import MachineRates, guessed_rates
from ggsched_calibrate.machine import calibrate
from ggsched_llm.batches import batch_inputs
from ggsched_llm.graph import build_model_graph
from ggsched_llm.spec import ModelSpec

ROUNDS = 25
SECONDS = 8.0
STEPS = {"decoding": 1, "micro-batch of 32": 32}


def run() -> list[Row]:
    """Return measured over predicted, for each device and kind of step."""
    spec, weights = random_model(dense_110m())
    rows: list[Row] = []
    for name in ("cpu:0", "opencl:0"):
        try:
            devices = open_devices([name])
        except GgschedError:
            continue
        try:
            rates = calibrate(devices, SECONDS, is_strict=False).rates
            guesses = guessed_rates(probe(devices))
        finally:
            close_all(devices)
        for what, tokens in STEPS.items():
            rows += _compare(spec, weights, name, what, tokens, rates, guesses)
    return rows


def _compare(
    spec: ModelSpec,
    weights: dict[str, np.ndarray],
    device: str,
    what: str,
    tokens: int,
    rates: MachineRates,
    guesses: MachineRates,
) -> list[Row]:
    graph = build_model_graph(spec, n_tokens=tokens, n_kv=N_KV, n_out=1, n_ctx=N_KV)
    constraints = Constraints(rates=rates)
    with Scheduler([device], weights=weights, settings=Settings(sanitize="off")) as scheduler:
        plan = scheduler.plan(graph, constraints)
        took = _times(scheduler, graph, constraints, tokens)
    rows = []
    for by, known in (("calibration", rates), ("guesses", guesses)):
        predicted = predict_step(graph, plan, known).seconds
        ratios = sorted(seconds / predicted for seconds in took)
        title = f"{device}, {what}: fastest / predicted by {by}"
        rows.append(Row("predict", title, ratios[0], ratios[0], ratios[-1]))
    return rows


def _times(
    scheduler: Scheduler, graph: Graph, constraints: Constraints, tokens: int
) -> list[float]:
    ids = np.arange(tokens, dtype=np.int32)
    inputs = batch_inputs(graph, ids, N_PAST, 1, 0)
    took = []
    for _ in range(ROUNDS + 1):
        began = time.perf_counter()
        scheduler.run(graph, inputs, constraints)
        took.append(time.perf_counter() - began)
    return took[1:]
