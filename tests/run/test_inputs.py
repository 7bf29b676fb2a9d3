"""What a run is given: inputs and weights that are missing, unknown or of another shape."""

import numpy as np
import pytest

from ggsched.config import Settings
from ggsched.errors import UsageError
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import F16, I32, Q8_0
from ggsched.scheduler import Scheduler
from tests.run.devices import TestDevice
from tests.run.graphs import N, W, X, chain, harmless, only, plus_weight


@pytest.fixture
def scheduler():
    with TestScheduler() as made:
        yield made


class TestScheduler(Scheduler):
    __test__ = False

    def __init__(self, weights=None, **options):
        weights = {"w": W} if weights is None else weights
        super().__init__([TestDevice()], weights=weights, settings=Settings(), **options)


def test_result(scheduler):
    graph = plus_weight()
    found = only(graph, scheduler.run(graph, {"x": X}))
    np.testing.assert_array_equal(found, (X + W) * np.float32(2))


def test_result_is_a_copy(scheduler):
    graph = plus_weight()
    first = only(graph, scheduler.run(graph, {"x": X}))
    kept = first.copy()
    scheduler.run(graph, {"x": -X})
    np.testing.assert_array_equal(first, kept)


def test_a_strided_input_is_taken_element_by_element(scheduler):
    wide = np.repeat(X, 2)[::2]
    assert not wide.flags.c_contiguous
    graph = harmless()
    np.testing.assert_array_equal(only(graph, scheduler.run(graph, {"x": wide})), 3 * X)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "no value for input 'x'"),
        ({"y": X}, "no input 'y' (inputs: x)"),
        ({"x": X, "w": W}, "no input 'w'"),
        ({"x": X[:-1]}, "float32[15] given for float32[16]"),
        ({"x": X[None]}, "float32[1, 16] given for float32[16]"),
        ({"x": X.astype(np.float64)}, "float64[16] given for float32[16]"),
        ({"x": X.view(np.int32)}, "int32[16] given for float32[16]"),
        ({"x": X[0]}, "float32[] given for float32[16]"),
    ],
)
def test_refused_inputs(scheduler, inputs, message):
    graph = plus_weight()
    with pytest.raises(UsageError) as caught:
        scheduler.run(graph, inputs)
    assert message in str(caught.value)
    found = only(graph, scheduler.run(graph, {"x": X}))
    np.testing.assert_array_equal(found, (X + W) * np.float32(2))


def test_an_input_that_no_node_reads_may_be_given_or_not(scheduler):
    g = GraphBuilder()
    x = g.input("x", (N,))
    g.input("spare", (3,))
    graph = g.build(g.silu(x))
    with_it = scheduler.run(graph, {"x": X, "spare": np.zeros(3, np.float32)})
    np.testing.assert_array_equal(only(graph, with_it), only(graph, scheduler.run(graph, {"x": X})))


def test_an_input_that_no_node_reads_has_to_fit_too(scheduler):
    g = GraphBuilder()
    x = g.input("x", (N,))
    g.input("spare", (3,))
    graph = g.build(g.silu(x))
    with pytest.raises(UsageError, match=r"^spare: float32\[4\] given for float32\[3\]"):
        scheduler.run(graph, {"x": X, "spare": np.zeros(4, np.float32)})


def test_an_input_can_be_the_output_as_it_is(scheduler):
    g = GraphBuilder()
    x, y = g.input("x", (2, N)), g.input("y", (N,))
    row = g.rows(x, 1, 2)
    graph = g.build(row, g.silu(y), x)
    both = np.stack([X, W])
    found = scheduler.run(graph, {"x": both, "y": X})
    np.testing.assert_array_equal(found[row.id], W[None])
    np.testing.assert_array_equal(found[x.id], both)


