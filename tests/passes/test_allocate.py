"""Arenas, regions, and results that take over the bytes of an operand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import F16, F32
from ggsched.ir.ops import OPS
from ggsched.passes.place import Constraints
from ggsched.plan.splits import HOST
from ggsched.sanitize import check_plan
from ggsched_testing.generators.strategies import graphs
from ggsched_testing.generators.topologies import constraints, topologies
from tests.passes.machines import NBYTES, N, device, machine, pinned
from tests.support.verified_plans import verified_plan

ONE = machine("gpu:0")


def planned(graph, topology=ONE, wanted=None):
    plan = verified_plan(graph, topology, wanted or Constraints())
    assert check_plan(plan).is_clean
    return plan


def taken_over(graph, **options):
    """Pairs (storage of the result, storage of the operand whose bytes it has)."""
    plan = planned(graph, **options)
    values = plan.splits.values
    return {(values[v].storage, values[old].storage) for v, old in plan.memory.overwrites.items()}


@pytest.fixture
def g():
    return GraphBuilder()


@pytest.fixture
def x(g):
    """A temporary that may be overwritten."""
    return g.sum_rows(g.input("in", (N, N)))


class TestInPlace:
    @pytest.mark.parametrize(
        "op", ["silu", "gelu", "scale", "clamp", "rms_norm", "norm", "soft_max"]
    )
    def test_over_an_operand_that_dies(self, g, x, op):
        y = g.op(op, x)
        assert (y.id, x.id) in taken_over(g.build(y))

    def test_not_by_an_op_that_reads_more_than_it_writes(self, g):
        a = g.silu(g.input("a", (N, N)))
        for y in (g.mul_mat(a, a), g.cont(g.transpose(a)), g.argsort(a), g.concat(a, a)):
            assert (y.id, a.id) not in taken_over(g.build(y))

    def test_not_over_what_is_read_later(self, g, x):
        y = g.silu(x)
        assert (y.id, x.id) not in taken_over(g.build(g.add(y, x)))

    def test_not_over_what_is_an_output(self, g, x):
        y = g.silu(x)
        assert (y.id, x.id) not in taken_over(g.build(y, x))

    def test_not_over_what_another_device_reads_later(self, g, x):
        y = g.silu(x)
        z = g.gelu(x)
        graph = g.build(g.add(y, z))
        two = {"topology": machine("gpu:0", "cpu:0"), "wanted": pinned(0, 0, 1, 0)}
        assert (y.id, x.id) not in taken_over(graph, **two)

    def test_over_what_another_device_read_before(self, g, x):
        z = g.gelu(x)
        y = g.silu(x)
        graph = g.build(g.add(y, z))
        two = {"topology": machine("gpu:0", "cpu:0"), "wanted": pinned(0, 1, 0, 0)}
        assert (y.id, x.id) in taken_over(graph, **two)

    def test_over_a_replica(self, g, x):
        y = g.silu(x)
        graph = g.build(g.gelu(y))
        two = {"topology": machine("gpu:0", "cpu:0"), "wanted": pinned(0, 1, 1)}
        assert (y.id, x.id) in taken_over(graph, **two)

    def test_over_an_uploaded_input(self, g):
        a = g.input("a", (N,))
        y = g.silu(a)
        assert taken_over(g.build(y)) == {(y.id, a.id)}

    @pytest.mark.parametrize("role", ["weight", "state"])
    def test_never_over_what_outlives_the_run(self, g, role):
        a, b = getattr(g, role)("a", (N,)), g.input("b", (N,))
        y = g.silu(a)
        # Without a read-back the last node is the last step, and everything dies there.
        assert taken_over(g.build(b)) == taken_over(g.build(y)) == set()

    def test_the_second_operand_if_not_the_first(self, g, x):
        w = g.weight("w", (N, 1))
        y = g.add(w, x)
        assert (y.id, x.id) in taken_over(g.build(y))

    def test_the_first_that_can(self, g, x):
        other = g.silu(g.input("other", (N, 1)))
        y = g.add(x, other)
        assert {pair for pair in taken_over(g.build(y)) if pair[0] == y.id} == {(y.id, x.id)}

    def test_not_what_is_broadcast(self, g, x):
        w = g.weight("w", (N, N))
        row = g.rows(x, 0, 1)
        y = g.add(w, row)
        assert {pair for pair in taken_over(g.build(y)) if pair[0] == y.id} == set()

    def test_both_operands_may_be_the_same(self, g, x):
        y = g.mul(x, x)
        assert (y.id, x.id) in taken_over(g.build(y))

    def test_not_if_the_other_operand_is_another_view_of_it(self, g):
        a = g.silu(g.input("a", (N, N)))
        y = g.add(a, g.transpose(a))
        assert (y.id, a.id) not in taken_over(g.build(y))

    def test_not_if_the_other_operand_may_not_be_overwritten(self, g):
        a = g.silu(g.input("a", (N, N)))
        y = g.soft_max(a, a)  # it is its own mask
        assert (y.id, a.id) not in taken_over(g.build(y))

    def test_not_a_part_of_a_storage(self, g):
        a = g.silu(g.input("a", (2, N)))
        y = g.silu(g.rows(a, 0, 1))
        assert (y.id, a.id) not in taken_over(g.build(y))

    def test_not_with_other_strides(self, g):
        a = g.silu(g.input("a", (4, N)))
        y = g.silu(g.transpose(a))
        assert (y.id, a.id) not in taken_over(g.build(y))

    def test_a_view_of_another_shape_if_it_is_the_whole_storage(self, g):
        a = g.silu(g.input("a", (2, N)))
        y = g.silu(g.reshape(a, 2 * N))
        assert (y.id, a.id) in taken_over(g.build(y))

    def test_not_with_another_type(self, g):
        a = g.cont(g.input("a", (N,)), F16)
        y = g.add(g.cont(a, F32), g.input("b", (N,)))
        graph = g.build(y)
        pairs = taken_over(graph)
        assert all(graph.tensors[p].dtype is graph.tensors[q].dtype for p, q in pairs)

    def test_a_chain_stays_on_the_same_bytes(self, g, x):
        y = x
        for _ in range(5):
            y = g.silu(y)
        plan = planned(g.build(y))
        compute = [a for a in plan.memory.arenas if a.kind == "compute"]
        assert [a.nbytes for a in compute] == [N * N * 4 + 64]

    def test_what_is_written_in_place_has_one_value(self, g, x):
        y = g.silu(x, inplace=True)
        plan = planned(g.build(y))
        assert plan.memory.overwrites == {}


class TestArenas:
    def test_weights_and_states_have_their_own(self, g):
        w, s = g.weight("w", (N,)), g.state("s", (2, N))
        graph = g.build(g.add(g.add(g.rows(s, 0, 1), w), g.input("x", (N,))))
        plan = planned(graph)
        own = {a.name: (a.kind, a.nbytes) for a in plan.memory.arenas if a.name}
        assert own == {"w": ("weight", NBYTES), "s": ("state", 2 * NBYTES)}

    @pytest.mark.parametrize("alignment", [1, 16, 256])
    def test_alignment_of_the_device(self, g, alignment):
        y = g.input("x", (3,))
        parts = [g.silu(y) for _ in range(4)]
        for part in parts:
            y = g.add(y, part)
        graph = g.build(y)
        plan = planned(graph, machine(device("gpu:0", alignment=alignment)))
        for value, region in zip(plan.splits.values, plan.memory.regions, strict=True):
            assert region.offset % (64 if value.device == HOST else alignment) == 0

    def test_host_memory_by_its_use(self, g):
        y = g.silu(g.silu(g.input("x", (N,))))
        plan = planned(g.build(y), machine("gpu:0", "cpu:0", copies={}), pinned(0, 1))
        kinds = {a.kind for a in plan.memory.arenas if a.device == HOST}
        assert kinds == {"input", "staging", "output"}

    def test_without_nodes(self, g):
        plan = planned(g.build(g.input("x", (N,))))
        assert [a.kind for a in plan.memory.arenas] == ["input"]


@given(drawn=graphs(max_nodes=20), topology=topologies(), data=st.data())
def test_no_more_than_needed(drawn, topology, data):
    """Arenas are near their lower bound, and takeovers follow the rules of the ops."""
    plan = planned(drawn.graph, topology, data.draw(constraints(drawn.graph, topology)))
    for arena, bound in plan.memory.lower_bound.items():
        assert bound <= plan.memory.arenas[arena].nbytes <= 2 * bound
    regions, values = plan.memory.regions, plan.splits.values
    for new, old in plan.memory.overwrites.items():
        assert regions[new] == regions[old]
        assert not values[old].bound
        node = next(n for n in drawn.graph.nodes if plan.splits.bindings[n.id][-1] == new)
        operands = plan.splits.bindings[node.id][:-1]
        assert old in [operands[k] for k in OPS[node.op].may_overwrite if k < len(operands)]
