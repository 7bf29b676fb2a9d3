from dataclasses import replace
from itertools import pairwise
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from ggsched.errors import PlanError
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import I32
from ggsched.passes.pipeline import make_plan
from ggsched.passes.place import Constraints, verify_placement
from ggsched.passes.placement import ggml
from ggsched.passes.placement.ggml import place
from ggsched.passes.split import split
from ggsched.sanitize import check_plan
from ggsched_testing.generators.strategies import graphs
from ggsched_testing.generators.topologies import constraints, topologies
from tests.passes.machines import NBYTES, N, device, machine, pinned


def placed(graph, topology, wanted=None):
    placement = place(graph, topology, wanted or Constraints())
    verify_placement(graph, topology, wanted or Constraints(), placement)
    return placement


def devices(placement):
    return [c.device for c in placement.choices]


def causes(placement):
    return [c.cause for c in placement.choices]


def row(*ops):
    """A chain of unary ops."""
    g = GraphBuilder()
    x = g.input("x", (N,))
    for op in ops:
        x = g.op(op, x)
    return g.build(x)


SIX = row("silu", "gelu", "silu", "gelu", "silu", "gelu")
TWO = machine("gpu:0", "cpu:0")
TWO_CPUS = machine("cpu:0", "cpu:1")


class TestPins:
    def test_are_kept(self):
        found = placed(SIX, TWO, pinned(1, 0, 1, 0, 1, 0))
        assert devices(found) == [1, 0, 1, 0, 1, 0]
        assert set(causes(found)) == {"pin"}
        assert found.choices[0].detail == "cpu:0"

    @pytest.mark.parametrize(
        ("wanted", "message"),
        [
            (Constraints(pins={6: 0}), "pin of node 6, which does not exist"),
            (Constraints(pins={-1: 0}), "pin of node -1, which does not exist"),
            (Constraints(pins={0: 2}), "n0 silu: device index 2 does not exist"),
            (Constraints(pins={0: -1}), "n0 silu: device index -1 does not exist"),
            (Constraints(homes={"x": 7}), "x: device index 7 does not exist"),
        ],
    )
    def test_of_what_is_not_there(self, wanted, message):
        with pytest.raises(PlanError) as caught:
            place(SIX, TWO, wanted)
        assert message in str(caught.value)

    def test_that_the_device_cannot_honour(self):
        topology = machine(device("gpu:0", lacks=["gelu"]), "cpu:0")
        with pytest.raises(PlanError, match="pinned to gpu:0, which does not support the nodes"):
            place(SIX, topology, Constraints(pins={1: 0}))

    @pytest.mark.parametrize("op", ["mul_mat_id", "add_id"])
    def test_of_experts_of_which_some_are_elsewhere(self, op):
        """A device that was written before ignores ``of``: it never gets such a node."""
        g = GraphBuilder()
        x, w = g.input("x", (1, 1, N)), g.weight("w", (3, N, N) if op == "mul_mat_id" else (3, N))
        operands = (w, x) if op == "mul_mat_id" else (x, w)
        graph = g.build(g.op(op, *operands, g.input("ids", (1, 1), I32), first=1, of=5))
        old = replace(device("gpu:0"), takes_expert_ranges=False)
        able = replace(device("cpu:0"), takes_expert_ranges=True)
        topology = machine(old, able)
        assert devices(placed(graph, topology, Constraints(homes={"w": 0}))) == [1]
        for there, wanted in ((topology, pinned(0)), (machine(old), Constraints())):
            with pytest.raises(PlanError, match="takes_expert_ranges"):
                place(graph, there, wanted)
        plan = make_plan(graph, topology)
        assert check_plan(plan, graph=graph).is_clean
        plan = msgspec.structs.replace(
            plan, devices=(old, replace(able, takes_expert_ranges=False))
        )
        assert "one with takes_expert_ranges" in str(check_plan(plan, graph=graph).findings)

    def test_a_home_is_not_called_a_pin(self):
        g = GraphBuilder()
        s = g.state("s", (4, N))
        graph = g.build(g.set_rows(s, g.input("x", (1, N)), g.input("i", (1,), I32)))
        topology = machine(device("gpu:0", lacks=["set_rows"]), "cpu:0")
        with pytest.raises(PlanError) as caught:
            place(graph, topology, Constraints(homes={"s": 0}))
        assert "'s': its home is gpu:0, which does not support" in str(caught.value)
        assert "needs set_rows:f32 (these do: cpu:0)" in str(caught.value)

    def test_of_two_nodes_that_write_one_storage(self):
        g = GraphBuilder()
        y = g.silu(g.input("x", (N,)))
        graph = g.build(g.gelu(y, inplace=True))
        assert devices(placed(graph, TWO, pinned(1, 1))) == [1, 1]
        with pytest.raises(PlanError, match=r"t1 '': pinned to gpu:0 and to cpu:0 \(remove one"):
            place(graph, TWO, pinned(1, 0))

    def test_of_a_node_that_writes_a_state_elsewhere(self):
        g = GraphBuilder()
        s = g.state("cache", (4, N))
        graph = g.build(g.cpy(g.input("x", (1, N)), g.rows(s, 2, 3)))
        with pytest.raises(PlanError, match="'cache': pinned to gpu:0 and to cpu:0"):
            place(graph, TWO, pinned(0, cache=1))

    def test_of_an_input_that_nodes_write(self):
        g = GraphBuilder()
        x = g.input("x", (N,))
        graph = g.build(g.silu(x, inplace=True))
        found = placed(graph, TWO, Constraints(homes={"x": 1}))
        assert devices(found) == [1]
        with pytest.raises(PlanError, match="pinned to gpu:0 and to cpu:0"):
            place(graph, TWO, pinned(0, x=1))

    def test_names_of_other_graphs_are_ignored(self):
        found = placed(SIX, TWO, Constraints(homes={"blk.7": 1, "unknown": 99}))
        assert set(devices(found)) == {0}


