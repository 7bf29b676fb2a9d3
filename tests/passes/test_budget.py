"""Memory budgets: the cheapest waits that make a plan fit, each of them named."""

import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

from ggsched.errors import PlanError
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.join import join_graphs
from ggsched.passes import make_plan
from ggsched.passes.options import PlanOptions, StreamPolicy
from ggsched.passes.place import Constraints
from ggsched.plan.command import Barrier, CopyRows, HostSync, Launch, Wait
from ggsched.plan.text import plan_text
from ggsched.sanitize import check_plan
from ggsched_offload.offload import ExpertPolicy
from ggsched_testing.generators.expert_graphs import expert_graph, expert_homes
from ggsched_testing.generators.strategies import graphs, seeds
from ggsched_testing.generators.topologies import constraints, topologies
from tests.passes.machines import device, machine, pinned
from tests.properties.test_end_to_end import run_and_compare
from tests.support.verified_plans import verified_plan

STREAMS = StreamPolicy(4, is_forced=True)
ONE_BYTE = PlanOptions(STREAMS, ((0, 1),))


def compute(plan, index=0):
    return sum(a.nbytes for a in plan.memory.arenas if a.kind == "compute" and a.device == index)


def branches(n=4, length=3, size=1024):
    """Independent chains of one input, then their sum."""
    g = GraphBuilder("branches")
    x = g.input("x", (8, size))
    ends = []
    for _ in range(n):
        y = x
        for _ in range(length):
            y = g.soft_max(y)
        ends.append(g.sum_rows(y))
    total = ends[0]
    for end in ends[1:]:
        total = g.add(total, end)
    return g.build(total)


@pytest.fixture
def gpu():
    return machine(device("gpu:0", max_streams=8))


def least_of(graph, topology, options=ONE_BYTE, wanted=None):
    """What the message says is needed at least."""
    with pytest.raises(PlanError, match="bytes of compute memory") as info:
        make_plan(graph, topology, wanted, options)
    return int(info.value.one_line().split("needs ")[1].split(" bytes")[0].replace(",", ""))


def test_branches_share_bytes_one_after_another(gpu):
    graph = branches()
    free = make_plan(graph, gpu, options=PlanOptions(STREAMS))
    assert not free.trades
    least = least_of(graph, gpu)
    assert least < compute(free)
    sizes, counts = [], []
    for budget in (compute(free), (compute(free) + least) // 2, least):
        plan = verified_plan(graph, gpu, options=PlanOptions(STREAMS, ((0, budget),)))
        assert check_plan(plan).is_clean
        assert compute(plan) <= budget
        sizes.append(compute(plan))
        counts.append(len(plan.trades))
        for trade in plan.trades:
            wait = plan.commands[trade.command]
            assert isinstance(wait, Wait | Barrier | HostSync)
            assert trade.saved_nbytes == wait.hazard.end - wait.hazard.start > 0
            assert trade.cost_s > 0
    assert counts[0] == 0 < counts[1] <= counts[2]
    assert sizes[0] > sizes[1] >= sizes[2]


def test_nothing_to_trade_on_one_stream(gpu):
    graph = branches()
    plan = make_plan(graph, gpu)
    enough = PlanOptions(memory_budget=((0, compute(plan)),))
    assert make_plan(graph, gpu, options=enough).memory == plan.memory
    little = PlanOptions(memory_budget=((0, compute(plan) - 1),))
    assert least_of(graph, gpu, little) == compute(plan)


def test_each_device_has_its_own():
    graph = branches(2)
    two = machine(device("gpu:0", max_streams=8), device("gpu:1", max_streams=8))
    wanted = pinned(*(i % 2 for i in range(len(graph.nodes))))
    free = make_plan(graph, two, wanted, PlanOptions(STREAMS))
    least = least_of(graph, two, ONE_BYTE, wanted)
    plan = verified_plan(graph, two, wanted, PlanOptions(STREAMS, ((0, least),)))
    assert compute(plan) <= least
    assert compute(plan, 1) == compute(free, 1)


@pytest.mark.parametrize("cache_nbytes", [0, 1 << 16])
@pytest.mark.parametrize("ring", [1, 2])
def test_rows_of_experts_count_as_steps(ring, cache_nbytes):
    """Copies of rows are steps like all transfers: they have times, and may be waited for."""
    graph = join_graphs([expert_graph(3, tokens=4)] * 2).graph
    two = machine(device("gpu:0", max_streams=8), device("cpu:0", is_host=True))
    policy = ExpertPolicy("on", ring, cache_nbytes)
    wanted = Constraints(expert_homes(graph, here=1, there=0), offload=policy)
    free = make_plan(graph, two, wanted, PlanOptions(STREAMS))
    assert any(isinstance(c, CopyRows) for c in free.commands)
    least = least_of(graph, two, ONE_BYTE, wanted)
    assert least < compute(free)
    plan = verified_plan(graph, two, wanted, PlanOptions(STREAMS, ((0, least),)))
    assert compute(plan) <= least
    assert check_plan(plan).is_clean
    ends = [
        {type(plan.commands[i]) for i in (hazard.earlier, hazard.later)}
        for hazard in (plan.commands[t.command].hazard for t in plan.trades)
    ]
    assert ends == [{Launch}], "what waits for rows waits for data"


@given(
    drawn=graphs(max_nodes=24, min_nodes=6),
    topology=topologies(events=True, max_streams=8),
    data=st.data(),
    seed=seeds(),
)
def test_whatever_the_budget(drawn, topology, data, seed):
    wanted = data.draw(constraints(drawn.graph, topology, clears=True))
    free = make_plan(drawn.graph, topology, wanted, PlanOptions(STREAMS))
    used = {d: compute(free, d) for d in range(len(topology.devices))}
    chosen = data.draw(st.sampled_from(sorted(used)))
    assume(used[chosen])
    budget = data.draw(st.integers(used[chosen] // 2, used[chosen]))
    options = PlanOptions(STREAMS, ((chosen, budget),))
    try:
        plan = verified_plan(drawn.graph, topology, wanted, options)
    except PlanError:
        event("too little")
        return
    event(f"trades: {min(3, len(plan.trades))}")
    assert compute(plan, chosen) <= budget
    assert check_plan(plan).is_clean, plan_text(plan, verbose=True)
    run_and_compare(drawn, topology, plan, seed)
