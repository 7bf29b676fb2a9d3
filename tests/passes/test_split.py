"""Splits, values and transfers."""

import pytest

from ggsched.ir.builder import GraphBuilder
from ggsched.passes.options import StreamPolicy
from ggsched.passes.order.liveness import liveness
from ggsched.passes.place import Constraints
from ggsched.passes.placement.ggml import place
from ggsched.passes.split import split
from ggsched.passes.streams.assign import assign
from ggsched.plan.memory import Life
from ggsched.plan.splits import HOST
from ggsched.sanitize import check_plan
from ggsched.topology.cost import guessed_rates
from ggsched.topology.model import CopyPath
from tests.passes.machines import NBYTES, N, machine, pinned
from tests.support.verified_plans import verified_plan

TWO = machine("gpu:0", "cpu:0")
APART = machine("gpu:0", "cpu:0", copies={})


def lowered(graph, topology, wanted):
    placement = place(graph, topology, wanted)
    splits = split(graph, topology, placement)
    plan = verified_plan(graph, topology, wanted)
    assert check_plan(plan).is_clean
    assert plan.splits == splits
    return splits


def moves(splits):
    """Each transfer as (from kind, to kind, storage, first byte, end, by, before)."""
    v = splits.values
    return [
        (
            v[t.src].kind,
            v[t.dst].kind,
            v[t.dst].storage,
            v[t.dst].start,
            v[t.dst].end,
            t.by,
            t.before,
        )
        for t in splits.transfers
    ]


def kinds(splits, kind):
    return [v for v in splits.values if v.kind == kind]


def test_one_device_is_one_split():
    g = GraphBuilder()
    x = g.input("x", (N,))
    graph = g.build(g.silu(g.gelu(x)))
    splits = lowered(graph, TWO, Constraints())
    assert [(s.device, s.first, s.end) for s in splits.splits] == [(0, 0, 2)]
    assert moves(splits) == [
        ("input", "replica", x.id, 0, NBYTES, 0, 0),
        ("home", "output", graph.outputs[0], 0, NBYTES, 0, 1),
    ]


def test_cut_where_the_device_changes():
    g = GraphBuilder()
    y = g.input("x", (N,))
    for _ in range(6):
        y = g.silu(y)
    splits = lowered(g.build(y), TWO, pinned(0, 0, 1, 0, 0, 1))
    assert [(s.device, s.first, s.end) for s in splits.splits] == [
        (0, 0, 2),
        (1, 2, 3),
        (0, 3, 5),
        (1, 5, 6),
    ]


class TestVersions:
    def written_between_reads(self, topology, wanted):
        """A storage is read elsewhere, changed, and read elsewhere again."""
        g = GraphBuilder()
        y = g.silu(g.input("x", (N,)))
        a = g.gelu(y, name="elsewhere")
        changed = g.scale(y, 2.0, inplace=True)
        b = g.gelu(changed, name="elsewhere")
        return y, lowered(g.build(g.add(a, b)), topology, wanted)

    def test_copied_anew_after_a_write(self):
        y, splits = self.written_between_reads(TWO, pinned(0, 1, 0, 1, 1))
        copies = [m for m in moves(splits) if m[:3] == ("home", "replica", y.id)]
        assert [m[-1] for m in copies] == [1, 3]
        assert len({splits.bindings[1][0], splits.bindings[3][0]}) == 2

    def test_nobody_copies_what_stays_at_home(self):
        _, splits = self.written_between_reads(TWO, pinned(0, 0, 0, 0, 0))
        assert kinds(splits, "replica") == [kinds(splits, "replica")[0]]  # that of the input

    def test_readers_of_one_version_share_a_replica(self):
        g = GraphBuilder()
        y = g.silu(g.input("x", (N,)))
        a, b = g.gelu(y), g.silu(y)
        c = g.silu(a)
        graph = g.build(g.add(g.add(b, y), c))
        splits = lowered(graph, TWO, pinned(0, 1, 1, 0, 1, 1))
        assert [m for m in moves(splits) if m[:3] == ("home", "replica", y.id)] == [
            ("home", "replica", y.id, 0, NBYTES, 0, 1)
        ]

    @pytest.mark.parametrize("role", ["state", "input"])
    def test_of_a_storage_that_outlives_nodes(self, role):
        g = GraphBuilder()
        s, x = getattr(g, role)("s", (4, N)), g.input("x", (1, N))
        early = g.silu(s, name="elsewhere")
        g.cpy(x, g.rows(s, 1, 2), name="write")
        late = g.silu(s, name="elsewhere")
        splits = lowered(g.build(g.add(early, late)), TWO, pinned(1, 0, 1, 1))
        copies = [m for m in moves(splits) if m[:3] == ("home", "replica", s.id)]
        assert [m[-1] for m in copies] == [0, 2]

    def test_two_writes_in_a_row_are_one_copy(self):
        g = GraphBuilder()
        y = g.silu(g.input("x", (4, N)))
        g.silu(g.rows(y, 0, 1), inplace=True)
        g.gelu(g.rows(y, 3, 4), inplace=True)
        graph = g.build(g.silu(y))
        splits = lowered(graph, TWO, pinned(0, 0, 0, 1))
        assert len([m for m in moves(splits) if m[:2] == ("home", "replica")]) == 1


