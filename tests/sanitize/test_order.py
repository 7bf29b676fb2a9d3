"""Lanes, events and the host: who is known to be done when."""

import pytest

from ggsched.sanitize import check_plan
from ggsched_testing.plan_builder import PlanWriter, fake_device

N = 16


def writer(**facts):
    w = PlanWriter(fake_device("gpu:0", **facts), fake_device("gpu:1", **facts))
    return w, w.stream(0), w.stream(1)


def two_lanes(w, q, between):
    """An upload and a launch of one stream on the same bytes, with something between."""
    x = w.host_input("x", N)
    arena = w.arena("compute", 0, 4 * N)
    a, y = w.value(arena, 0, N, of=x), w.value(arena, N, N)
    w.transfer(q, x, a)
    between()
    w.launch(q, w.node("rw", a, y))
    w.sync(q)
    return check_plan(w.plan())


@pytest.mark.parametrize("copy_order", ["stream", "barrier", "host"])
def test_a_stream_orders_copies_and_launches_only_if_it_says_so(copy_order):
    w, q, _ = writer(copy_order=copy_order)
    assert two_lanes(w, q, lambda: None).is_clean == (copy_order == "stream")


def test_barrier_joins_both_lanes():
    w, q, _ = writer(copy_order="barrier")
    assert two_lanes(w, q, lambda: w.barrier(q)).is_clean


def test_barrier_of_another_stream_does_not():
    w, q, r = writer(copy_order="barrier")
    assert not two_lanes(w, q, lambda: w.barrier(r)).is_clean


@pytest.mark.parametrize("copy_order", ["barrier", "host"])
def test_host_sync_joins_both_lanes(copy_order):
    w, q, _ = writer(copy_order=copy_order)
    assert two_lanes(w, q, lambda: w.sync(q)).is_clean


@pytest.mark.parametrize("copy_order", ["barrier", "host"])
def test_event_covers_both_lanes_and_is_waited_for_by_both(copy_order):
    w, q, _ = writer(copy_order=copy_order)
    assert two_lanes(w, q, lambda: w.order(q, q)).is_clean


def test_order_is_transitive_over_a_third_stream():
    w, q, r = writer()
    third = w.stream(0)
    arena = w.arena("compute", 0, 4 * N)
    a = w.value(arena, 0, N)
    b = w.value(w.arena("compute", 1, N), 0, N, of=a)
    w.launch(q, w.node("w", a))
    w.order(q, third)
    w.order(third, r)
    w.transfer(r, a, b)
    w.sync(r)
    w.sync(q)
    assert check_plan(w.plan()).is_clean


def test_what_the_host_knows_holds_for_all_that_it_enqueues_later():
    w, q, r = writer()
    a = w.value(w.arena("compute", 0, N), 0, N)
    b = w.value(w.arena("compute", 1, N), 0, N, of=a)
    w.launch(q, w.node("w", a))
    w.sync(q)
    w.transfer(r, a, b)
    w.sync(r)
    assert check_plan(w.plan()).is_clean


def test_events_do_not_outlive_a_run():
    """The wait of the second run is for an event of the second run."""
    w, q, r = writer()
    a = w.fixed("state", 0, "kv", N)
    b = w.value(w.arena("compute", 1, N), 0, N, of=a)
    w.launch(q, w.node("p", a))
    w.order(q, r)
    w.transfer(r, a, b)
    report = check_plan(w.plan())
    (race,) = report.findings
    assert (race.hazard, race.earlier.run, race.later.run) == ("WAR", 0, 1)
    assert check_plan(w.plan(), runs=1).is_clean


def test_wait_at_the_end_orders_the_next_run():
    w, q, r = writer()
    a = w.fixed("state", 0, "kv", N)
    b = w.value(w.arena("compute", 1, N), 0, N, of=a)
    w.launch(q, w.node("p", a))
    w.order(q, r)
    w.transfer(r, a, b)
    w.order(r, q)
    assert check_plan(w.plan()).is_clean


@pytest.mark.parametrize("snapshots", [False, True])
def test_a_snapshot_frees_the_source_at_once(snapshots):
    w, q, _ = writer(snapshots_uploads=snapshots)
    x = w.host_input("x", N)
    w.transfer(q, x, w.value(w.arena("compute", 0, N), 0, N, of=x))
    assert check_plan(w.plan()).is_clean == snapshots


@pytest.mark.parametrize("snapshots", [False, True])
@pytest.mark.parametrize("by_host", [False, True])
def test_a_snapshot_is_taken_when_the_upload_is_enqueued(snapshots, by_host):
    """Staging is filled on another stream; an event holds the stream, but not the snapshot."""
    w, q, r = writer(snapshots_uploads=snapshots)
    a = w.fixed("weight", 0, "w", N)
    staging = w.value(w.arena("staging", -1, N), 0, N, of=a)
    b = w.value(w.arena("compute", 1, N), 0, N, of=a)
    w.transfer(q, a, staging)
    if by_host:
        w.sync(q)
    else:
        w.order(q, r)
    w.transfer(r, staging, b)
    w.sync(r)
    w.sync(q)
    assert check_plan(w.plan()).is_clean == (by_host or not snapshots)
