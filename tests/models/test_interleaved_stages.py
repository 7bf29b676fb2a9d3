"""Parts of a joined graph in turns: the same meaning, and devices that need not wait."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggsched.ir import GraphBuilder
from ggsched.ir.dtype import I32
from ggsched.ir.join import join_graphs
from ggsched.ir.tensor import Role
from ggsched.passes.memory.rings import Slots
from ggsched.passes.place import Constraints
from ggsched.sanitize import check_plan
from ggsched.scheduler import Scheduler
from ggsched_llm.batches import interleave
from ggsched_testing.oracle.interpreter import run_oracle
from ggsched_testing.schedule_policy import EagerPolicy, RandomPolicy
from ggsched_testing.sim.config import SimConfig
from ggsched_testing.sim.costs import Costs
from ggsched_testing.sim.world import SimWorld

WIDTH, ROWS, TOKENS, NODE_S = 8, 6, 2, 1e-3
COSTS = Costs(
    enqueue_s=0.0,
    launch_s=0.0,
    node_s=NODE_S,
    flops_per_s=1e30,
    memory_bytes_per_s=1e30,
    transfer_s=0.0,
    upload_bytes_per_s=1e30,
    download_bytes_per_s=1e30,
    copy_bytes_per_s=1e30,
    record_s=0.0,
    wait_s=0.0,
    thread_wait_s=0.0,
)


def layers(count, *, with_state=True):
    """Return layers of two products, the second of which lives elsewhere, and of a state."""
    g = GraphBuilder("layers")
    x = g.input("x", (TOKENS, WIDTH))
    rows = g.input("rows", (TOKENS,), I32) if with_state else None
    for k in range(count):
        if rows is not None:
            cache = g.state(f"cache{k}", (ROWS, WIDTH))
            x = g.get_rows(g.set_rows(cache, x, rows), rows)
        x = g.mul_mat(g.weight(f"a{k}", (WIDTH, WIDTH)), x)
        x = g.mul_mat(g.weight(f"b{k}", (WIDTH, WIDTH)), x)
    return g.build(x)


def homes(count):
    return {**{f"a{k}": 0 for k in range(count)}, **{f"b{k}": 1 for k in range(count)}}


def values_of(graph, seed):
    rng = np.random.default_rng(seed)
    values = {}
    for t in (*graph.roots(Role.WEIGHT), *graph.roots(Role.INPUT)):
        rows = rng.permutation(ROWS)[:TOKENS].astype(np.int32)
        values[t.name] = rows if t.dtype is I32 else 0.3 * rng.standard_normal(t.shape, np.float32)
    return values


def inputs_of(graph, values):
    return {t.name: values[t.name] for t in graph.roots(Role.INPUT)}


class Made:
    """Parts as one graph, after each other and in turns, on two simulated devices."""

    def __init__(self, count, m, *, with_state=True, costs=None, seed=None):
        self.joined = join_graphs([layers(count, with_state=with_state)] * m)
        self.values = values_of(self.joined.graph, seed or 0)
        # Copies in both directions are the first device's, as they are on OpenCL beside a CPU;
        # those of who computes would stand behind what it has been given since.
        second = SimConfig(copies=frozenset(), costs=costs or Costs())
        configs = [SimConfig(costs=costs or Costs()), second]
        policy = EagerPolicy() if seed is None else RandomPolicy(seed)
        self.world = SimWorld(configs, policy=policy)
        self.scheduler = Scheduler(self.world.open_all(), weights=self.values)
        self.where = Constraints(homes(count)).with_slots(Slots(2, self.joined.firsts))
        plan = self.scheduler.plan(self.joined.graph, self.where)
        self.turned = interleave(self.joined, plan)

    def run(self, graph):
        """Return the outputs and the simulated seconds of a run."""
        self.scheduler.prepare(graph, self.where)
        began = self.world.host_s
        out = self.scheduler.run(graph, inputs_of(graph, self.values), self.where)
        return out, self.world.host_s - began


@given(count=st.integers(2, 3), m=st.integers(2, 4), seed=st.integers(0, 1 << 16))
def test_the_same_is_computed(count, m, seed):
    made = Made(count, m, seed=seed)
    with made.scheduler:
        assert made.turned is not None
        turned = made.turned.graph
        assert turned.digest != made.joined.graph.digest
        out, _ = made.run(turned)
        assert check_plan(made.scheduler.plan(turned, made.where)).is_clean
    expected = run_oracle(made.joined.graph, made.values)
    again = run_oracle(turned, made.values)
    for tid, array in expected.items():
        np.testing.assert_array_equal(again[tid], array)
        np.testing.assert_allclose(out[tid], array, rtol=1e-4, atol=1e-5)
    assert not made.world.violations


@pytest.mark.parametrize("count", [2, 6])
@pytest.mark.parametrize("m", [2, 8])
def test_two_devices_work_at_once_though_each_part_goes_to_and_fro(count, m):
    """Each device has ``count * m`` nodes; in turns the second begins one node later."""
    made = Made(count, m, with_state=False, costs=COSTS)
    with made.scheduler:
        _, after_s = made.run(made.joined.graph)
        _, turns_s = made.run(made.turned.graph)
    assert turns_s == pytest.approx((count * m + 1) * NODE_S, rel=0.01)
    assert after_s >= (2 * count * m - m) * NODE_S


def test_parts_that_would_overtake_each_other_stay_as_they_are():
    """The second part's first stage reads what the first part's last stage writes."""
    g = GraphBuilder("loop")
    x, rows = g.input("x", (TOKENS, WIDTH)), g.input("rows", (TOKENS,), I32)
    state = g.state("s", (ROWS, WIDTH))
    y = g.mul_mat(g.weight("a0", (WIDTH, WIDTH)), g.add(x, g.get_rows(state, rows)))
    y = g.mul_mat(g.weight("b0", (WIDTH, WIDTH)), y)
    joined = join_graphs([g.build(y, g.set_rows(state, y, rows))] * 2)
    world = SimWorld([SimConfig(), SimConfig()])
    where = Constraints({"a0": 0, "b0": 1, "s": 0})
    with Scheduler(world.open_all(), weights=values_of(joined.graph, 0)) as scheduler:
        plan = scheduler.plan(joined.graph, where)
        assert len(plan.splits.splits) > 4
        assert interleave(joined, plan) is None


def test_nothing_is_turned_where_no_part_comes_back():
    made = Made(1, 3, with_state=False)
    with made.scheduler:
        assert made.turned is None
