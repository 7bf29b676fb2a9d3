"""What is expected of a plan: when its commands should run, by the cost model."""

from ggsched.ir.graph import Graph
from ggsched.passes.predict import predict_step
from ggsched.plan.bundle import Plan
from ggsched.topology.cost import MachineRates
from ggsched.trace.schema import Expected, TracedPlan


def described(graph: Graph, plan: Plan, rates: MachineRates) -> TracedPlan:
    """Return a plan with what the cost model expects of one run of it.

    Args:
        graph: The graph that the plan was made of.
        plan: The plan.
        rates: Of the plan's devices.
    """
    prediction = predict_step(graph, plan, rates)
    spans = prediction.timeline.spans
    begin = min((s.start_s for s in spans), default=0.0) - rates.enqueue_s
    expected = tuple(
        Expected(s.command, round(s.start_s - begin, 9), round(s.end_s - begin, 9)) for s in spans
    )
    return TracedPlan(plan, expected, prediction.source)