class TestWeights:
    def graph(self):
        g = GraphBuilder()
        x = g.input("x", (2, N))
        for name in ("w0", "w1", "w2"):
            x = g.mul_mat(g.weight(name, (N, N)), g.silu(x))
        return g.build(x)

    def test_nodes_go_to_their_weights(self):
        found = placed(self.graph(), TWO, Constraints(homes={"w0": 1, "w1": 0, "w2": 1}))
        assert devices(found)[1::2] == [1, 0, 1]
        assert [found.choices[i].cause for i in (1, 3, 5)] == ["weights"] * 3
        assert found.choices[3].detail == "w1"

    def test_factors_of_a_rotation_hold_no_node(self):
        g = GraphBuilder()
        x, positions = g.input("x", (2, 1, N)), g.input("positions", (2,), I32)
        q = g.reshape(g.mul_mat(g.weight("w", (N, N)), g.reshape(x, 2, N)), 2, 1, N)
        graph = g.build(g.rope(q, positions, g.weight("factors", (N // 2,))))
        found = placed(graph, TWO, Constraints(homes={"w": 0, "factors": 1}))
        assert set(devices(found)) == {0}

    def test_a_node_that_its_weights_device_cannot_run_goes_elsewhere(self):
        topology = machine(device("gpu:0", lacks=["mul_mat"]), "cpu:0")
        found = placed(self.graph(), topology, Constraints(homes={"w0": 0, "w1": 0, "w2": 0}))
        assert devices(found)[1::2] == [1, 1, 1]
        assert found.homes[1] == 0  # the weight stays where it was put

    def test_without_homes_they_live_where_they_are_used_first(self):
        g = GraphBuilder()
        w = g.weight("w", (N,))
        x = g.input("x", (N,))
        graph = g.build(g.mul(g.add(x, w), w))
        found = placed(graph, TWO, pinned(1, 0))
        assert found.homes[w.id] == 1

    def test_the_first_operand_with_a_home_decides(self):
        g = GraphBuilder()
        a, b = g.weight("a", (N,)), g.weight("b", (N,))
        y = g.add(a, b)
        graph = g.build(y)
        assert devices(placed(graph, TWO, Constraints(homes={"a": 1, "b": 0}))) == [1]
        assert devices(placed(graph, TWO, Constraints(homes={"b": 1}))) == [1]

    def test_a_view_of_a_weight_counts(self):
        g = GraphBuilder()
        w = g.weight("w", (4, N))
        graph = g.build(g.silu(g.rows(w, 1, 2)))
        assert devices(placed(graph, TWO, Constraints(homes={"w": 1}))) == [1]


class TestOwner:
    def test_every_writer_of_a_state_runs_where_it_lives(self):
        g = GraphBuilder()
        s, x = g.state("s", (4, N)), g.input("x", (1, N))
        for i in range(4):
            x = g.silu(x)
            g.cpy(x, g.rows(s, i, i + 1))
        graph = g.build(x)
        found = placed(graph, TWO, Constraints(homes={"s": 1}, pins={0: 0, 2: 0, 4: 0, 6: 0}))
        assert devices(found) == [0, 1, 0, 1, 0, 1, 0, 1]
        assert causes(found)[1] == "owner"

    def test_one_writer_that_is_pinned_takes_the_others_along(self):
        g = GraphBuilder()
        y = g.silu(g.input("x", (4, N)))
        a = g.gelu(g.rows(y, 0, 2), inplace=True)
        b = g.scale(g.rows(y, 2, 4), 2.0, inplace=True)
        graph = g.build(g.add(a, b))
        assert devices(placed(graph, TWO, Constraints(pins={2: 1})))[:3] == [1, 1, 1]

    def test_a_state_that_nobody_writes_lives_where_it_is_read(self):
        g = GraphBuilder()
        s = g.state("s", (N,))
        graph = g.build(g.silu(s))
        assert placed(graph, TWO, Constraints(pins={0: 1})).homes[s.id] == 1


class TestExpansion:
    def test_down_from_an_accelerator(self):
        found = placed(SIX, TWO, Constraints(pins={2: 0}))
        assert devices(found) == [0] * 6
        assert causes(found) == ["expand-up"] * 2 + ["pin"] + ["expand-down"] * 3
        assert found.choices[5].detail == "n2"

    def test_accelerators_before_cpus(self):
        """What follows a CPU's node goes to an accelerator that comes later, and up to it."""
        found = placed(SIX, TWO, Constraints(pins={0: 1, 4: 0}))
        assert devices(found) == [1, 0, 0, 0, 0, 0]
        assert causes(found) == ["pin", *["expand-up"] * 3, "pin", "expand-down"]

    def test_a_cpu_stops_an_accelerator(self):
        found = placed(SIX, TWO, Constraints(pins={0: 0, 2: 1, 5: 1}))
        assert devices(found) == [0, 0, 1, 1, 1, 1]

    def test_cpus_spread_where_nobody_else_does(self):
        found = placed(SIX, TWO_CPUS, Constraints(pins={3: 1}))
        assert devices(found) == [1] * 6
        assert causes(found) == [*["expand-up"] * 3, "pin", *["expand-down"] * 2]

    def test_goes_round_what_the_device_cannot_do(self):
        topology = machine(device("gpu:0", lacks=["gelu"]), "cpu:0")
        found = placed(SIX, topology, Constraints(pins={0: 0}))
        assert devices(found) == [0, 1, 0, 1, 0, 1]
        assert causes(found) == ["pin", "fill", "expand-down", "fill", "expand-down", "fill"]

    def test_nothing_to_expand_from(self):
        found = placed(SIX, machine("cpu:0", "gpu:0"))
        assert devices(found) == [0] * 6
        assert set(causes(found)) == {"fill"}


class TestUpgrade:
    """n2 follows n1 to gpu:1, but what it reads and who reads it are on gpu:0."""

    def graph(self, *, inplace=False):
        g = GraphBuilder()
        a = g.silu(g.input("x", (N,)))
        b = g.silu(g.input("y", (N,)))
        c = g.gelu(a)
        if inplace:
            c = g.silu(c, inplace=True)
        return g.build(g.add(g.silu(c), b))

    def test_moves_what_saves_crossings(self):
        found = placed(
            self.graph(), machine("gpu:0", "gpu:1"), Constraints(pins={0: 0, 1: 1, 3: 0})
        )
        assert devices(found)[:4] == [0, 1, 0, 0]
        assert (found.choices[2].cause, found.choices[2].detail) == (
            "upgrade",
            "n2 saves 2 crossings",
        )

    def test_only_to_a_device_that_can(self):
        topology = machine(device("gpu:0", lacks=["gelu"]), "gpu:1")
        found = placed(self.graph(), topology, Constraints(pins={0: 0, 1: 1, 3: 0}))
        assert devices(found)[:4] == [0, 1, 1, 0]

    def test_not_where_it_saves_nothing(self):
        wanted = Constraints(pins={0: 0, 1: 1, 3: 1})
        assert devices(placed(self.graph(), machine("gpu:0", "gpu:1"), wanted))[:4] == [0, 1, 1, 1]

    def test_not_what_several_nodes_write(self):
        wanted = Constraints(pins={0: 0, 1: 1, 4: 0})
        found = placed(self.graph(inplace=True), machine("gpu:0", "gpu:1"), wanted)
        assert devices(found)[:5] == [0, 1, 1, 1, 0]

    def test_down_only_to_the_next_device_and_where_that_saves_copies(self):
        two = machine("gpu:0", "gpu:1")
        found = placed(self.graph(), two, Constraints(pins={0: 1, 1: 0, 3: 1}))
        assert devices(found)[:4] == [1, 0, 1, 1]
        assert found.choices[2].detail == f"n2 saves {2 * NBYTES} bytes of copies"
        lacks = machine("gpu:0", device("gpu:1", lacks=["gelu"]))
        found = placed(self.graph(), lacks, Constraints(pins={0: 1, 1: 0, 3: 1}))
        assert devices(found)[:4] == [1, 0, 0, 1]

    def test_a_norm_runs_where_its_result_is_used(self):
        """What it normalises is read there as well, so one copy does for both."""
        g = GraphBuilder()
        x = g.mul_mat(g.weight("a", (N, N)), g.input("x", (1, N)))
        y = g.mul(g.rms_norm(x, 1e-5), g.weight("scale", (N,)))
        graph = g.build(g.add(g.mul_mat(g.weight("b", (N, N)), y), x))
        homes = {"a": 0, "scale": 1, "b": 1}
        found = placed(graph, machine("gpu:0", "gpu:1"), Constraints(homes))
        assert devices(found) == [0, 1, 1, 1, 1]
        assert found.choices[1].detail == f"n1 saves {NBYTES} bytes of copies"
        found = placed(graph, machine("gpu:0", "cpu:0"), Constraints(homes))
        assert devices(found)[1] == 0, "a device of another kind"

    def test_a_small_result_moves_back_up_to_a_node_that_has_no_device_yet(self):
        g = GraphBuilder()
        a, b = g.silu(g.input("a", (N,))), g.silu(g.input("b", (N,)))
        total = g.add(a, b)
        apart = g.gelu(g.input("c", (N,)))
        graph = g.build(g.add(total, apart))
        topology = machine(device("gpu:0", lacks=["gelu"]), "cpu:0")
        found = placed(graph, topology, Constraints(pins={0: 1, 1: 1, 4: 0}))
        assert devices(found) == [1, 1, 1, 1, 0]
        assert causes(found)[2:4] == ["upgrade", "fill"]


class TestFill:
    def test_takes_the_first_that_supports_it(self):
        topology = machine(
            device("gpu:0", lacks=["gelu"]), device("gpu:1", lacks=["silu"]), "cpu:0"
        )
        found = placed(SIX, topology)
        assert devices(found) == [0, 1, 0, 1, 0, 1]
        assert causes(found) == ["fill"] * 6


class TestNobodyCan:
    def test_one_node(self):
        topology = machine(device("gpu:0", lacks=["gelu"]), device("cpu:0", lacks=["gelu"]))
        with pytest.raises(PlanError) as caught:
            place(SIX, topology, Constraints())
        text = str(caught.value)
        assert text.startswith("n1 gelu: no device supports gelu:f32")
        assert "gpu:0, cpu:0" in text

    def test_a_type(self):
        g = GraphBuilder()
        from ggsched.ir.dtype import F16

        graph = g.build(g.cont(g.input("x", (N,), F16)))
        ops = frozenset({"cont:f32"})
        with pytest.raises(PlanError, match="no device supports cont:f16"):
            place(graph, machine(device("gpu:0", ops=ops)), Constraints())

    def test_all_writers_of_one_storage(self):
        g = GraphBuilder()
        y = g.silu(g.input("x", (N,)), name="make")
        graph = g.build(g.gelu(y, inplace=True, name="change"))
        topology = machine(device("gpu:0", lacks=["gelu"]), device("cpu:0", lacks=["silu"]))
        with pytest.raises(PlanError) as caught:
            place(graph, topology, Constraints())
        text = str(caught.value)
        assert "t1 'make': no device supports every node that writes this storage" in text
        assert "n0 silu 'make', n1 gelu 'change'" in text
        assert "cont()" in text


class TestOutputsAndHomes:
    def test_an_output_that_no_node_touches_has_a_home(self):
        g = GraphBuilder()
        w, s = g.weight("w", (N,)), g.state("s", (N,))
        y = g.silu(g.input("x", (N,)))
        graph = g.build(y, w, s)
        found = placed(graph, TWO)
        assert (found.homes[w.id], found.homes[s.id]) == (0, 0)

    def test_an_input_has_none_unless_it_is_written(self):
        g = GraphBuilder()
        x, z = g.input("x", (N,)), g.input("z", (N,))
        graph = g.build(g.add(z, x, inplace=True))
        found = placed(graph, TWO)
        assert x.id not in found.homes
        assert found.homes[z.id] == 0

    def test_digest_of_constraints(self):
        assert Constraints({"a": 0, "b": 1}).digest == Constraints({"b": 1, "a": 0}).digest
        assert Constraints({"a": 0}).digest != Constraints({"a": 1}).digest
        assert Constraints(pins={0: 1}).digest != Constraints(pins={1: 0}).digest


def split_count(graph, home):
    where = [home[graph.tensors[n.output].storage] for n in graph.nodes]
    return sum(a != b for a, b in pairwise(where)) + 1


def crossings(graph, home):
    """Pairs of node and operand whose storages live on different devices."""
    written = {graph.tensors[n.output].storage for n in graph.nodes}
    return sum(
        home[graph.tensors[n.output].storage] != home[s]
        for n in graph.nodes
        for s in (graph.tensors[t].storage for t in n.inputs)
        if s in written and s != graph.tensors[n.output].storage and home[s] >= 0
    )


def copied(graph, topology, placement):
    """Bytes that are copied between devices or uploaded."""
    splits = split(graph, topology, placement)
    values = splits.values
    reads = [t for t in splits.transfers if values[t.dst].kind == "replica"]
    return sum(values[t.dst].nbytes for t in reads)


@given(drawn=graphs(max_nodes=24, min_nodes=6), topology=topologies(2, 4), data=st.data())
def test_handing_over_once_adds_no_split_and_saves_copies(drawn, topology, data):
    graph = drawn.graph
    alike = replace(topology, devices=tuple(replace(d, kind="gpu") for d in topology.devices))
    wanted = data.draw(constraints(graph, alike))
    after = placed(graph, alike, wanted)
    with patch.object(ggml, "_hand_over_once"):
        before = placed(graph, alike, wanted)
    if devices(after) != devices(before):
        event("moved")
        assert copied(graph, alike, after) < copied(graph, alike, before)
    splits = [sum(a != b for a, b in pairwise(devices(found))) for found in (before, after)]
    assert splits[1] <= splits[0]


@given(drawn=graphs(max_nodes=24, min_nodes=6), topology=topologies(2, 4), data=st.data())
def test_upgrade_adds_no_split_and_saves_crossings(drawn, topology, data):
    graph = drawn.graph
    wanted = data.draw(constraints(graph, topology))
    seen = []
    usual = ggml._upgrade

    def watched(work):
        before = list(work.home)
        usual(work)
        seen.append((before, list(work.home)))

    ggml._upgrade = watched
    try:
        placed(graph, topology, wanted)
    finally:
        ggml._upgrade = usual
    ((before, after),) = seen
    assert split_count(graph, after) <= split_count(graph, before)
    assert after == before or crossings(graph, after) < crossings(graph, before)
    for old, new in zip(before, after, strict=True):
        assert new == old or 0 <= new < old
