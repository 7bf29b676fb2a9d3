"""What a plan depends on makes a new one, and nothing else does."""

import numpy as np
import pytest

from ggsched.config import Settings
from ggsched.errors import UsageError
from ggsched.ir.builder import GraphBuilder
from ggsched.passes.options import PlanOptions
from ggsched.passes.place import Constraints
from ggsched.passes.placement.cost import CostBased
from ggsched.passes.placement.ggml import GgmlRules
from ggsched.passes.placement.pinned import Pinned
from ggsched.planner import plan_key
from ggsched.run.cache import RecentCache
from ggsched.scheduler import Scheduler
from tests.run.devices import TestDevice, assert_released
from tests.run.graphs import N, W, X, counter, only, plus_weight


@pytest.fixture
def scheduler():
    devices = [TestDevice("test:0"), TestDevice("test:1")]
    with Scheduler(devices, weights={"w": W, "v": W}, settings=Settings()) as made:
        yield made


def shaped(n, outputs=1, transposed=False):
    g = GraphBuilder()
    x = g.input("x", (n, n))
    y = g.silu(g.transpose(x) if transposed else x)
    z = g.silu(y)
    return g.build(*[z, y][:outputs])


class TestKey:
    @pytest.mark.parametrize(
        ("first", "second"),
        [
            (plus_weight(2.0), plus_weight(3.0)),
            (plus_weight(name="w"), plus_weight(name="v")),
            (shaped(4), shaped(5)),
            (shaped(4), shaped(4, outputs=2)),
            (shaped(4), shaped(4, transposed=True)),
            (counter(1.0), counter(2.0)),
        ],
    )
    def test_misses(self, scheduler, first, second):
        plans = [scheduler.plan(g) for g in (first, second)]
        assert plans[0] is not plans[1]
        assert scheduler.plan_cache.misses == 2

    def test_states_to_clear_are_part_of_it(self, scheduler):
        graph = counter()
        usual = scheduler.plan(graph)
        assert scheduler.plan(graph, Constraints(clears=frozenset({"s"}))) is not usual
        assert scheduler.plan(graph, Constraints(clears=frozenset({"other"}))) is usual

    @pytest.mark.parametrize(
        ("first", "second"),
        [
            (plus_weight(), plus_weight()),
            (plus_weight(label="a"), plus_weight(label="b")),
            (counter(name="a"), counter(name="b")),
        ],
    )
    def test_hits(self, scheduler, first, second):
        assert first is not second
        assert scheduler.plan(first) is scheduler.plan(second)
        assert (scheduler.plan_cache.hits, scheduler.plan_cache.misses) == (1, 1)

    @pytest.mark.parametrize(
        ("first", "second", "is_same"),
        [
            (Constraints(), Constraints(homes={}, pins={}), True),
            (Constraints(homes={"w": 0}), Constraints(homes={"w": 0, "elsewhere": 1}), True),
            (Constraints(homes={"a": 0}), Constraints(homes={"b": 1}), True),
            (Constraints(homes={"w": 0}), Constraints(homes={"w": 1}), False),
            (Constraints(), Constraints(homes={"w": 0}), False),
            (Constraints(pins={0: 0}), Constraints(pins={0: 1}), False),
            (Constraints(pins={0: 0}), Constraints(pins={1: 0}), False),
            (Constraints(pins={0: 0, 1: 1}), Constraints(pins={1: 1, 0: 0}), True),
        ],
    )
    def test_constraints(self, scheduler, first, second, is_same):
        graph = plus_weight()
        assert (scheduler.plan(graph, first) is scheduler.plan(graph, second)) is is_same

    def test_cleared_states(self, scheduler):
        """A run that goes on with a state and one that clears it have plans of their own."""
        graph, cleared = counter(), Constraints(clears=frozenset({"s", "elsewhere"}))
        kept = [scheduler.run(graph, {}, c) for c in (None, None, cleared, None)]
        assert [only(graph, outputs)[0] for outputs in kept] == [1.0, 2.0, 1.0, 2.0]
        assert scheduler.plan(graph, cleared) is not scheduler.plan(graph)
        same = Constraints(clears=frozenset({"s"}))
        assert scheduler.plan(graph, cleared) is scheduler.plan(graph, same)

    def test_an_op_parameter_that_changes_is_computed_with(self, scheduler):
        for factor in (2.0, -1.0, 2.0, 0.5):
            graph = plus_weight(factor)
            found = only(graph, scheduler.run(graph, {"x": X}))
            np.testing.assert_array_equal(found, (X + W) * np.float32(factor))
        assert scheduler.plan_cache.misses == 3


