"""The passes as a list: synchronisation is planned once, and artifacts are checked in between."""

from dataclasses import FrozenInstanceError, fields, replace

import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from msgspec import structs

from ggsched.errors import PlanError
from ggsched.ir.join import join_graphs
from ggsched.passes.memory.rings import Slots
from ggsched.passes.options import PlanOptions, StreamPolicy
from ggsched.passes.order.hazards import find_hazards
from ggsched.passes.order.sync import SyncPlan, plan_sync
from ggsched.passes.order.work import list_work
from ggsched.passes.pipeline import plan_memory
from ggsched.plan.memory import Life
from ggsched_testing.generators.strategies import graphs
from ggsched_testing.generators.topologies import constraints, topologies
from tests.passes.machines import device, machine, pinned
from tests.passes.test_budget import branches
from tests.support.verified_plans import (
    verified_schedule,
    verify_liveness,
    verify_order,
    verify_sync,
)

STREAMS = PlanOptions(StreamPolicy(4, is_forced=True))


@st.composite
def schedules(draw, is_joined=False):
    """Draw what is decided before memory, on machines of any capabilities."""
    drawn = draw(graphs(max_nodes=24, min_nodes=4, write_inputs=False))
    topology = draw(topologies(events=draw(st.sampled_from((True, None))), max_streams=8))
    joined = join_graphs([drawn.graph] * (draw(st.integers(2, 4)) if is_joined else 1))
    wanted = draw(constraints(joined.graph, topology, pin_all=draw(st.booleans())))
    if is_joined:
        wanted = replace(wanted, slots=Slots(draw(st.integers(1, 2)), joined.firsts))
    streams = StreamPolicy(draw(st.integers(1, 8)), True, has_copy_stream=draw(st.booleans()))
    return verified_schedule(joined.graph, topology, wanted, PlanOptions(streams))


def hazards_of(s):
    memory = plan_memory(s, s.reuse_policy())
    work = list_work(s.graph, s.splits, s.order.items, s.order.nodes, memory)
    return find_hazards(work, s.order.lanes, memory)


@given(s=schedules())
def test_hazards_need_the_waits_of_the_data_and_no_others(s):
    """Synchronisation is planned once: bytes in memory add a name to each wait, and no wait."""
    event(f"lanes: {min(4, s.order.lanes.count)}")
    if s.data_sync is None:
        return
    within = hazards_of(s).within
    sync = plan_sync(s.order, s.streams, s.topology, within, s.data_sync)
    assert sync.known is s.data_sync.known, "nothing was planned again"
    assert sync == replace(plan_sync(s.order, s.streams, s.topology, within), known=sync.known)
    for item, syncs in sync.before.items():
        data = s.data_sync.before[item]
        assert [structs.replace(x, dependency=None) for x in syncs] == [
            structs.replace(x, dependency=None) for x in data
        ]
        assert all(x.dependency in within[item] for x in syncs)


@given(s=schedules(is_joined=True))
def test_rings_add_waits_from_the_first_item_that_needs_one(s):
    if s.data_sync is None:
        return
    within = hazards_of(s).within
    sync = plan_sync(s.order, s.streams, s.topology, within, s.data_sync)
    event(f"planned again: {sync.known is not s.data_sync.known}")
    verify_sync(s.order, within, sync)
    assert sync.before == plan_sync(s.order, s.streams, s.topology, within).before


@given(s=schedules())
def test_artifacts_are_values(s):
    """The same each time, frozen, and printable."""
    for field in fields(s):
        with pytest.raises(FrozenInstanceError):
            setattr(s, field.name, None)
    assert repr(s.order.lanes)
    assert repr(s.live)
    assert hazards_of(s).within == hazards_of(s).within


@pytest.fixture
def schedule():
    graph = branches(2)
    two = machine(device("gpu:0", max_streams=8), "gpu:1")
    wanted = pinned(*(i % 4 // 3 for i in range(len(graph.nodes))))
    return verified_schedule(graph, two, wanted, STREAMS)


def without(items, k):
    return (*items[:k], *items[k + 1 :])


def first(order, kind):
    return next(k for k, item in enumerate(order.items) if item.kind == kind)


def test_a_broken_order_is_refused(schedule):
    s, order = schedule, schedule.order
    launch = first(order, "launch")
    transfer = next(k for k, i in enumerate(order.items) if i.kind not in ("host", "launch"))
    item = order.items[launch]
    broken = [
        replace(order, items=without(order.items, launch)),
        replace(order, items=without(order.items, transfer)),
        replace(order, items=(*order.items[: launch + 1], *order.items[launch:])),
        replace(order, items=(*order.items[: transfer + 1], *order.items[transfer:])),
        replace(order, items=order.items[:-2]),
        replace(order, nodes=(0, *list(order.nodes)[:-1])),
        replace(order, nodes=tuple(reversed(order.nodes))),
        replace(order, items=(*order.items[:transfer], *reversed(order.items[transfer:]))),
    ]
    moved = type(item)("launch", item.stream + 1, item.source, item.first, item.end)
    broken.append(replace(order, items=(*order.items[:launch], moved, *order.items[launch + 1 :])))
    for wrong in broken:
        with pytest.raises(PlanError):
            verify_order(s.splits, s.streams, s.fusions, wrong)


def test_a_life_that_misses_an_access_is_refused(schedule):
    s = schedule
    for v, life in enumerate(s.live.lives):
        for short in (Life(life.birth + 1, life.death), Life(life.birth, life.death - 1)):
            value = s.splits.values[v]
            if value.bound or value.kind in ("input", "output"):
                continue  # these live for the whole run, whoever touches them
            lives = (*s.live.lives[:v], short, *s.live.lives[v + 1 :])
            with pytest.raises(PlanError, match="but lives for"):
                verify_liveness(s.splits, s.order, replace(s.live, lives=lives))


def test_a_missing_wait_is_refused(schedule):
    s, within = schedule, hazards_of(schedule).within
    sync = plan_sync(s.order, s.streams, s.topology, within, s.data_sync)
    assert sync.before
    for item, syncs in sync.before.items():
        for k in range(len(syncs)):
            fewer = {**sync.before, item: without(tuple(syncs), k)}
            with pytest.raises(PlanError, match="is not ordered after item"):
                verify_sync(s.order, within, SyncPlan(fewer))
