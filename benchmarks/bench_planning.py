"""Planning over two devices, against ``graphlib.TopologicalSorter`` ordering the same graph.

The graphs are those of the baseline document: a chain, and a row of diamonds (q, k, v from x, then
their sum), of 2,000 and 20,000 tiny nodes. The device changes every 10 nodes, and, as the worst
case, at every node, where each node needs a launch, a copy, a record and a wait of its own. Two
devices are as concurrent as two streams, so what may share bytes depends on the data flow too.

Prompts of 64 and of 8 micro-batches of a llama over two GPUs, in one batch: plans are made for each
size of the KV cache, not for each micro-batch, and checked.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from graphlib import TopologicalSorter
from typing import Any

from benchmarks.measure import interleaved, ratio
from benchmarks.table import Row
from ggsched.backend.offline_device import paper_devices
from ggsched.ir import Graph
from ggsched.ir.dtype import BF16
from ggsched.passes import Constraints, make_plan
from ggsched.sanitize import check_plan
from ggsched.topology import CopyPath, Topology
from ggsched.topology.model import WaitPath
from ggsched_llm.load import Model
from ggsched_llm.session import Session, SessionOptions
from tests.support.model_mixes import device_facts, topology
from tests.support.shapes import LLAMA_8B, spec_of
from tests.support.stream_graphs import chain, diamonds

ROUNDS, UBATCH = 5, 512


def order(graph: Graph) -> None:
    """Order the graph's nodes with graphlib."""
    sorter: TopologicalSorter[int] = TopologicalSorter()
    producer: dict[int, int] = {}
    for node in graph.nodes:
        sorter.add(node.id, *(producer[t] for t in node.inputs if t in producer))
        producer[node.output] = node.id
    for _ in sorter.static_order():
        pass


def prompt(parts: int) -> None:
    """Make all plans of a prompt of so many micro-batches, as ``ggsched plan --memory`` does."""
    devices = tuple(device_facts(f"gpu:{i}", "gpu") for i in range(2))
    copies = {(0, 1): CopyPath(0, 1, 0), (1, 0): CopyPath(1, 0, 1)}
    waits: dict[tuple[int, int], WaitPath] = {(0, 1): "native", (1, 0): "native"}
    machine = Topology(devices, copies, waits)
    nothing: Any = None
    model = Model(nothing, spec_of(replace(LLAMA_8B, n_layer=8), BF16), nothing)
    n = parts * UBATCH
    options = SessionOptions(n_ctx=n, n_batch=n, n_ubatch=UBATCH, pipelining="on")
    with Session(model, paper_devices(machine), options) as session:
        session.memory_need(n, 1)


def run() -> list[Row]:
    """Measure."""
    both = {str(m): partial(prompt, m) for m in (8, 64)}
    took = interleaved(both, 3, time.process_time)  # type: ignore[arg-type]
    what = "plans of a prompt of 64 micro-batches / of 8"
    rows = [Row("planning", what, *ratio(took["64"], took["8"]), bound="<= 4")]
    machine = topology()
    for make in (chain, diamonds):
        for n in (2_000, 20_000):
            graph = make(n)
            _ = graph.digest  # made once with the graph, whoever plans it
            for every in (10, 1):
                pins = Constraints(pins={i: (i // every) % 2 for i in range(len(graph.nodes))})
                sides: dict[str, Callable[[], None]] = {
                    "plan": partial(make_plan, graph, machine, pins),  # type: ignore[dict-item]
                    "graphlib": partial(order, graph),
                }
                plan = make_plan(graph, machine, pins)
                if every == 10:
                    sides["check"] = partial(check_plan, plan)  # type: ignore[dict-item]
                took = interleaved(sides, ROUNDS if n < 10_000 else 3, time.process_time)
                what = f"{graph.name}, switch every {every}: plan / graphlib"
                rows.append(
                    Row("planning", what, *ratio(took["plan"], took["graphlib"]), bound="<= 20")
                )
                if every == 10:
                    what = f"{graph.name}, switch every {every}: sanitizer / plan"
                    bound = "<= 0.6" if n == 2_000 else ""
                    rows.append(
                        Row("planning", what, *ratio(took["check"], took["plan"]), bound=bound)
                    )
    return rows
