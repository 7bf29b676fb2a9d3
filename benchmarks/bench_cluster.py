"""Two machines that are processes of this host, against one process with two devices.

A chain of nodes changes the device with each node, so that 16 KiB cross each time. Chains of two
lengths tell what one crossing costs from what a run costs. In prefill two stages of matrix products
are on two machines with a thread each; the ideal is half of the time that one machine takes.
llama.cpp's RPC backend, on loopback: 165 us a split, and 1.32 of 2.0 (measured on another day).

A run is an affair of many threads in three processes, so a busy machine shows in most of them.
Figures are of the shortest of many runs; the range goes from there to the median.
"""

from functools import partial
from os import environ
from statistics import median

import numpy as np

from benchmarks.bench_pipeline import TOKENS, WIDTH, homes, stages
from benchmarks.measure import interleaved
from benchmarks.table import Row
from ggsched.backend.protocols import Device
from ggsched.cluster.local import local_start
from ggsched.cluster.remote_devices import open_group
from ggsched.config import Settings
from ggsched.ir import Graph, GraphBuilder
from ggsched.ir.join import join_graphs
from ggsched.passes import Constraints
from ggsched.passes.memory.rings import Slots
from ggsched.run.release import close_all
from ggsched.scheduler import Scheduler

ELEMENTS = 4096
SHORT, LONG, CHAINS = 3, 67, 400
BATCHES, PREFILLS = 16, 40
ONE_THREAD = {"GGSCHED_THREADS": "1", "GGSCHED_BACKENDS": "cpu"}


def machines(*names: str) -> list[Device]:
    """Open machines with a device of one thread each."""
    return open_group(local_start(names, ONE_THREAD), backends=("cpu",))


def chain(nodes: int) -> Graph:
    """Return nodes that do little, each on the result of the one before."""
    g = GraphBuilder(f"chain of {nodes}")
    x = g.input("x", (ELEMENTS,))
    for _ in range(nodes):
        x = g.scale(x, 0.5)
    return g.build(x)


def _run_chain(scheduler: Scheduler, graph: Graph) -> None:
    pins = Constraints(pins={n: n % 2 for n in range(len(graph.nodes))})
    scheduler.run(graph, {"x": np.ones(ELEMENTS, np.float32)}, pins)


def _crossings() -> list[Row]:
    settings = Settings(streams=1, fuse=False)
    short, long = chain(SHORT), chain(LONG)
    there = machines("a", "b")
    try:
        with (
            Scheduler(there, settings=settings) as apart,
            Scheduler(["cpu:0", "cpu:1"], settings=settings) as here,
        ):
            took = interleaved(
                {
                    "apart, short": partial(_run_chain, apart, short),
                    "apart, long": partial(_run_chain, apart, long),
                    "here, short": partial(_run_chain, here, short),
                    "here, long": partial(_run_chain, here, long),
                },
                CHAINS,
            )
    finally:
        close_all(there)
    cost = {w: _cost(took[f"{w}, short"], took[f"{w}, long"]) for w in ("apart", "here")}
    more = [a - b for a, b in zip(cost["apart"], cost["here"], strict=True)]
    a_run = [f(took["apart, short"]) * 1e6 for f in (min, median)]
    return [
        _us("16 KiB to another machine and a node there", cost["apart"]),
        _us("16 KiB to another device of a process and a node there", cost["here"]),
        _us("what the other machine costs more", more, "<= 120"),
        _us(f"a run of {SHORT} nodes on two machines", a_run),
    ]


def _cost(short: list[float], long: list[float]) -> list[float]:
    """Return the microseconds of a crossing: of the shortest runs, and of the median ones."""
    return [(f(long) - f(short)) / (LONG - SHORT) * 1e6 for f in (min, median)]


def _us(what: str, values: list[float], bound: str = "") -> Row:
    return Row("cluster", what, values[0], min(values), max(values), "us", bound)


def _prefill() -> list[Row]:
    rng = np.random.default_rng(1)
    weights = {n: rng.standard_normal((WIDTH, WIDTH), np.float32) for n in homes()}
    joined = join_graphs([stages()] * BATCHES)
    x = np.ones((TOKENS, WIDTH), np.float32)
    inputs = {joined.input_name(k, "x"): x for k in range(BATCHES)}
    where = Constraints(homes=homes()).with_slots(Slots(2, joined.firsts))
    alone = Constraints(homes=dict.fromkeys(weights, 0))
    settings = Settings(streams=1)
    pair, single = machines("a", "b"), machines("c")
    try:
        with (
            Scheduler(pair, weights=weights, settings=settings) as apart,
            Scheduler(single, weights=weights, settings=settings) as one,
        ):
            took = interleaved(
                {
                    "two": partial(_run_joined, apart, joined.graph, inputs, where),
                    "one": partial(_run_joined, one, joined.graph, inputs, alone),
                },
                PREFILLS,
            )
    finally:
        close_all([*pair, *single])
    what = f"prefill, {BATCHES} micro-batches of {TOKENS * WIDTH * 4 >> 10} KiB: one machine / two"
    ratios = [f(took["one"]) / f(took["two"]) for f in (min, median)]
    return [Row("cluster", what, ratios[0], min(ratios), max(ratios), bound=">= 1.7")]


def _run_joined(
    scheduler: Scheduler, graph: Graph, inputs: dict[str, np.ndarray], where: Constraints
) -> None:
    scheduler.run(graph, inputs, where)


def run() -> list[Row]:
    """Measure."""
    environ.setdefault("GGSCHED_THREADS", "1")
    return [*_crossings(), *_prefill()]
