"""Planning time and bytes of intermediate results beside the method of ggml's graph allocator.

Both sides are Python, so times compare methods, not ggml: in C its allocator takes 0.2 to 0.4 us a
node. One GPU that holds everything, one stream, no fusion, alignment 64; what both place are the
inputs and all intermediate results, and both are given when each of them is born and dies. Times
are of the processor. The bound is the most that lives at one step when results take over operands
wherever our ops allow it.
"""

import time
from collections.abc import Iterator
from typing import Final

from benchmarks.measure import best_ratio, interleaved, spread
from benchmarks.peers.gallocr import place, requests_of
from benchmarks.table import Row
from ggsched.ir.graph import Graph
from ggsched.ir.ops import OPS
from ggsched.passes import make_plan
from ggsched.passes.options import PlanOptions
from ggsched.passes.pipeline import make_schedule, plan_memory
from ggsched.plan.bundle import Plan
from ggsched_llm.graph import build_model_graph
from ggsched_llm.load import load_model
from ggsched_llm.spec import ModelSpec
from tests.support.model_mixes import LAYERS, ROOT, large_models, large_spec, mix
from tests.support.transformers import model_graph

SHAPES = ((1, 256), (512, 512), (512, 2048))
"""Tokens of a micro-batch, and rows of the cache that it looks at."""
DEMO = "ggsched/data/addition-moe.gguf"
DEMO_SHAPES = ((1, 32), (32, 32), (32, 64))
ROUNDS = 5
MIB = 1 << 20
OUR_IN_PLACE: Final = frozenset(op.name for op in OPS.values() if op.may_overwrite)


def run() -> list[Row]:
    """Measure."""
    return [row for name, spec, graph in graphs() for row in compare(name, spec, graph)]


def graphs() -> Iterator[tuple[str, ModelSpec, Graph]]:
    """Yield name, model and graph."""
    for hparams in large_models():
        for n_tokens, n_kv in SHAPES:
            name = f"{hparams.name}, {LAYERS} layers, {n_tokens} of {n_kv}"
            yield name, large_spec(hparams), model_graph(hparams, n_tokens, n_kv)
    demo = load_model(ROOT / DEMO).spec
    for n_tokens, n_kv in DEMO_SHAPES:
        graph = build_model_graph(demo, n_tokens=n_tokens, n_kv=n_kv, n_out=1, n_ctx=n_kv)
        yield f"demo model, {n_tokens} of {n_kv}", demo, graph


def compare(name: str, spec: ModelSpec, graph: Graph, rounds: int = ROUNDS) -> list[Row]:
    """Return bytes and times of one graph, ours over theirs."""
    machine, wanted = mix("gpu", spec)
    options = PlanOptions(fuse=False)
    plan = make_plan(graph, machine, wanted, options)
    alignment = machine.devices[0].alignment
    ours, bound = arena(plan)
    requests = requests_of(graph)
    theirs = place(requests, alignment).total
    wider = place(requests_of(graph, OUR_IN_PLACE), alignment).total
    schedule = make_schedule(graph, machine, wanted, options)  # lives are known, to both sides
    took = interleaved(
        {
            "plan": lambda: _discard(make_plan(graph, machine, wanted, options)),
            "memory": lambda: _discard(plan_memory(schedule, schedule.reuse_policy())),
            "ggml's": lambda: _discard(place(requests, alignment)),
        },
        rounds,
        time.process_time,
    )
    n = len(graph.nodes)
    return [
        _fixed(f"{name}: bytes / ggml's way", ours / theirs, "x", "<= 1"),
        _fixed("  ours", ours / MIB, "MiB"),
        _fixed("  ours / bound", ours / bound),
        _fixed("  ggml's way / bound", theirs / bound),
        _fixed("  ggml's way with our ops in place / bound", wider / bound),
        _ratio("  our memory pass / ggml's way, both in Python", took["memory"], took["ggml's"]),
        _each("  our memory pass, a node", took["memory"], n),
        _each("  our whole plan, a node", took["plan"], n),
    ]


def arena(plan: Plan) -> tuple[int, int]:
    """Return bytes of the compute arena, and the bound."""
    (found,) = [a for a in plan.memory.arenas if a.kind == "compute"]
    return found.nbytes, plan.memory.lower_bound[found.id]


def _fixed(what: str, value: float, unit: str = "x", bound: str = "") -> Row:
    """Return a figure that is the same in every round."""
    return Row("memory", what, value, value, value, unit, bound)


def _ratio(what: str, a: list[float], b: list[float]) -> Row:
    return Row("memory", what, *best_ratio(a, b))


def _each(what: str, seconds: list[float], n: int) -> Row:
    return Row("memory", what, *spread(1e6 * s / n for s in seconds), "us")


def _discard(result: object) -> None:
    del result
