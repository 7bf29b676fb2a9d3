"""Experts on the CPU beside an OpenCL device: both at once, and experts that move to the device.

Overlap: m micro-batches run as one graph, in turns, so that the CPU computes the experts of one
while the device computes the dense part of another, layer by layer. Of the shorter side's time all
but the first of its l m pieces can lie beside the other's. How much does is read from when the
launches ran, as recorded, which says something on a busy machine too; the ratio of wall times says
what came of it. PoCL and BLAS get one thread each. The smaller the pieces, the more of their time
goes by between an event and its wait on the other device.

Ways: the same layers with their experts computed where their weights lie, with the chosen rows
copied to the device, with rows kept there, and with a ring of two (layers ahead). On PoCL a copy to
the device stays in the same memory, so the link is as fast as memory.
"""

import os
from collections.abc import Callable, Mapping
from functools import partial
from statistics import median
from typing import Any, Final

from benchmarks.measure import interleaved, ratio
from benchmarks.table import Row
from ggsched.config import Settings
from ggsched.errors import BackendUnavailable
from ggsched.ir import Graph, GraphBuilder
from ggsched.ir.join import join_graphs
from ggsched.passes import Constraints
from ggsched.passes.memory.rings import Slots
from ggsched.scheduler import Scheduler
from ggsched.trace.recorder import Recorder
from ggsched.trace.schema import Trace, Work
from ggsched_llm.batches import interleave
from ggsched_offload.offload import ExpertPolicy
from ggsched_testing.generators.expert_graphs import (
    INPUT,
    expert_graph,
    expert_homes,
    expert_values,
)

DEVICES: Final = ("opencl:0", "cpu:0")
BATCHES, LAYERS, ROUNDS = 6, 3, 7
WIDTH, HIDDEN, EXPERTS, USED, DENSE = 512, 1024, 8, 2, 5
TOKENS: Final = {64: "", 192: ">= 0.85"}  # of a micro-batch; pieces of about 1 and 3 ms
WAYS: Final[Mapping[str, ExpertPolicy]] = {
    "here": ExpertPolicy("off"),
    "rows": ExpertPolicy("on", 1),
    "cached rows": ExpertPolicy("on", 1, 1 << 30),
    "ring of 2": ExpertPolicy("on", 2),
}


def run() -> list[Row]:
    """Measure; nothing where there is no OpenCL device."""
    for name in ("POCL_MAX_PTHREAD_COUNT", "POCL_CPU_MAX_CU_COUNT"):
        os.environ.setdefault(name, "1")
    try:
        overlaps = (row for tokens, bound in TOKENS.items() for row in _overlap(tokens, bound))
        return [*overlaps, *(row for tokens in (1, 64) for row in _ways(tokens))]
    except BackendUnavailable:
        return []


def layers(tokens: int) -> Graph:
    """Return layers with experts behind some dense products."""
    g = GraphBuilder("layers")
    x = g.input(INPUT, (tokens, WIDTH))
    for i in range(LAYERS):
        for k in range(DENSE):
            x = g.rms_norm(g.mul_mat(g.weight(f"blk.{i}.dense{k}", (WIDTH, WIDTH)), x))
        ids = g.top_k(g.mul_mat(g.weight(f"blk.{i}.router", (EXPERTS, WIDTH)), x), USED)
        up = g.weight(f"blk.{i}.ffn_up_exps.weight", (EXPERTS, HIDDEN, WIDTH))
        down = g.weight(f"blk.{i}.ffn_down_exps.weight", (EXPERTS, WIDTH, HIDDEN))
        hidden = g.silu(g.mul_mat_id(up, g.reshape(x, -1, 1, WIDTH), ids))
        out = g.sum_rows(g.permute(g.mul_mat_id(down, hidden, ids), 0, 2, 1))
        x = g.reshape(out, -1, WIDTH)
    return g.build(x)


