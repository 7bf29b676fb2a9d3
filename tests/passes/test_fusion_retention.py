"""What groups touch of which a device may make one call stays apart until the last has run."""

from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from ggsched.errors import PlanError
from ggsched.ir.builder import GraphBuilder
from ggsched.passes import make_plan
from ggsched.passes.memory.fusion_retention import MAX_NBYTES
from ggsched.passes.options import PlanOptions, StreamPolicy
from ggsched.passes.pipeline import make_schedule
from ggsched.plan.codec import plan_from_json, plan_to_json
from ggsched.plan.stats import plan_stats
from ggsched.plan.text import plan_text
from ggsched.sanitize import check_plan
from ggsched_testing.generators.strategies import graphs
from ggsched_testing.generators.topologies import topologies
from tests.passes.machines import device, machine
from tests.passes.rows import launched, naming_rows
from tests.support.verified_plans import verified_plan

ROW = "rms_norm, silu, mul_mat"


def chain(count=64):
    """Return a graph in which what the norm reads is dead where the product is written."""
    g = GraphBuilder("chain")
    x, w = g.input("x", (1, count)), g.weight("w", (64, count))
    raw = g.scale(x, 2.0, name="raw")
    normed = g.rms_norm(raw, name="normed")
    y = g.silu(normed, name="y")
    product = g.mul_mat(w, y, name="product")
    return g.build(g.add(product, g.silu(product), name="last"))


def planned(graph, *names, **options):
    facts = device("gpu:0", neighbours=frozenset(names))
    plan = verified_plan(graph, machine(facts), options=PlanOptions(**options))
    assert check_plan(plan).is_clean
    return plan


def compute_nbytes(plan):
    return sum(a.nbytes for a in plan.memory.arenas if a.kind == "compute")


def in_the_way(plan, nodes):
    """Return (group, value, group, value): the first writes its value where the other one is.

    Groups that touch one value are in each other's way whatever memory is like.
    """
    bindings, regions = plan.splits.bindings, plan.memory.regions
    found = []
    for group, other in permutations(nodes, 2):
        written, touched = bindings[group[-1]][-1], {v for n in other for v in bindings[n]}
        for v in touched if written not in touched else ():
            a, b = regions[written], regions[v]
            if a.arena == b.arena and max(a.offset, b.offset) < min(a.end, b.end):
                found.append((group, written, other, v))
    return found


def test_nothing_is_laid_on_what_neighbours_touch():
    graph = chain()
    nodes = [(1,), (2,), (3,)]
    assert in_the_way(planned(graph), nodes), "or this shows nothing"
    assert not in_the_way(planned(graph, ROW), nodes)


@pytest.mark.parametrize("names", ["", ",", "silu, rms_norm", "rms_norm", "rms_norm, fly", "a, b"])
def test_what_is_not_there_changes_nothing(names):
    graph = chain()
    assert planned(graph, names).memory == planned(graph).memory


def test_what_others_read_takes_over_nothing():
    """Each part of a call computes it for itself, perhaps when another one has written it."""
    graph = chain()
    raw, normed, y = (planned(graph).splits.bindings[k][-1] for k in range(3))
    assert planned(graph).memory.overwrites[normed] == raw, "or this shows nothing"
    overwrites = planned(graph, ROW).memory.overwrites
    assert normed not in overwrites, "the next one reads it"
    assert y not in overwrites, "and this one, too"
    assert planned(graph, "silu, rms_norm").memory.overwrites[normed] == raw


def test_what_is_large_is_not_kept():
    count = MAX_NBYTES // 4 + 64
    assert planned(chain(count), ROW).memory == planned(chain(count)).memory


def test_a_budget_counts_for_more():
    graph = chain()
    least, kept = planned(graph), planned(graph, ROW)
    most = compute_nbytes(least)
    assert most < compute_nbytes(kept)
    within = planned(graph, ROW, memory_budget=((0, most),))
    assert within.memory == least.memory
    enough = planned(graph, ROW, memory_budget=((0, compute_nbytes(kept)),))
    assert enough.memory == kept.memory
    with pytest.raises(PlanError, match="needs"):
        planned(graph, ROW, memory_budget=((0, most - 1),))


