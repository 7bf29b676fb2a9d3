"""Two machines that are processes of this host, against one process with two devices.

A chain of nodes changes the device with each node, so that 16 KiB cross each time. Chains of two
lengths tell what one crossing costs from what a run costs. In prefill two stages of matrix products
are on two machines with a thread each; the ideal is half of the time that one machine takes.
llama.cpp's RPC backend, on loopback: 165 us a split, and 1.32 of 2.0 (measured on another day).
"""

from functools import partial
from os import environ
from statistics import median

import numpy as np

from benchmarks.bench_pipeline import LAYERS, STAGES, TOKENS, WIDTH, homes, stages
from benchmarks.measure import interleaved, ratio
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
SHORT, LONG, RUNS, ROUNDS, BATCHES = 3, 67, 20, 9, 16
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


def _repeat(scheduler: Scheduler, nodes: int) -> None:
    graph = chain(nodes)
    pins = Constraints(pins={n: n % 2 for n in range(nodes)})
    x = {"x": np.ones(ELEMENTS, np.float32)}
    for _ in range(RUNS):
        scheduler.run(graph, x, pins)


def _crossings() -> list[Row]:
    there = machines("a", "b")
    settings = Settings(streams=1, fuse=False)
    try:
        with (
            Scheduler(there, settings=settings) as apart,
            Scheduler(["cpu:0", "cpu:1"], settings=settings) as here,
        ):
            sides = {
                (where, nodes): partial(_repeat, scheduler, nodes)
                for where, scheduler in (("apart", apart), ("here", here))
                for nodes in (SHORT, LONG)
            }
            took = interleaved(sides, ROUNDS)  # type: ignore[arg-type,type-var]
    finally:
        close_all(there)
    cost = {
        where: [
            (long - short) / RUNS / (LONG - SHORT) * 1e6
            for short, long in zip(took[where, SHORT], took[where, LONG], strict=True)  # type: ignore[index]
        ]
        for where in ("apart", "here")
    }
    more = [a - b for a, b in zip(cost["apart"], cost["here"], strict=True)]
    a_run = [s / RUNS * 1e6 for s in took["apart", SHORT]]  # type: ignore[index]
    return [
        _us("16 KiB to another machine and a node there", cost["apart"]),
        _us("16 KiB to another device of a process and a node there", cost["here"]),
        _us("what the other machine costs more", more, "<= 120"),
        _us(f"a run of {SHORT} nodes on two machines", a_run),
    ]


def _us(what: str, values: list[float], bound: str = "") -> Row:
    return Row("cluster", what, median(values), min(values), max(values), "us", bound)


def _prefill() -> list[Row]:
    rng = np.random.default_rng(1)
    weights = {n: rng.standard_normal((WIDTH, WIDTH), np.float32) for n in homes()}
    joined = join_graphs([stages()] * BATCHES)
    x = np.ones((TOKENS, WIDTH), np.float32)
    inputs = {joined.input_name(k, "x"): x for k in range(BATCHES)}
    two, one = machines("a", "b"), machines("c")
    where = Constraints(homes=homes()).with_slots(Slots(2, joined.firsts))
    alone = Constraints(homes=dict.fromkeys(weights, 0))
    settings = Settings(streams=1)
    try:
        with (
            Scheduler(two, weights=weights, settings=settings) as apart,
            Scheduler(one, weights=weights, settings=settings) as single,
        ):
            took = interleaved(
                {
                    "two": partial(apart.run, joined.graph, inputs, where),  # type: ignore[dict-item]
                    "one": partial(single.run, joined.graph, inputs, alone),  # type: ignore[dict-item]
                },
                ROUNDS,
            )
    finally:
        close_all([*two, *one])
    nbytes = TOKENS * WIDTH * 4 >> 10
    what = (
        f"{STAGES * LAYERS} products, {BATCHES} micro-batches of {nbytes} KiB: one / two machines"
    )
    return [Row("cluster", what, *ratio(took["one"], took["two"]), bound=">= 1.7")]


def run() -> list[Row]:
    """Measure."""
    environ.setdefault("GGSCHED_THREADS", "1")
    return [*_crossings(), *_prefill()]