@pytest.mark.parametrize("dtype", [F16, I32, Q8_0])
def test_types_of_inputs_on_the_host(dtype):
    """f16 and i32 come as numpy has them, packed types as rows of bytes."""
    g = GraphBuilder()
    x, y = g.input("x", (2, 32), dtype), g.input("y", (N,))
    graph = g.build(x, g.silu(y))
    rng = np.random.default_rng(0)
    raw = rng.integers(0, 100, (2, dtype.row_nbytes(32)), dtype=np.uint8)
    value = raw if dtype is Q8_0 else raw.view(np.float16 if dtype is F16 else np.int32)
    with TestScheduler() as scheduler:
        found = scheduler.run(graph, {"x": value, "y": X})[x.id]
    np.testing.assert_array_equal(found.view(np.uint8), value.view(np.uint8))


class TestWeights:
    @pytest.mark.parametrize(
        ("weights", "message"),
        [
            ({}, "w: no data for this weight"),
            ({"v": W}, "w: no data for this weight"),
            (
                {"w": W[:-1]},
                "w: float32[15] given for float32[16]: the graph declares weight f32[16] "
                "(give an array of shape [16])",
            ),
            ({"w": np.stack([W, W])}, "w: float32[2, 16] given for float32[16]"),
        ],
    )
    def test_refused(self, weights, message):
        with TestScheduler(weights) as scheduler:
            with pytest.raises(UsageError) as caught:
                scheduler.run(plus_weight(), {"x": X})
            assert message in str(caught.value)
            assert scheduler.resident_nbytes("weight") == {}
            graph = harmless()
            np.testing.assert_array_equal(only(graph, scheduler.run(graph, {"x": X})), 3 * X)

    def test_a_function_is_asked_once_for_each(self):
        asked = []

        def source(name):
            asked.append(name)
            return W

        seen = []
        progress = {"progress": lambda name, nbytes: seen.append((name, nbytes))}
        with TestScheduler(source, **progress) as scheduler:
            for factor in (1.0, 2.0, 1.0):
                scheduler.run(plus_weight(factor), {"x": X})
            assert scheduler.resident_nbytes("weight") == {"test:0": 4 * N}
        assert asked == ["w"]
        assert seen == [("w", 4 * N)]

    def test_a_strided_weight(self):
        with TestScheduler({"w": np.repeat(W, 2)[::2]}) as scheduler:
            graph = plus_weight()
            found = only(graph, scheduler.run(graph, {"x": X}))
        np.testing.assert_array_equal(found, (X + W) * np.float32(2))

    def test_one_weight_cannot_live_on_two_devices(self):
        from ggsched.passes.place import Constraints

        devices = [TestDevice("test:0"), TestDevice("test:1")]
        graph = plus_weight()
        with Scheduler(devices, weights={"w": W}, settings=Settings()) as scheduler:
            scheduler.run(graph, {"x": X}, Constraints(homes={"w": 1}))
            with pytest.raises(UsageError, match="resident as weight of 64 bytes on test:1"):
                scheduler.run(graph, {"x": X}, Constraints(homes={"w": 0}))

    def test_the_same_name_with_another_size(self):
        g = GraphBuilder()
        short = g.build(g.add(g.input("x", (4,)), g.weight("w", (4,))))
        with TestScheduler() as scheduler:
            scheduler.run(plus_weight(), {"x": X})
            with pytest.raises(UsageError, match="this plan wants a weight of 16 bytes"):
                scheduler.run(short, {"x": X[:4]})


def test_a_plan_of_another_graph_is_refused(scheduler):
    from ggsched.run.resources import Resources

    plan = scheduler.plan(harmless())
    with pytest.raises(UsageError, match="another graph"):
        Resources(plus_weight(), plan, scheduler._store)


def test_a_plan_for_other_devices_is_refused(scheduler):
    from ggsched.run.resources import Resources
    from ggsched.run.store import TensorStore

    graph, _ = chain()
    other = TensorStore([TestDevice("test:0", alignment=128)], {}, timeout_s=1)
    with pytest.raises(UsageError, match="their facts differ"):
        Resources(graph, scheduler.plan(graph), other)
