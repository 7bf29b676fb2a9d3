"""Parts of plans in every order: one result, that of the nodes; and what breaks them is seen."""

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ggsched.passes import make_plan
from ggsched_cluster.check_parts import check_parts
from ggsched_cluster.machines import cut_by_machine
from ggsched_testing.explore import PartsProgram, explore, replay
from ggsched_testing.generators.strategies import graphs, values_for
from ggsched_testing.generators.topologies import constraints, topologies
from tests.cluster.machines import apart
from tests.cluster.test_cut import machine_of_two, the_parts, there_and_back
from tests.properties.test_parts import drop_messages, drop_the_wait, receive_last, send_first

RUNS = 2
EXAMPLES = max(5, settings().max_examples // 8)


@st.composite
def programs(draw):
    """A small plan over two machines, its parts, and what makes a program of such parts."""
    drawn = draw(graphs(max_nodes=6, min_nodes=2))
    topology = draw(topologies(min_devices=2, max_devices=2))
    machines = [0, 1]
    topology = apart(topology, machines)
    wanted = draw(constraints(drawn.graph, topology, pin_all=True))
    plan = make_plan(drawn.graph, topology, wanted)
    values = [values_for(drawn, run) for run in range(RUNS)]

    def program(parts):
        return PartsProgram(drawn.graph, plan, parts, machines, values, topology=topology)

    return plan, cut_by_machine(plan, machines), program


@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
@given(made=programs())
def test_all_orders_give_what_the_nodes_give(made):
    _, parts, program = made
    found = explore(program(parts), limit=200)
    assert found.is_deterministic, found.to_text()
    assert found.outcomes[0].observation == program(parts).expected()


@pytest.mark.parametrize("mutate", [drop_messages, drop_the_wait, receive_last, send_first])
@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
@given(made=programs())
def test_what_the_checker_calls_clean_is_so_in_all_orders(mutate, made):
    """And what the explorer sees of broken parts, the checker has found."""
    plan, parts, program = made
    mutants = list(mutate(parts))
    assume(mutants)
    for mutant in mutants[:2]:
        found = explore(program(mutant), limit=50, stop_at=2)
        expected = program(mutant).expected()
        if not found.is_deterministic or found.outcomes[0].observation != expected:
            assert not check_parts(plan, mutant, [0, 1]).is_clean, found.to_text()
            other = found.outcomes[-1]
            assert replay(other.token, program(mutant)) == other.observation


@pytest.mark.parametrize("mutate", [drop_messages, drop_the_wait, send_first])
def test_a_broken_message_is_seen(mutate):
    graph, topology = there_and_back(), machine_of_two()
    plan, parts = the_parts()
    x = np.arange(32, dtype=np.float32).reshape(4, 8) / 16
    values = [{"x": x}, {"x": -x}]

    def found(parts):
        program = PartsProgram(graph, plan, parts, [0, 1], values, topology=topology)
        return explore(program, stop_at=2), program.expected()

    good, expected = found(parts)
    assert good.is_complete
    assert [o.observation for o in good.outcomes] == [expected]
    for mutant in mutate(parts):
        bad, _ = found(mutant)
        assert [o.observation for o in bad.outcomes] != [expected]
