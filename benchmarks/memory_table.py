"""Memory of intermediate results of a step on a GPU: ours, bounds, ggml's way, no sharing.

``python -m benchmarks.memory_table`` prints a table in Markdown.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.stretched import stretched_nbytes, unshared_nbytes
from benchmarks.table import Row
from ggsched.ir.graph import Graph
from ggsched.passes import Constraints, make_plan
from ggsched.passes.options import PlanOptions, StreamPolicy
from ggsched.passes.pipeline import make_schedule
from ggsched.plan.bundle import Plan
from ggsched.topology.model import Topology
from tests.support.model_mixes import large_models, large_spec, mix
from tests.support.transformers import model_graph

STREAMS = 4
SHAPES = ((1, 256), (1, 4096), (512, 512), (512, 2048))
"""Tokens of a micro-batch, and rows of the cache that it looks at."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of the compute arena of one graph.

    Attributes:
        name: Of the graph.
        sequential: One stream.
        sequential_bound: Most that lives at once.
        concurrent: Several streams wherever nodes are independent.
        concurrent_bound: Heaviest set of values that may live together.
        stretched: Several streams the way ggml does it.
        unshared: Without any sharing.
        streams: Streams that are used.
    """

    name: str
    sequential: int
    sequential_bound: int
    concurrent: int
    concurrent_bound: int
    stretched: int
    unshared: int
    streams: int


def measure() -> Iterator[Memory]:
    """Plan each model for each shape."""
    for hparams in large_models():
        machine, wanted = mix("gpu", large_spec(hparams))
        for n_tokens, n_kv in SHAPES:
            graph = model_graph(hparams, n_tokens, n_kv)
            name = f"{hparams.name}, {hparams.n_layer} layers, {n_tokens} of {n_kv}"
            yield memory_of(name, graph, machine, wanted)


def memory_of(name: str, graph: Graph, machine: Topology, wanted: Constraints) -> Memory:
    """Return the bytes that a graph takes on the first device of a machine."""
    policy = StreamPolicy(STREAMS, is_forced=True)
    alone = make_plan(graph, machine, wanted, PlanOptions(fuse=False))
    beside = make_plan(graph, machine, wanted, PlanOptions(policy, fuse=False))
    schedule = make_schedule(graph, machine, wanted, PlanOptions(policy, fuse=False))
    return Memory(
        name,
        *_arena(alone),
        *_arena(beside),
        stretched_nbytes(schedule, 0, alone.memory.overwrites),
        unshared_nbytes(schedule, 0),
        len(beside.streams.streams),
    )


def rows() -> list[Row]:
    """Return the ratios to the bounds, and of ours to the other ways."""
    found = list(measure())
    ratios = {
        ("sequential: bytes / bound", "<= 1.02"): [
            m.sequential / m.sequential_bound for m in found
        ],
        (f"{STREAMS} streams: bytes / concurrent bound", "<= 1.05"): [
            m.concurrent / m.concurrent_bound for m in found
        ],
        (f"{STREAMS} streams: bytes / ggml's way", "<= 1"): [
            m.concurrent / m.stretched for m in found
        ],
        (f"{STREAMS} streams: bytes / one stream", ""): [
            m.concurrent / m.sequential for m in found
        ],
        ("no sharing / one stream", ""): [m.unshared / m.sequential for m in found],
    }
    return [
        Row("streams", f"32 layers, {what}, worst", max(some), min(some), max(some), "x", bound)
        for (what, bound), some in ratios.items()
    ]


def _arena(plan: Plan) -> tuple[int, int]:
    arena = next(a for a in plan.memory.arenas if a.kind == "compute")
    return arena.nbytes, plan.memory.lower_bound[arena.id]


def main() -> int:
    """Print the table."""
    head = "| graph | one stream | bound | 4 streams | concurrent bound | ggml's way | no sharing |"
    lines = [head, "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for m in measure():
        sizes = (m.sequential, m.sequential_bound, m.concurrent, m.concurrent_bound)
        cells = [f"{n / 2**20:.2f}" for n in (*sizes, m.stretched, m.unshared)]
        lines.append(f"| {m.name} | {' | '.join(cells)} |")
    sys.stdout.write("\n".join(lines) + "\n\nMiB.\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