class TestEviction:
    @pytest.mark.parametrize("limit", [1, 2, 3])
    def test_results_stay_right(self, limit):
        device = TestDevice()
        weights = {"w": W}
        with Scheduler([device], weights=weights, settings=Settings(), plan_limit=limit) as s:
            for factor in (1.0, 2.0, 3.0, 4.0, 1.0, 4.0, 2.0):
                graph = plus_weight(factor)
                found = only(graph, s.run(graph, {"x": X}))
                np.testing.assert_array_equal(found, (X + W) * np.float32(factor))
                compute = [b for b in device.open_buffers if b.nbytes != 4 * N]
                assert len(device.open_buffers) <= limit + 1, compute
            assert s.resident_nbytes("weight") == {"test:0": 4 * N}
        assert_released(device)

    def test_of_what_ran_last(self):
        """The one that is evicted must not be taken for the one that runs."""
        with Scheduler([TestDevice()], settings=Settings(), plan_limit=1) as scheduler:
            a, b = counter(1.0), counter(10.0)
            totals = [only(g, scheduler.run(g, {}))[0] for g in (a, b, a, a, b)]
        assert totals == [1.0, 11.0, 12.0, 13.0, 23.0]

    def test_forgotten_keys_do_not_pile_up(self):
        with Scheduler([TestDevice()], settings=Settings(), plan_limit=1) as scheduler:
            for i in range(200):
                scheduler.plan(counter(float(i)))
            assert len(scheduler._planner._keys) < 100


CHANGES = {
    "nothing": lambda s, g: None,
    "forgotten": lambda s, g: s.forget(g),
    "evicted": lambda s, g: s.keep_plans(1) or s.run(plus_weight(5.0), {"x": X}),
    "others ran": lambda s, g: s.run(plus_weight(5.0), {"x": X}),
    "reset": lambda s, g: s.reset([TestDevice("test:0"), TestDevice("test:1")]),
    "another weight": lambda s, g: s.reload_weights(["w"]),
}


class TestTheSameAgain:
    """A run with the very graph and constraints of the last one asks no cache."""

    @pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
    def test_whatever_comes_between(self, scheduler, change):
        graph = plus_weight()
        for _ in range(3):
            for _ in range(2):
                found = only(graph, scheduler.run(graph, {"x": X}))
                np.testing.assert_array_equal(found, (X + W) * 2)
            change(scheduler, graph)

    def test_another_home(self, scheduler):
        graph = plus_weight()
        for home in (0, 0, 0):
            scheduler.run(graph, {"x": X}, Constraints(homes={"w": home}))
        assert scheduler.plan_cache.misses == 1
        with pytest.raises(UsageError, match="resident"):
            scheduler.run(graph, {"x": X}, Constraints(homes={"w": 1}))
        found = only(graph, scheduler.run(graph, {"x": X}, Constraints(homes={"w": 0})))
        np.testing.assert_array_equal(found, (X + W) * 2)

    def test_a_bad_input_and_after_it(self, scheduler):
        graph = plus_weight()
        for _ in range(2):
            scheduler.run(graph, {"x": X})
            with pytest.raises(UsageError):
                scheduler.run(graph, {"x": X[1:]})

    def test_closed(self):
        graph = plus_weight()
        with Scheduler([TestDevice()], weights={"w": W}, settings=Settings()) as scheduler:
            scheduler.run(graph, {"x": X})
        with pytest.raises(UsageError, match="closed"):
            scheduler.run(graph, {"x": X})


