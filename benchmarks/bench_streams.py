"""Several streams per device: whether they pay, whether they ever cost, and what planning takes.

With the gate, against one stream, in turn and in one process: never slower than within noise. A
wide graph of products that release the interpreter's lock, on two streams of two cores. Planning
with streams that are forced, against ``graphlib``. Syncs and memory of real models (``sync_table``,
``memory_table``), which take no time but that of planning.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from benchmarks import memory_table, sync_table
from benchmarks.bench_planning import chain, diamonds, order, topology
from benchmarks.measure import best, in_turn
from benchmarks.stream_graphs import NEVER_SLOWER, data_of, random_wide, towers
from benchmarks.table import Row
from ggsched.config import Settings, Streams
from ggsched.errors import BackendUnavailable
from ggsched.ir import Graph
from ggsched.passes import make_plan
from ggsched.passes.options import PlanOptions, StreamPolicy
from ggsched.scheduler import Scheduler

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
    rows.append(_speed_up(towers(8, 6, 384), 2))
    rows.append(_speed_up(towers(8, 6, 384), "auto"))
    return rows + _planning() + sync_table.rows() + memory_table.rows()


def _against_one(graph: Graph, device: str, streams: Streams, bound: str) -> Row:
    """Return the time with a setting over the time with one stream."""
    several, one, taken = _compare(graph, device, streams)
    what = f"{device}, {graph.name}: {streams}{' (1 stream)' if taken == 1 else ''} / sequential"
    value = best(several) / best(one)
    pairs = [a / b for a, b in zip(several, one, strict=True)]
    return Row("streams", what, value, min(pairs), max(pairs), "x", bound)


def _speed_up(graph: Graph, streams: Streams) -> Row:
    """Return the time with one stream over the time with a setting."""
    several, one, taken = _compare(graph, "cpu:0", streams)
    pairs = [a / b for a, b in zip(one, several, strict=True)]
    what = f"cpu:0, {graph.name}: sequential / {streams} ({taken} streams)"
    return Row("streams", what, best(one) / best(several), min(pairs), max(pairs), "x", ">= 1.7")


def _compare(graph: Graph, device: str, streams: Streams) -> tuple[list[float], list[float], int]:
    """Run a graph in turn with a setting and with one stream; return both times, and streams."""
    inputs, weights = data_of(graph)
    base = Settings(rates="off")
    with (
        Scheduler([device], weights=weights, settings=replace(base, streams=streams)) as several,
        Scheduler([device], weights=weights, settings=replace(base, streams=1)) as one,
    ):
        plan = several.plan(graph)
        began = time.perf_counter()
        for scheduler in (several, one, one):
            scheduler.run(graph, inputs)
        each = (time.perf_counter() - began) / 3
        rounds = max(10, min(400, int(SECONDS / (2 * each))))
        sides: dict[str, Callable[[], None]] = {
            "several": partial(several.run, graph, inputs),  # type: ignore[dict-item]
            "one": partial(one.run, graph, inputs),  # type: ignore[dict-item]
        }
        took = in_turn(sides, rounds)
        return took["several"], took["one"], len(plan.streams.streams)


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
                took = in_turn(sides, 5 if n < 10_000 else 2, time.process_time)
                pairs = [a / b for a, b in zip(took["plan"], took["graphlib"], strict=True)]
                what = f"{graph.name}, {streams} streams forced: plan / graphlib"
                value = best(took["plan"]) / best(took["graphlib"])
                rows.append(Row("streams", what, value, min(pairs), max(pairs), bound="<= 40"))
    return rows