class TestBytes:
    def test_a_replica_holds_what_is_read(self):
        g = GraphBuilder()
        y = g.silu(g.input("x", (8, N)))
        graph = g.build(g.silu(g.rows(y, 2, 4)))
        splits = lowered(graph, TWO, pinned(0, 1))
        assert ("home", "replica", y.id, 2 * NBYTES, 4 * NBYTES, 0, 1) in moves(splits)

    @pytest.mark.parametrize("first", [2, 5])
    def test_it_grows_with_its_readers(self, first):
        g = GraphBuilder()
        y = g.silu(g.input("x", (8, N)))
        a, b = (g.silu(g.rows(y, k, k + 2)) for k in (first, 7 - first))
        graph = g.build(g.add(a, b))
        splits = lowered(graph, TWO, pinned(0, 1, 1, 1))
        copies = [m for m in moves(splits) if m[:3] == ("home", "replica", y.id)]
        assert copies == [("home", "replica", y.id, 2 * NBYTES, 7 * NBYTES, 0, 1)]

    def test_so_does_what_is_staged_for_it(self):
        g = GraphBuilder()
        y = g.silu(g.input("x", (8, N)))
        a, b = g.silu(g.rows(y, 2, 4)), g.silu(g.rows(y, 5, 7))
        graph = g.build(g.add(a, b))
        splits = lowered(graph, APART, pinned(0, 1, 1, 1))
        (staging,) = kinds(splits, "staging")
        assert (staging.start, staging.end, staging.device) == (2 * NBYTES, 7 * NBYTES, HOST)

    def test_an_input_is_uploaded_as_far_as_it_is_read(self):
        g = GraphBuilder()
        x = g.input("x", (8, N))
        graph = g.build(g.silu(g.rows(x, 6, 8)))
        splits = lowered(graph, TWO, pinned(1))
        assert moves(splits)[0] == ("input", "replica", x.id, 6 * NBYTES, 8 * NBYTES, 1, 0)

    def test_to_each_device_that_reads_it(self):
        g = GraphBuilder()
        x = g.input("x", (N,))
        graph = g.build(g.add(g.silu(x), g.gelu(x)))
        splits = lowered(graph, TWO, pinned(0, 1, 0))
        uploads = [m for m in moves(splits) if m[0] == "input"]
        assert [m[5] for m in uploads] == [0, 1]
        assert len(kinds(splits, "input")) == 1


class TestPaths:
    def graph(self):
        g = GraphBuilder()
        return g.build(g.silu(g.silu(g.input("x", (N,)))))

    @pytest.mark.parametrize("by", [0, 1])
    def test_by_whom_the_path_says(self, by):
        topology = machine("gpu:0", "cpu:0", copies={(0, 1): CopyPath(0, 1, by)})
        splits = lowered(self.graph(), topology, pinned(0, 1))
        assert [m[5] for m in moves(splits) if m[:2] == ("home", "replica")] == [by]

    def test_through_the_host_where_there_is_none(self):
        splits = lowered(self.graph(), APART, pinned(0, 1))
        assert [(m[0], m[1], m[5]) for m in moves(splits)] == [
            ("input", "replica", 0),
            ("home", "staging", 0),
            ("staging", "replica", 1),
            ("home", "output", 1),
        ]

    def test_one_direction_alone(self):
        topology = machine("gpu:0", "cpu:0", copies={(1, 0): CopyPath(1, 0, 1)})
        splits = lowered(self.graph(), topology, pinned(0, 1))
        assert len(kinds(splits, "staging")) == 1
        assert kinds(lowered(self.graph(), topology, pinned(1, 0)), "staging") == []


