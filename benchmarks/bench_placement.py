"""Placement by cost against the best single device, over graphs of the kinds that people import.

Each graph runs on each device alone, and placed by guesses, by rates that were measured before in
the same process, and by measurement (``placement="autotune"``). A ratio is the fastest run of a
placement by that of the best device; of a graph that is placed on one device, that device's. Other
processes only ever add time, so rounds are taken until the ratio is met, for a bounded time. Rates
that ``ggsched calibrate`` would not trust on a busy machine are used here.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import pairwise

import numpy as np

from benchmarks.placed_graphs import GRAPHS, build
from benchmarks.table import Row
from ggsched.backend.registry import open_devices
from ggsched.config import Settings
from ggsched.errors import GgschedError
from ggsched.passes.place import Constraints
from ggsched.run.release import close_all
from ggsched.scheduler import Scheduler
from ggsched.topology.cost import MachineRates
from ggsched_calibrate.machine import calibrate

DEVICES = ("cuda:0", "cpu:0", "opencl:0")
"""Of these that are there, each and its neighbour are a pair."""
CALIBRATION_S = 90.0
ROUNDS_S = 0.3
TARGET = 1.1
AGAIN = 4


def run() -> list[Row]:
    """Return placed over best alone, for each pair of devices, way to place and graph."""
    there = [name for name in DEVICES if _is_there(name)]
    rows: list[Row] = []
    for pair in pairwise(there):
        devices = open_devices(pair)
        try:
            rates = calibrate(devices, CALIBRATION_S, is_strict=False).rates
        finally:
            close_all(devices)
        for name in GRAPHS:
            rows += _of_graph(name, pair, rates)
    return rows


def _is_there(name: str) -> bool:
    try:
        close_all(open_devices([name]))
    except GgschedError:
        return False
    return True


def _of_graph(name: str, pair: tuple[str, str], rates: MachineRates) -> Iterator[Row]:
    graph, weights, inputs = build(name)
    ways = {
        "by guesses": ("cost", None),
        "calibrated": ("cost", rates),
        "measured": ("autotune", rates),
    }
    with ExitStack() as stack:
        runs: dict[str, Callable[[], object]] = {}
        where: dict[str, frozenset[str]] = {}

        def add(title: str, devices: list[str], placement: str, known: MachineRates | None) -> None:
            settings = Settings(sanitize="off", verify=False, rates="off")
            scheduler = Scheduler(devices, weights=weights, settings=settings, placement=placement)
            stack.enter_context(scheduler)
            constraints = Constraints(rates=known)
            for _ in range(2):
                scheduler.run(graph, inputs, constraints)
            plan = scheduler.plan(graph, constraints)
            where[title] = frozenset(plan.devices[c.device].name for c in plan.placement.choices)
            runs[title] = partial(scheduler.run, graph, inputs, constraints)

        for device in pair:
            with _refused():
                add(device, [device], "ggml", None)
        for title, (placement, known) in ways.items():
            add(title, list(pair), placement, known)
        took = dict.fromkeys(runs, np.inf)
        for _ in range(AGAIN):
            _rounds(runs, took)
            ratios = {title: _ratio(title, took, where, pair) for title in ways}
            if max(ratios.values()) <= TARGET:
                break
        times = ", ".join(f"{d} {1e3 * took[d]:.3g} ms" for d in pair if d in took)
        for title, ratio in ratios.items():
            what = f"{name} ({times}), {title}: {' + '.join(sorted(where[title]))}"
            yield Row("placement", what, ratio, ratio, ratio, bound=f"<= {TARGET}")


@contextmanager
def _refused() -> Iterator[None]:
    """Leave out a device that lacks an op."""
    try:
        yield
    except GgschedError:
        return


def _rounds(runs: dict[str, Callable[[], object]], took: dict[str, float]) -> None:
    """Run all in turn, and keep the least times."""
    end = time.perf_counter() + ROUNDS_S * len(runs)
    while time.perf_counter() < end:
        for title, run in runs.items():
            began = time.perf_counter()
            run()
            took[title] = min(took[title], time.perf_counter() - began)


def _ratio(
    title: str, took: dict[str, float], where: dict[str, frozenset[str]], pair: tuple[str, str]
) -> float:
    alone = {device: took[device] for device in pair if device in took}
    if len(where[title]) == 1:
        (device,) = where[title]
        return alone[device] / min(alone.values())
    return took[title] / min(alone.values())
