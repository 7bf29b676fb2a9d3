"""Two machines that are processes of this host, against one process with two devices.

A chain of nodes changes the device with each node, so that 16 KiB cross each time. Chains of two
lengths separate the cost of one crossing from that of a run. In prefill two stages of products are
on two machines with a thread each, between the rows of an embedding and the logits of the last
token: for how much of the time these threads have work to do. A pipeline of m micro-batches over
two can reach 2 m / (m + 1): 1.88 with 16, 1.94 with 32. llama.cpp's RPC backend, on loopback: 82
to 174 us a split on the same host (``llama_cpp/rpc_split.cpp``), and 1.32 of 2.0 on another day.

A run is an affair of many threads in three processes, so a busy machine shows in most of them.
Figures are of the best of many runs; the range goes from there to the median.
"""

from dataclasses import replace
from functools import partial
from os import environ
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np

from benchmarks.bench_pipeline import LAYERS, STAGES, TOKENS, WIDTH, homes
from benchmarks.measure import interleaved
from benchmarks.table import Row
from ggsched.backend.protocols import Device
from ggsched.config import Settings
from ggsched.ir import Graph, GraphBuilder
from ggsched.ir.join import join_graphs
from ggsched.ir.tensor import Role
from ggsched.passes import Constraints
from ggsched.passes.memory.rings import Slots
from ggsched.run.release import close_all
from ggsched.scheduler import Scheduler
from ggsched_cluster.local import LocalMember, local_start
from ggsched_cluster.remote_devices import open_group

ELEMENTS = 4096
SHORT, LONG, CHAINS = 3, 67, 400
BATCHES, PREFILLS, VOCABULARY = (16, 32), 40, 4096
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


def _model() -> Graph:
    """Return two stages that begin with tokens and end with the logits of the last one."""
    g = GraphBuilder("two stages")
    shape = VOCABULARY, WIDTH
    x = g.get_rows(g.weight("embedding", shape), g.input("tokens", (TOKENS,), "i32"))
    for k in range(STAGES * LAYERS):
        x = g.rms_norm(g.mul_mat(g.weight(f"w{k}", (WIDTH, WIDTH)), x), name=f"l{k}")
    last = g.view(x, (1, WIDTH), offset=(TOKENS - 1) * WIDTH * 4)
    return g.build(g.mul_mat(g.weight("output", shape), last))


def _prefill(batches: int) -> Row:
    rng, model = np.random.default_rng(1), _model()
    weights = {w.name: rng.standard_normal(w.shape, np.float32) for w in model.roots(Role.WEIGHT)}
    joined = join_graphs([model] * batches)
    tokens = np.arange(TOKENS, dtype=np.int32)
    inputs = {joined.input_name(k, "tokens"): tokens for k in range(batches)}
    stage = {**homes(), "embedding": 0, "output": STAGES - 1}
    where = Constraints(homes=stage).with_slots(Slots(2, joined.firsts))
    start = local_start(("a", "b"), ONE_THREAD)
    members: list[LocalMember] = []

    def started(token: bytes) -> list[LocalMember]:
        members.extend(start.members(token))  # type: ignore[arg-type]
        return members

    pair = open_group(replace(start, members=started), backends=("cpu",))
    shares = []
    try:
        with Scheduler(pair, weights=weights, settings=Settings(streams=1)) as scheduler:
            for _ in range(PREFILLS):
                before, began = [_ready_s(m) for m in members], perf_counter()
                scheduler.run(joined.graph, inputs, where)
                took, after = perf_counter() - began, [_ready_s(m) for m in members]
                shares.append(sum(map(_busiest, before, after)) / took)
    finally:
        close_all(pair)
    most = max(shares[1:])
    what = f"prefill, {batches} micro-batches of {TOKENS * WIDTH * 4 >> 10} KiB: machines at work"
    return Row("cluster", what, most, median(shares[1:]), most, "of 2", ">= 1.7")


def _ready_s(member: LocalMember) -> dict[str, float]:
    """Return the seconds that each thread of a machine has run or waited for a processor.

    Linux counts both, so that others on the processors do not make a thread look idle.
    """
    files = Path(f"/proc/{member.process.pid}/task").glob("*/schedstat")
    counts = {file.parent.name: file.read_text(encoding="ascii").split() for file in files}
    return {thread: (int(ran) + int(waited)) / 1e9 for thread, (ran, waited, _) in counts.items()}


def _busiest(before: dict[str, float], after: dict[str, float]) -> float:
    """Return the seconds of the busiest thread: the one that computes."""
    return max(seconds - before.get(thread, 0.0) for thread, seconds in after.items())


def run() -> list[Row]:
    """Measure."""
    environ.setdefault("GGSCHED_THREADS", "1")
    return [*_crossings(), *map(_prefill, BATCHES)]