class TestOutputs:
    @pytest.mark.parametrize("role", ["input", "weight", "state"])
    def test_that_no_node_made(self, role):
        g = GraphBuilder()
        t = getattr(g, role)("t", (4, N))
        part = g.rows(t, 1, 3)
        graph = g.build(g.silu(g.input("x", (N,))), t, part)
        plan = verified_plan(graph, TWO, Constraints())
        assert check_plan(plan).is_clean
        by_tensor = {slot.tensor: plan.splits.values[slot.value] for slot in plan.outputs}
        assert (by_tensor[t.id].start, by_tensor[t.id].end) == (0, 4 * NBYTES)
        if role == "input":
            assert by_tensor[part.id] is by_tensor[t.id]
            assert not [
                s for s in plan.splits.transfers if plan.splits.values[s.src].storage == t.id
            ]
        else:
            assert (by_tensor[part.id].start, by_tensor[part.id].end) == (NBYTES, 3 * NBYTES)

    def test_an_input_that_nodes_write_comes_back_as_they_left_it(self):
        g = GraphBuilder()
        x = g.input("x", (N,))
        graph = g.build(g.silu(x, inplace=True), x)
        splits = lowered(graph, TWO, Constraints())
        assert [m[:2] for m in moves(splits)] == [
            ("input", "home"),
            ("home", "output"),
            ("home", "output"),
        ]

    def test_without_nodes(self):
        g = GraphBuilder()
        graph = g.build(g.state("s", (N,)), g.input("x", (N,)))
        splits = lowered(graph, TWO, Constraints(homes={"s": 1}))
        assert splits.splits == ()
        assert moves(splits) == [("home", "output", 0, 0, NBYTES, 1, 0)]

    def test_of_no_bytes(self):
        g = GraphBuilder()
        y = g.silu(g.silu(g.input("x", (0, N))))
        splits = lowered(g.build(y, g.silu(g.input("z", (N,)))), TWO, pinned(0, 1, 0))
        assert [m[4] - m[3] for m in moves(splits)] == [0, 0, NBYTES, 0, NBYTES]


def test_streams_for_devices_that_do_something():
    g = GraphBuilder()
    w = g.weight("w", (N,))
    y = g.silu(g.input("x", (N,)))
    graph = g.build(g.add(y, w))
    three = machine("gpu:0", "gpu:1", "cpu:0")
    placement = place(graph, three, Constraints(homes={"w": 1}, pins={0: 0, 1: 0}))
    splits = split(graph, three, placement)
    streams = assign(graph, three, splits, StreamPolicy(), guessed_rates(three))
    assert [s.device for s in streams.streams] == [0, 1]  # gpu:1 copies the weight
    assert streams.of_node == (0, 0)
    assert streams.of_transfer == (0, 1, 0)


def test_lives():
    g = GraphBuilder()
    x, s = g.input("x", (N,)), g.state("s", (N,))
    a = g.silu(x)
    b = g.gelu(a)
    g.cpy(b, s)
    graph = g.build(g.add(b, a))
    placement = place(graph, TWO, pinned(0, 1, 1, 1))
    splits = split(graph, TWO, placement)
    timeline = liveness(graph, splits)
    # upload x, silu, copy a, gelu, cpy, add, download
    assert timeline.node_step == (1, 3, 4, 5)
    assert timeline.transfer_step == (0, 2, 6)
    life = {(v.kind, v.storage): timeline.lives[v.id] for v in splits.values}
    assert life == {
        ("input", x.id): Life(0, 6),
        ("replica", x.id): Life(0, 1),
        ("home", a.id): Life(1, 2),
        ("replica", a.id): Life(2, 5),
        ("home", b.id): Life(3, 5),
        ("home", s.id): Life(0, 6),
        ("home", graph.outputs[0]): Life(5, 6),
        ("output", graph.outputs[0]): Life(0, 6),
    }
