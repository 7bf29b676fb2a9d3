"""Groups that follow each other in a plan, and devices that make one call of some of them."""

from dataclasses import replace

from hypothesis import strategies as st

from ggsched.passes import make_plan
from ggsched.plan.command import Launch
from ggsched.plan.fusions import Fusion


def launched(plan):
    """Return for each launch its groups, as names and nodes."""
    group_of = {n: f for f in plan.fusions for n in f.nodes}
    found = []
    for command in plan.commands:
        if isinstance(command, Launch):
            own = [group_of.get(s.node, Fusion("", (s.node,))) for s in command.steps]
            ends = [f for s, f in zip(command.steps, own, strict=True) if s.node == f.nodes[-1]]
            found.append([(f.pattern or plan.nodes[f.nodes[0]].op, f.nodes) for f in ends])
    return found


@st.composite
def naming_rows(draw, graph, topology, *args, **options):
    """Draw rows of groups of a plan; return them, and the machine whose devices name them all."""
    names = set()
    for groups in launched(make_plan(graph, topology, *args, **options)):
        at = draw(st.integers(0, len(groups)))
        names.add(", ".join(name for name, _ in groups[at : at + draw(st.integers(2, 5))]))
    devices = tuple(replace(d, neighbours=frozenset(names)) for d in topology.devices)
    return names, replace(topology, devices=devices)
