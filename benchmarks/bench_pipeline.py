"""Two pipeline stages on two CPU devices of one core each, against one micro-batch after another.

With p equal stages and m micro-batches a pipeline takes (m + p - 1) / (m p) of the time that the
stages take one after another, if copies and events cost nothing and both cores are free. The figure
is that ideal time over the measured one. On simulated devices the cost of everything but the stages
is nothing, and tests/properties/test_pipeline.py finds the ideal exactly.
"""

from functools import partial

import numpy as np

from benchmarks.measure import interleaved, ratio
from benchmarks.table import Row
from ggsched.config import Settings
from ggsched.ir import Graph, GraphBuilder
from ggsched.ir.join import Joined, join_graphs
from ggsched.passes import Constraints
from ggsched.passes.memory.rings import Slots
from ggsched.scheduler import Scheduler

STAGES, BATCHES, LAYERS, ROUNDS = 2, (1, 4, 16), 3, 7
WIDTH, TOKENS = 1024, 64
DEVICES = ("cpu:0", "cpu:1")


def stages() -> Graph:
    """Return two stages of matrix products with what keeps numbers small in between."""
    g = GraphBuilder("two stages")
    x = g.input("x", (TOKENS, WIDTH))
    for k in range(STAGES * LAYERS):
        x = g.rms_norm(g.mul_mat(g.weight(f"w{k}", (WIDTH, WIDTH)), x), name=f"l{k}")
    return g.build(x)


def homes() -> dict[str, int]:
    """Return the stage of each weight."""
    return {f"w{k}": k // LAYERS for k in range(STAGES * LAYERS)}


def _inputs(joined: Joined, count: int) -> dict[str, np.ndarray]:
    x = np.ones((TOKENS, WIDTH), np.float32)
    return {joined.input_name(k, "x"): x for k in range(count)}


def _apart(scheduler: Scheduler, graph: Graph, count: int, where: Constraints) -> None:
    x = np.ones((TOKENS, WIDTH), np.float32)
    for _ in range(count):
        scheduler.run(graph, {"x": x}, where)


def run() -> list[Row]:
    """Measure."""
    rows = []
    rng = np.random.default_rng(1)
    weights = {n: rng.standard_normal((WIDTH, WIDTH), np.float32) for n in homes()}
    graph = stages()
    where = Constraints(homes=homes())
    with Scheduler(DEVICES, weights=weights, settings=Settings(streams=1)) as scheduler:
        for m in BATCHES:
            joined = join_graphs([graph] * m)
            wanted = where.with_slots(Slots(2, joined.firsts))
            together = partial(scheduler.run, joined.graph, _inputs(joined, m), wanted)
            sides = {
                "together": together,
                "apart": partial(_apart, scheduler, graph, m, where),
            }
            took = interleaved(sides, ROUNDS)  # type: ignore[arg-type]
            ideal = (m + STAGES - 1) / (m * STAGES)
            value, low, high = ratio([s * ideal for s in took["apart"]], took["together"])
            what = f"2 stages, {m} micro-batches: ideal time / time"
            rows.append(Row("pipeline", what, value, low, high, bound=">= 0.85"))
            what = f"2 stages, {m} micro-batches: one after another / together"
            rows.append(Row("pipeline", what, *ratio(took["apart"], took["together"])))
    return rows