def _overlap(tokens: int, bound: str) -> list[Row]:
    both = layers(tokens)
    values = expert_values(both, 0)
    where = Constraints(expert_homes(both, here=1, there=0))
    joined = join_graphs([both] * BATCHES)
    inputs = {joined.input_name(k, INPUT): values[INPUT] for k in range(BATCHES)}
    wanted = where.with_slots(Slots(2, joined.firsts))
    recorder = Recorder()
    settings = Settings(streams=1)
    with Scheduler(DEVICES, weights=values, settings=settings) as scheduler:
        turned = interleave(joined, scheduler.plan(joined.graph, wanted)) or joined
        sides = {
            "together": partial(scheduler.run, turned.graph, inputs, wanted),
            "apart": partial(
                _times, BATCHES, partial(scheduler.run, both, {INPUT: values[INPUT]}, where)
            ),
        }
        took = interleaved(sides, ROUNDS)  # type: ignore[arg-type]
    with Scheduler(DEVICES, weights=values, settings=settings, recorder=recorder) as scheduler:
        for _ in range(ROUNDS + 1):
            scheduler.run(turned.graph, inputs, wanted)
    shares = _overlapped(recorder.trace("overlap"))[1:]
    possible = 1 - 1 / (BATCHES * LAYERS)
    name = f"CPU experts beside OpenCL, {BATCHES} micro-batches of {tokens}"
    low, middle, high = min(shares), median(shares), max(shares)
    return [
        Row("moe", f"{name}: overlapped share of the shorter side", middle, low, high, ""),
        Row(
            "moe",
            f"{name}: overlapped / what can overlap",
            *(share / possible for share in (middle, low, high)),
            bound=bound,
        ),
        Row(
            "moe", f"{name}: one after another / together", *ratio(took["apart"], took["together"])
        ),
    ]


def _overlapped(trace: Trace) -> list[float]:
    """Return for each run the share of the less busy device's time in which both are busy."""
    shares = []
    for run in trace.runs:
        spans: dict[str, list[tuple[float, float]]] = {device: [] for device in DEVICES}
        for entry in trace.entries[run.first : run.end]:
            if isinstance(entry, Work) and not entry.is_copy:
                device = trace.actors[entry.actor].device
                if device and entry.start_s is not None and entry.end_s is not None:
                    spans[device].append((entry.start_s, entry.end_s))
        one, other = (_union(side) for side in spans.values())
        common = sum(
            max(0.0, min(a_end, b_end) - max(a, b)) for a, a_end in one for b, b_end in other
        )
        shorter = min(sum(end - start for start, end in side) for side in (one, other))
        shares.append(common / shorter)
    return shares


def _union(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    merged: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def _times(count: int, call: Callable[[], Any]) -> None:
    for _ in range(count):
        call()


def _ways(tokens: int) -> list[Row]:
    graph = expert_graph(4, tokens=tokens, experts=32, used=4, width=256, hidden=512)
    values = expert_values(graph, 0)
    homes = expert_homes(graph, here=1, there=0)
    used: dict[str, tuple[int, int]] = {}
    schedulers = {way: Scheduler(DEVICES, weights=values) for way in WAYS}
    try:
        sides = {
            way: partial(
                scheduler.run, graph, {INPUT: values[INPUT]}, Constraints(homes, offload=WAYS[way])
            )
            for way, scheduler in schedulers.items()
        }
        took = interleaved(sides, ROUNDS)  # type: ignore[arg-type]
        for way, scheduler in schedulers.items():
            total = scheduler.expert_ledger.total
            used[way] = total.uploaded_nbytes, total.layer_nbytes
    finally:
        for scheduler in schedulers.values():
            scheduler.close()
    rows = []
    for way in list(WAYS)[1:]:
        what = f"4 layers of 32 experts, {tokens} tokens: computed here / {way}"
        rows.append(Row("moe", what, *ratio(took["here"], took[way])))
        mib = sum(used[way]) / (ROUNDS + 1) / (1 << 20)
        what = f"4 layers of 32 experts, {tokens} tokens: copied for a run, {way}"
        rows.append(Row("moe", what, mib, mib, mib, "MiB"))
    return rows
