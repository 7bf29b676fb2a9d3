"""What is expected of a plan: when its commands should run, by the cost model."""

from contextlib import AbstractContextManager

from ggsched.ir.graph import Graph
from ggsched.passes.cost.predict import predict_step
from ggsched.passes.cost.work_size import node_cost
from ggsched.plan.bundle import Plan
from ggsched.topology.cost import MachineRates, guessed_rates
from ggsched.topology.model import Topology
from ggsched.trace.recorder import Recorder
from ggsched.trace.schema import Expected, TracedPlan


def described(graph: Graph, plan: Plan, rates: MachineRates) -> TracedPlan:
    """Return a plan with what the cost model expects of one run of it.

    Args:
        graph: The graph that the plan was made of.
        rates: Of the plan's devices.
    """
    prediction = predict_step(graph, plan, rates)
    spans = prediction.timeline.spans
    begin = min((s.start_s for s in spans), default=0.0) - rates.enqueue_s
    expected = tuple(
        Expected(s.command, round(s.start_s - begin, 9), round(s.end_s - begin, 9)) for s in spans
    )
    choices = zip(graph.nodes, plan.placement.choices, strict=True)
    nodes = tuple(node_cost(rates.devices[choice.device], graph, n) for n, choice in choices)
    return TracedPlan(plan, expected, prediction.source, nodes)


def recorded_run(
    recorder: Recorder,
    graph: Graph,
    plan: Plan,
    topology: Topology,
    rates: MachineRates | None,
) -> AbstractContextManager[None]:
    """Return a context in which one run of a plan is recorded.

    Args:
        recorder: Records it.
        graph: The graph that the plan was made of.
        rates: Of its devices; guesses if not given.
    """
    known = rates or guessed_rates(topology)
    return recorder.run_of(plan, lambda plan: described(graph, plan, known))
