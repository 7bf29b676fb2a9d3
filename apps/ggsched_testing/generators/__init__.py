"""Random graphs, machines and values for property tests.

    @given(graphs(), topologies(), st.data())
    def test_something(drawn, topology, data):
        wanted = data.draw(constraints(drawn.graph, topology))
        values = values_for(drawn, seed=1)

``graphs`` draws graphs of every op with views, states and outputs. ``topologies`` draws machines
with every combination of capabilities and copy paths. ``values_for`` gives each input, weight and
state values for which results can be compared within ``ATOL`` and ``RTOL``.
"""

from ggsched_testing.generators.expert_graphs import expert_graph
from ggsched_testing.generators.strategies import dtypes, graphs, seeds
from ggsched_testing.generators.topologies import constraints, devices, topologies
from ggsched_testing.generators.values import ATOL, RTOL, DrawnGraph, values_for

__all__ = [
    "ATOL",
    "RTOL",
    "DrawnGraph",
    "constraints",
    "devices",
    "dtypes",
    "expert_graph",
    "graphs",
    "seeds",
    "topologies",
    "values_for",
]