def test_both_bounds_are_stated():
    """The lower bound is one for every packing; hints keep no bytes live."""
    graph = chain()
    free, kept = planned(graph), planned(graph, ROW)
    ((arena, nbytes),) = [(a.id, a.nbytes) for a in kept.memory.arenas if a.kind == "compute"]
    assert kept.memory.lower_bound == free.memory.lower_bound
    assert free.memory.lower_bound[arena] == compute_nbytes(free) < nbytes
    assert free.memory.hinted_bound == {}
    assert kept.memory.hinted_bound == {arena: nbytes}
    assert "1.0 KiB, live at once 512 B, 1.0 KiB with retention hints" in plan_text(kept)
    stats = plan_stats(kept)
    assert (stats.lower_bound, stats.hinted_bound) == ({"gpu:0": 512}, {"gpu:0": 1024})
    assert plan_stats(free).hinted_bound == plan_stats(free).lower_bound


@given(data=st.data(), drawn=graphs(max_nodes=20, chains=True))
def test_hints_do_not_raise_the_lower_bound(data, drawn):
    limit = data.draw(st.sampled_from((1, 1, 3)))
    options = PlanOptions(StreamPolicy(limit, is_forced=limit > 1))
    machines = topologies(max_devices=2, max_streams=4, fusions=True)
    _, topology = data.draw(naming_rows(drawn.graph, data.draw(machines), options=options))
    devices = tuple(replace(d, neighbours=frozenset()) for d in topology.devices)
    free = make_plan(drawn.graph, replace(topology, devices=devices), options=options)
    kept = verified_plan(drawn.graph, topology, options=options)
    # On several lanes the bound without hints is that of program order, which is weaker.
    is_sequential = make_schedule(drawn.graph, topology, options=options).order.is_sequential
    event(f"hints cost bytes: {bool(kept.memory.hinted_bound)}")
    for arena, least in kept.memory.lower_bound.items():
        assert least <= free.memory.lower_bound[arena]
        assert least == free.memory.lower_bound[arena] or not is_sequential
        assert least < kept.memory.hinted_bound.get(arena, least + 1)
        assert kept.memory.hinted_bound.get(arena, 0) <= kept.memory.arenas[arena].nbytes


def test_another_declaration_is_another_machine():
    ours, theirs = (machine(device("gpu:0", neighbours=frozenset(n))) for n in ((ROW,), ()))
    assert ours.digest != theirs.digest
    assert "neighbours" not in theirs.to_json()["devices"][0], "as before there were any"
    plan = planned(chain(), ROW)
    assert plan_from_json(plan_to_json(plan)) == plan


@st.composite
def with_neighbours(draw):
    """Draw a graph, and a plan of devices that name some of the rows that are in it."""
    drawn = draw(graphs(max_nodes=20, chains=True))
    topology = draw(topologies(max_devices=2, max_streams=4, fusions=True))
    limit = draw(st.sampled_from((1, 1, 2, 3)))
    options = PlanOptions(StreamPolicy(limit, is_forced=limit > 1))
    names, topology = draw(naming_rows(drawn.graph, topology, options=options))
    return names, verified_plan(drawn.graph, topology, options=options)


@given(made=with_neighbours())
def test_wherever_they_are(made):
    names, plan = made
    assert check_plan(plan).is_clean
    count = 0
    for groups in launched(plan):
        for row in (name.split(", ") for name in names):
            for at in range(len(groups) - len(row) + 1):
                some = groups[at : at + len(row)]
                if len(row) > 1 and [name for name, _ in some] == row:
                    count += 1
                    assert not in_the_way(plan, [nodes for _, nodes in some])
    event(f"rows: {min(count, 3)}")
