"""Every mutation has something to mutate, and does what it says."""

import pytest

from ggsched.plan.command import Record, Wait
from ggsched.sanitize import check_plan
from ggsched_testing.plan_builder import PlanWriter, fake_device
from ggsched_testing.plan_mutants import ALL_MUTATIONS, drop_events, wait_for_older_event

N = 16


def plan_with_everything():
    """Two devices that keep copies and launches apart, events, a barrier, the host waiting."""
    w = PlanWriter(*(fake_device(f"gpu:{i}", copy_order="barrier") for i in range(2)))
    q, r = w.stream(0), w.stream(1)
    x = w.host_input("x", N)
    near, far = w.arena("compute", 0, 4 * N), w.arena("compute", 1, 4 * N)
    a, b, c = w.value(near, 0, N, of=x), w.value(near, N, N), w.value(near, 2 * N, N)
    there, y, z = w.value(far, 0, N, of=c), w.value(far, N, N), w.value(far, 2 * N, N)
    out = w.host_output("y", N, of=y)
    w.transfer(q, x, a)
    w.fill(q, w.fixed("state", 0, "s", N))
    w.barrier(q)
    w.launch(q, w.node("rw", a, b))
    w.record(q)
    w.launch(q, w.node("rrw", a, b, c))
    w.order(q, r)
    w.transfer(r, c, there)
    w.barrier(r)
    w.launch(r, w.node("rw", there, z))
    w.launch(r, w.node("rw", z, y))
    w.barrier(r)
    w.transfer(r, y, out)
    w.sync(r)
    return w.plan()


def test_the_plan_is_clean():
    assert check_plan(plan_with_everything()).is_clean


@pytest.mark.parametrize("name", ALL_MUTATIONS)
def test_every_mutation_makes_mutants(name):
    plan = plan_with_everything()
    mutants = list(ALL_MUTATIONS[name](plan))
    assert mutants
    for what, mutant in mutants:
        assert what
        assert mutant != plan
        assert [c.id for c in mutant.commands] == list(range(len(mutant.commands)))
        assert "id" not in {f.kind for f in check_plan(mutant).findings}


def test_dropped_events_take_their_waits_along():
    for _, mutant in drop_events(plan_with_everything()):
        recorded = {c.event for c in mutant.commands if isinstance(c, Record)}
        assert {c.event for c in mutant.commands if isinstance(c, Wait)} <= recorded


def test_older_event_is_of_the_same_stream():
    plan = plan_with_everything()
    ((_, mutant),) = wait_for_older_event(plan)
    (wait,) = (c for c in mutant.commands if isinstance(c, Wait))
    assert wait.event == 0
    assert {f.hazard for f in check_plan(mutant).findings} >= {"RAW"}
