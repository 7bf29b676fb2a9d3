"""A small graph over two machines, and its plan with every artifact, for tests to break."""

from dataclasses import dataclass

from ggsched.ir import Graph, GraphBuilder
from ggsched.passes.memory.allocate import ReusePolicy, allocate
from ggsched.passes.memory.reuse import Sequential
from ggsched.passes.options import StreamPolicy
from ggsched.passes.order.liveness import liveness
from ggsched.passes.place import Constraints
from ggsched.passes.placement.ggml import place
from ggsched.passes.split import split
from ggsched.passes.streams.assign import assign
from ggsched.plan.bundle import Plan
from ggsched.plan.memory import Life, Memory
from ggsched.plan.placement import Placement
from ggsched.plan.splits import Splits
from ggsched.plan.streams import Streams
from ggsched.topology import CopyPath, Topology
from ggsched.topology.cost import guessed_rates
from ggsched_testing.generators.topologies import ALL_OPS
from ggsched_testing.plan_builder import fake_device
from tests.support.verified_plans import verified_plan

GPU, CPU = 0, 1
PINS = Constraints(homes={"w": GPU, "kv": CPU}, pins={0: GPU, 1: GPU, 2: CPU, 3: GPU})


@dataclass(frozen=True)
class Example:
    graph: Graph
    topology: Topology
    placement: Placement
    splits: Splits
    streams: Streams
    lives: tuple[Life, ...]
    memory: Memory
    plan: Plan


def small_graph() -> Graph:
    """Two nodes on the GPU, a write into a state on the CPU, and one more on the GPU."""
    g = GraphBuilder("small")
    x, w, kv = g.input("x", (4, 8)), g.weight("w", (8, 8)), g.state("kv", (4, 8))
    with g.scope("blk.0"):
        h = g.silu(g.mul_mat(w, x, name="up"))
        kept = g.op("cpy", h, kv, name="keep")
        return g.build(g.add(h, kept, name="out"), kept)


def machine(*, paths: bool = True, **facts: object) -> Topology:
    """A GPU and a CPU; ``facts`` are those of both."""
    devices = (
        fake_device("gpu:0", ops=ALL_OPS, **facts),
        fake_device("cpu:0", ops=ALL_OPS, kind="cpu", is_host=True, **facts),
    )
    if not paths:
        return Topology(devices)
    copies = {(a, b): CopyPath(a, b, GPU) for a, b in ((GPU, CPU), (CPU, GPU))}
    return Topology(devices, copies, {(GPU, CPU): "native", (CPU, GPU): "thread"})


def example(**facts: object) -> Example:
    """Return every artifact of the small graph's plan."""
    graph, topology = small_graph(), machine(**facts)
    placement = place(graph, topology, PINS)
    splits = split(graph, topology, placement)
    timeline = liveness(graph, splits)
    memory = allocate(graph, topology, splits, timeline, ReusePolicy(Sequential(timeline.lives)))
    streams = assign(graph, topology, splits, StreamPolicy(), guessed_rates(topology))
    plan = verified_plan(graph, topology, PINS)
    return Example(graph, topology, placement, splits, streams, timeline.lives, memory, plan)
