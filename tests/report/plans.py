"""Timelines of several sizes for the page: a demo, a pipeline, a plan of 20,000 commands."""

import msgspec
import numpy as np

from ggsched.config import Settings
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.tensor import Role
from ggsched.passes.pipeline import make_plan
from ggsched.passes.place import Constraints
from ggsched.report.predicted_timeline import described
from ggsched.scheduler import Scheduler
from ggsched.topology.cost import guessed_rates
from ggsched.topology.model import CopyPath, Topology
from ggsched.trace.recorder import Recorder
from ggsched.trace.timeline import TimedRun
from ggsched_commands.expected_trace import expected_timeline
from ggsched_testing.plan_builder import fake_device
from ggsched_testing.sim import SIM_OPS, Costs, SimConfig, SimWorld
from tests.trace.timelines import launch, timeline

WIDTH = 64
SLOW = Costs(flops_per_s=2e8, memory_bytes_per_s=1e9, copy_bytes_per_s=2e9)


def batches_through_stages(stages, batches, layers=3):
    """Return a graph with a chain of nodes for each micro-batch, and pins by stage."""
    g = GraphBuilder(f"{batches} micro-batches, {stages} stages")
    weights = {
        (stage, layer): g.weight(f"w{stage}.{layer}", (WIDTH, WIDTH))
        for stage in range(stages)
        for layer in range(layers)
    }
    pins, outputs, node = {}, [], 0
    for batch in range(batches):
        value = g.input(f"x@{batch}", (8, WIDTH))
        for stage in range(stages):
            for layer in range(layers):
                weight = weights[stage, layer]
                value = g.mul_mat(weight, value, name=f"b{batch}.s{stage}.l{layer}")
                pins[node] = stage
                node += 1
        outputs.append(value)
    return g.build(*outputs), Constraints(pins=pins)


def pipeline_trace(stages=8, batches=16):
    """Return the trace of micro-batches that go through simulated devices."""
    graph, constraints = batches_through_stages(stages, batches)
    recorder = Recorder()
    world = SimWorld([SimConfig(costs=SLOW) for _ in range(stages)])
    weights = {
        t.name: np.zeros(t.shape, np.float32) for t in graph.tensors if t.role is Role.WEIGHT
    }
    inputs = {f"x@{b}": np.zeros((8, WIDTH), np.float32) for b in range(batches)}
    with Scheduler(
        world.open_all(), weights=weights, settings=Settings(), recorder=recorder
    ) as scheduler:
        scheduler.run(graph, inputs, constraints)
    return recorder.trace(f"{stages} simulated devices, {batches} micro-batches")


def gpus(count):
    """Return a machine that nobody owns."""
    facts = tuple(
        fake_device(f"gpu:{i}", memory_nbytes=1 << 34, alignment=256, ops=SIM_OPS)
        for i in range(count)
    )
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    return Topology(
        facts, {(a, b): CopyPath(a, b, a) for a, b in pairs}, dict.fromkeys(pairs, "native")
    )


def expected_of(graph, constraints, topology):
    """Return the timeline that is expected of a plan, and what is expected."""
    plan = make_plan(graph, topology, constraints)
    traced = described(graph, plan, guessed_rates(topology))
    return expected_timeline(plan, traced.expected), traced


def large_timeline(commands=20_000, devices=4):
    """Return the expected timeline of a plan with about a number of commands."""
    graph, constraints = batches_through_stages(devices, commands // (4 * devices), layers=2)
    return expected_of(graph, constraints, gpus(devices))


def runs_of(*bounds, before=()):
    """Return a timeline with a launch of half a run in each run, and launches before all runs."""
    halves = [(start, (start + end) / 2) for _, start, end in bounds]
    made = timeline(*(launch(1, *span) for span in (*before, *halves)))
    spans = tuple(msgspec.structs.replace(s, run=max(-1, s.id - len(before))) for s in made.spans)
    return msgspec.structs.replace(
        made, spans=spans, runs=tuple(TimedRun(*bound) for bound in bounds)
    )
