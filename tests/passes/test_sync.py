"""How hazards become waits: the cheapest means that a machine offers, and none without need."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggsched.ir.builder import GraphBuilder
from ggsched.passes.place import Constraints
from ggsched.plan.command import Barrier, HostSync, Record, Upload, Wait
from ggsched.sanitize import check_plan
from ggsched.topology.model import CopyPath
from ggsched_testing.generators.strategies import graphs
from ggsched_testing.generators.topologies import constraints, topologies
from ggsched_testing.plan_mutants import drop_barriers, drop_events, drop_host_syncs, drop_waits
from tests.passes.machines import N, connected, device, machine, pinned
from tests.support.verified_plans import verified_plan


def planned(graph, topology, wanted):
    plan = verified_plan(graph, topology, wanted)
    assert check_plan(plan, runs=3).is_clean
    return plan


def syncs(plan):
    """Each synchronisation as (what, kind of the hazard, whether it is for the next run)."""
    return [
        (type(c).__name__, c.hazard.kind, c.hazard.next_run)
        for c in plan.commands
        if isinstance(c, Wait | Barrier | HostSync)
    ]


def hand_over():
    """One node on each of two devices."""
    g = GraphBuilder()
    return g.build(g.silu(g.silu(g.input("x", (N,)))))


LAST = ("HostSync", "RAW", False)  # of the output, always


class TestMeans:
    def plan(self, waits=None, **facts):
        first = {"copy_order": "stream"}
        topology = machine(device("gpu:0", **first), device("gpu:1", **facts), waits=waits)
        return planned(hand_over(), topology, pinned(0, 1))

    def test_an_event(self):
        plan = self.plan()
        # The copy is made by gpu:0, and gpu:1 waits for it; in the next run gpu:0 overwrites
        # the replica that gpu:1 has read, but the host has seen that end.
        assert syncs(plan) == [("Wait", "RAW", False), LAST]
        wait = next(c for c in plan.commands if isinstance(c, Wait))
        record = next(c for c in plan.commands if isinstance(c, Record))
        assert (record.stream, wait.stream, record.event) == (0, 1, wait.event)
        assert wait.hazard.earlier == record.id - 1

    @pytest.mark.parametrize("path", ["native", "thread"])
    def test_either_way_of_waiting(self, path):
        assert syncs(self.plan(waits={(1, 0): path})) == [("Wait", "RAW", False), LAST]

    def test_the_host_where_devices_cannot_wait_for_each_other(self):
        plan = self.plan(waits={})
        assert syncs(plan) == [("HostSync", "RAW", False), LAST]
        assert next(c for c in plan.commands if isinstance(c, HostSync)).event is not None

    def test_the_host_and_the_event_where_the_waiter_has_none(self):
        plan = self.plan(has_events=False)
        assert syncs(plan) == [("HostSync", "RAW", False), LAST]
        first, last = (c for c in plan.commands if isinstance(c, HostSync))
        assert first.event is not None
        assert last.event is None

    def test_the_whole_stream_where_the_other_has_none(self):
        topology = machine(device("gpu:0", has_events=False), "gpu:1")
        plan = planned(hand_over(), topology, pinned(0, 1))
        assert syncs(plan) == [("HostSync", "RAW", False), LAST]
        assert next(c for c in plan.commands if isinstance(c, HostSync)).event is None

    @pytest.mark.parametrize(
        ("order", "means"), [("stream", None), ("barrier", "Barrier"), ("host", "HostSync")]
    )
    def test_copies_and_launches_of_one_stream(self, order, means):
        plan = planned(hand_over(), machine(device("gpu:0", copy_order=order)), Constraints())
        # upload | launch | download
        wanted = [] if means is None else [(means, "RAW", False)] * 2
        assert syncs(plan) == [*wanted, LAST]

    def test_one_event_for_all_that_wait(self):
        g = GraphBuilder()
        y = g.silu(g.input("x", (N,)))
        graph = g.build(g.silu(y), g.gelu(y))
        plan = planned(graph, pulling("gpu:0", "gpu:1", "gpu:2"), pinned(0, 1, 2))
        waits = [c for c in plan.commands if isinstance(c, Wait)]
        assert [(w.stream, w.event, w.hazard.kind) for w in waits] == [(1, 0, "RAW"), (2, 0, "RAW")]

    @pytest.mark.parametrize(("swapped", "count"), [(False, 2), (True, 3)])
    def test_what_another_wait_implies_is_left_out(self, swapped, count):
        """gpu:2 hears of gpu:0 through gpu:1, if it listens to that first."""
        g = GraphBuilder()
        a = g.silu(g.state("s", (N,)))
        b = g.silu(a)
        graph = g.build(g.add(a, b) if swapped else g.add(b, a))
        plan = planned(graph, pulling("gpu:0", "gpu:1", "gpu:2"), pinned(0, 1, 2, s=0))
        assert len([c for c in plan.commands if isinstance(c, Wait)]) == count

    def test_the_latest_is_waited_for_first(self):
        """Both read the state before it is written; gpu:2 did so after it heard of gpu:1."""
        g = GraphBuilder()
        s = g.state("s", (N,))
        b = g.silu(s)
        c = g.add(b, s)
        g.scale(s, 2.0, inplace=True)
        plan = planned(g.build(c), pulling("gpu:0", "gpu:1", "gpu:2"), pinned(1, 2, 0))
        held = [c for c in plan.commands if isinstance(c, Wait) and c.stream == 0]
        assert [(w.hazard.kind, w.hazard.next_run) for w in held] == [("WAR", False)]


def pulling(*names):
    """Return a machine on which whoever gets the bytes makes the copy."""
    count = range(len(names))
    return machine(
        *names, copies={(a, b): CopyPath(a, b, b) for a in count for b in count if a != b}
    )


class TestAcrossRuns:
    def graph(self):
        """A result that ends on the GPU while a CPU still works on something nobody waits for."""
        g = GraphBuilder()
        x, s = g.input("x", (N,)), g.state("s", (N,))
        y = g.silu(x, name="gpu")
        g.cpy(y, s, name="cpu")
        return g.build(g.gelu(y, name="gpu"))

    def test_what_is_still_read_is_not_overwritten(self):
        plan = planned(self.graph(), machine("gpu:0", "cpu:0"), pinned(0, 1, 0, s=1))
        crossing = [c for c in plan.commands if getattr(c, "hazard", None) and c.hazard.next_run]
        assert [type(c) for c in crossing] == [Wait]
        assert crossing[0] is plan.commands[-1]
        assert crossing[0].hazard.kind == "WAR"
        without = [m for _, m in drop_waits(plan)]
        assert any(not check_plan(m, runs=2).is_clean for m in without)
        assert not any(check_plan(m, runs=3).is_clean for m in without)

    def test_the_host_waits_before_it_writes_inputs_again(self):
        g = GraphBuilder()
        x, s = g.input("x", (N,)), g.state("s", (N,))
        y = g.silu(x, name="gpu")
        g.cpy(x, s, name="cpu")
        graph = g.build(y)
        plan = planned(graph, machine("gpu:0", "cpu:0"), pinned(0, 1, s=1))
        last = plan.commands[-1]
        assert isinstance(last, HostSync)
        assert (last.hazard.kind, last.hazard.next_run, last.hazard.later) == ("WAR", True, -1)
        assert isinstance(plan.commands[last.hazard.earlier], Upload)

    def test_not_if_the_upload_has_read_it_when_it_returns(self):
        g = GraphBuilder()
        x, s = g.input("x", (N,)), g.state("s", (N,))
        y = g.silu(x, name="gpu")
        g.cpy(x, s, name="cpu")
        cpu = device("cpu:0", snapshots_uploads=True)
        plan = planned(g.build(y), machine("gpu:0", cpu), pinned(0, 1, s=1))
        assert syncs(plan) == [LAST]

    def test_nothing_where_the_host_has_seen_all_end(self):
        plan = planned(hand_over(), machine("gpu:0", "cpu:0"), pinned(0, 1))
        assert not any(next_run for _, _, next_run in syncs(plan))


class TestSnapshots:
    def test_a_staged_copy_is_complete_before_it_is_uploaded(self):
        """The upload reads while it is enqueued, so no wait of its stream would help."""
        topology = machine("gpu:0", device("gpu:1", snapshots_uploads=True), copies={})
        plan = planned(hand_over(), topology, pinned(0, 1))
        uploads = [c for c in plan.commands if isinstance(c, Upload)]
        before = plan.commands[uploads[-1].id - 1]
        assert isinstance(before, HostSync)
        assert before.hazard.kind == "RAW"

    def test_else_the_stream_waits(self):
        plan = planned(hand_over(), machine("gpu:0", "gpu:1", copies={}), pinned(0, 1))
        uploads = [c for c in plan.commands if isinstance(c, Upload)]
        assert isinstance(plan.commands[uploads[-1].id - 1], Wait)


DROP = (drop_waits, drop_host_syncs, drop_barriers, drop_events)


@given(
    drawn=graphs(max_nodes=16, min_nodes=4),
    topology=st.one_of(topologies(min_devices=2), connected()),
    data=st.data(),
)
def test_every_wait_is_needed(drawn, topology, data):
    plan = planned(drawn.graph, topology, data.draw(constraints(drawn.graph, topology)))
    for drop in DROP:
        for what, mutant in drop(plan):
            assert not check_plan(mutant).is_clean, f"{drop.__name__}: {what}: nobody missed it"
