"""A race is created, found statically, shown to change results, shrunk, and replayed.

A plan waits where two devices access the same bytes. One wait is removed. The sanitizer finds the
race from the command list alone. The explorer runs the plan on simulated devices in the orders that
the contract allows. For each result it returns a simple order that leads to it, with a token that
repeats it.
"""

import numpy as np

from ggsched import GraphBuilder
from ggsched.backend.probe import probe
from ggsched.passes import Constraints, make_plan
from ggsched.sanitize import check_plan
from ggsched_testing.explore import PlanProgram, explore, replay
from ggsched_testing.plan_mutants import drop_waits
from ggsched_testing.sim import SimConfig, SimWorld


def two_devices():
    """Return a graph whose halves live on two devices, and its plan."""
    g = GraphBuilder("hand over")
    h = g.silu(g.add(g.input("x", (4,)), g.weight("a", (4,))))
    graph = g.build(g.add(h, g.weight("b", (4,))))
    topology = probe(SimWorld([SimConfig(), SimConfig()]).open_all())
    plan = make_plan(graph, topology, Constraints(homes={"a": 0, "b": 1}))
    return graph, topology, plan


def main():
    graph, topology, plan = two_devices()
    weights = {"a": np.full(4, 2, np.float32), "b": np.full(4, 3, np.float32)}
    runs = [{"x": np.full(4, k, np.float32), **weights} for k in (1, 5)]
    sound = explore(PlanProgram(graph, plan, runs, topology=topology))
    print(f"the plan: {sound.schedules} execution(s), {len(sound.outcomes)} result(s)")

    # Created: the first plan with one wait removed.
    what, broken = next(iter(drop_waits(plan)))
    print(f"planted: {what}")

    # Found, by a program that shares no code with the planner.
    report = check_plan(broken)
    print(f"found: {report.findings[0].what}")
    print(f"  {report.findings[0].fix}")

    # Shrunk: the order with the fewest deviations from the usual one that changes the result.
    program = PlanProgram(graph, broken, runs, topology=topology)
    found = explore(program, stop_at=2)
    odd = next(o for o in found.outcomes if o.observation != program.expected())
    print(f"explored: {len(found.outcomes)} results in {found.schedules} executions")
    print(f"shrunk: {odd.deviations} departure(s) from the usual order, {len(odd.steps)} steps")
    print(f"differs: {', '.join(odd.observation.differences(program.expected()))}")

    # Replayed: the token repeats exactly that order.
    again = replay(odd.token, program)
    print(f"replayed {odd.token}: the same wrong result: {again == odd.observation}")


if __name__ == "__main__":
    main()
