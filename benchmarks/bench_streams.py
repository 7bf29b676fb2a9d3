"""Several streams per device: whether they pay, whether they ever cost, and what planning takes.

With the gate, against one stream, in turn and in one process: never slower than within noise. A
wide graph of products that release the interpreter's lock, on two streams of two cores. Planning
with streams that are forced, against ``graphlib``. Syncs and memory of real models (``sync_table``,
``memory_table``), which take no time but that of planning.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np

from benchmarks import memory_table, sync_table
from benchmarks.bench_planning import order
from benchmarks.measure import best_ratio, interleaved, ratio
from benchmarks.table import Row
from ggsched.config import Settings, Streams
from ggsched.errors import BackendUnavailable
from ggsched.ir import Graph
from ggsched.passes import make_plan
from ggsched.passes.options import PlanOptions, StreamPolicy
from ggsched.scheduler import Scheduler
from tests.support.model_mixes import topology
from tests.support.stream_graphs import NEVER_SLOWER, chain, data_of, diamonds, random_wide, towers

TOWERS, TOWER_DEPTH, TOWER_WIDTH = 8, 6, 384
SECONDS = 2.0
"""About as long is spent on each comparison."""


def run() -> list[Row]:
    """Measure."""
    rows = []
    for device in ("cpu:0", "opencl:0"):
        try:
            rows += [_against_one(make(), device, "auto", "<= 1.02") for make in NEVER_SLOWER]
        except BackendUnavailable:
            continue
    wide = towers(TOWERS, TOWER_DEPTH, TOWER_WIDTH)
    rows += [_speed_up(wide, 2), _speed_up(wide, "auto"), _threads()]
    return rows + _planning() + sync_table.rows() + memory_table.rows()


def _against_one(graph: Graph, device: str, streams: Streams, bound: str) -> Row:
    """Return the time with a setting over the time with one stream; 1 where plans are the same."""
    found = _compare(graph, device, streams)
    if found is None:
        what = f"{device}, {graph.name}: {streams} is sequential, the same plan"
        return Row("streams", what, 1.0, 1.0, 1.0, "x", bound)
    value, low, high = found
    what = f"{device}, {graph.name}: {streams} / one stream"
    return Row("streams", what, value, low, high, "x", bound)


def _speed_up(graph: Graph, streams: Streams) -> Row:
    """Return the time with one stream over the time with a setting."""
    found = _compare(graph, "cpu:0", streams) or (1.0, 1.0, 1.0)
    value, low, high = 1 / found[0], 1 / found[2], 1 / found[1]
    what = f"cpu:0, {graph.name}: one stream / {streams}"
    return Row("streams", what, value, low, high, "x", ">= 1.7")


def _threads() -> Row:
    """Return how much faster two threads of plain numpy are on the products of the wide graph."""
    rows = [np.full((TOWER_WIDTH, TOWER_WIDTH), 0.01, np.float32) for _ in range(4)]
    x, w, *outs = rows

    def products(out: np.ndarray, count: int) -> None:
        for _ in range(count):
            np.matmul(x, w.T, out)

    count = TOWERS * TOWER_DEPTH

    def two() -> None:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(products, outs, (count // 2, count // 2)))

    took = interleaved({"one": lambda: products(outs[0], count), "two": two}, 15)
    what = "the same products by plain numpy: one thread / two, the limit"
    return Row("streams", what, *ratio(took["one"], took["two"]))


def _compare(graph: Graph, device: str, streams: Streams) -> tuple[float, float, float] | None:
    """Run a graph in turn with a setting and with one stream.

    Returns:
        Median, smallest and largest of the ratio of times, round by round, each round the better
        of two runs; None where the plans are the same.
    """
    inputs, weights = data_of(graph)
    base = Settings(rates="off")
    with (
        Scheduler([device], weights=weights, settings=replace(base, streams=streams)) as several,
        Scheduler([device], weights=weights, settings=replace(base, streams=1)) as one,
    ):
        if several.plan(graph).commands == one.plan(graph).commands:
            return None
        began = time.perf_counter()
        for scheduler in (several, one, several, one):
            scheduler.run(graph, inputs)
        each = (time.perf_counter() - began) / 4
        rounds = max(20, min(800, int(SECONDS / (2 * each)))) // 2 * 2
        sides: dict[str, Callable[[], None]] = {
            "several": partial(several.run, graph, inputs),  # type: ignore[dict-item]
            "one": partial(one.run, graph, inputs),  # type: ignore[dict-item]
        }
        took = interleaved(sides, rounds)
        return ratio(*(list(map(min, t[::2], t[1::2])) for t in (took["several"], took["one"])))


def _planning() -> list[Row]:
    rows = []
    machine = topology()
    for make in (chain, diamonds, random_wide):
        for n in (2_000, 20_000):
            graph = make(n)
            _ = graph.digest  # made once with the graph, whoever plans it
            for streams in (2, 4, 8):
                options = PlanOptions(StreamPolicy(streams, is_forced=True))
                sides: dict[str, Callable[[], None]] = {
                    "plan": partial(make_plan, graph, machine, None, options),  # type: ignore[dict-item]
                    "graphlib": partial(order, graph),
                }
                took = interleaved(sides, 5 if n < 10_000 else 2, time.process_time)
                what = f"{graph.name}, {streams} streams forced: plan / graphlib"
                found = best_ratio(took["plan"], took["graphlib"])
                rows.append(Row("streams", what, *found, bound="<= 40"))
    return rows