@pytest.mark.parametrize("is_async", [False, True])
def test_two_graphs_share_a_state(is_async):
    device = TestDevice(is_async=is_async)
    with Scheduler([device], settings=Settings()) as scheduler:
        a, b, total = counter(1.0), counter(100.0), 0.0
        for turn in range(12):
            graph, step = (a, 1.0) if turn % 3 else (b, 100.0)
            total += step
            assert (only(graph, scheduler.run(graph, {})) == total).all()
    assert_released(device)


class TestRecentCache:
    def test_keeps_those_used_last(self):
        dropped = []
        cache = RecentCache(2, dropped.append)
        assert [cache.get(k, lambda k=k: k.upper()) for k in "abac"] == ["A", "B", "A", "C"]
        assert dropped == ["B"]
        assert (cache.hits, cache.misses) == (1, 3)
        assert cache.get("a", lambda: "new") == "A"

    def test_none_is_an_entry(self):
        """A graph in which nothing was recognised is not searched again in every run."""
        cache, made = RecentCache(2), []
        for _ in range(3):
            assert cache.get("a", lambda: made.append("a")) is None
        assert made == ["a"]
        assert (cache.hits, cache.misses) == (2, 1)
        cache.drop("a")
        assert len(cache) == 0

    def test_what_cannot_be_made_is_not_kept(self):
        cache = RecentCache(2)

        def fail():
            raise ValueError("no")

        with pytest.raises(ValueError, match="no"):
            cache.get("a", fail)
        assert cache.get("a", lambda: 1) == 1

    def test_what_cannot_be_evicted_stays(self):
        def refuse(entry):
            raise ValueError(entry)

        cache = RecentCache(1, refuse)
        cache.get("a", lambda: 1)
        with pytest.raises(ValueError, match="1"):
            cache.get("b", lambda: 2)
        assert cache.get("a", lambda: 3) == 1

    def test_take_all(self):
        dropped = []
        cache = RecentCache(3, dropped.append)
        for k in "abc":
            cache.get(k, lambda k=k: k)
        assert cache.take_all() == ["a", "b", "c"]
        assert dropped == []
        assert cache.get("a", lambda: "again") == "again"

    @pytest.mark.parametrize("limit", [0, -1])
    def test_needs_room(self, limit):
        with pytest.raises(UsageError):
            RecentCache(limit)


class TestPlacement:
    @pytest.mark.parametrize("placement", ["ggml", "cost", CostBased(2), Pinned({"w": "test:1"})])
    def test_is_that_of_every_plan(self, placement):
        graph = plus_weight()
        devices = [TestDevice("test:0"), TestDevice("test:1")]
        with Scheduler(
            devices, weights={"w": W}, settings=Settings(), placement=placement
        ) as scheduler:
            plan = scheduler.plan(graph)
            assert scheduler.draft(graph).placement == plan.placement
            assert np.array_equal(only(graph, scheduler.run(graph, {"x": X})), (X + W) * 2)
            used = {c.device for c in plan.placement.choices}
        assert used == ({1} if isinstance(placement, Pinned) else {0})
        assert_released(*devices)

    def test_is_part_of_the_key(self):
        graph, free, options = plus_weight(), Constraints(), PlanOptions()
        keys = {
            plan_key(graph, free, policy.key, options)
            for policy in (GgmlRules(), CostBased(), CostBased(2), Pinned({"w": 0}))
        }
        assert len(keys) == 4

    def test_what_is_not_a_policy_leaves_nothing_open(self):
        devices = [TestDevice("test:0")]
        with pytest.raises(UsageError, match="invalid placement 'heft'"):
            Scheduler(devices, placement="heft")
        assert_released(*devices)
