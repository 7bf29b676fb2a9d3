"""What becomes of graphs when a plan is bound to other memory: updated, or made anew."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggsched.backend.probe import probe
from ggsched.errors import DeviceFault, UsageError
from ggsched.ir.builder import GraphBuilder
from ggsched.passes import make_plan
from ggsched.run.capture import NO_UPDATES, CaptureKey, captured_run
from ggsched.run.executor import Executor
from ggsched.run.resources import Resources
from ggsched.run.store import TensorStore
from ggsched_testing.generators.strategies import graphs, seeds, values_for
from ggsched_testing.generators.topologies import constraints
from tests.backends.updating import WHY, UpdatingCpu, UpdatingFar

KEY = CaptureKey("t", "g", "c", ((0, 7), (1, 8)), ((2, 9, 64),), ((0, 5),), (3, 4))
ADDRESSES = {"memory": ((0, 70), (1, 8)), "host": ((2, 90, 64),), "programs": ((0, 50),)}


@pytest.mark.parametrize("field", [f.name for f in fields(CaptureKey)])
def test_addresses_and_programs_alone_are_updated(field):
    assert KEY.renewal(replace(KEY)) == "replay"
    value = getattr(KEY, field)
    longer = value + "x" if isinstance(value, str) else (*value, (6, 6, 6))
    assert replace(KEY, **{field: longer}).renewal(KEY) == "capture"
    if field in ADDRESSES:
        assert replace(KEY, **{field: ADDRESSES[field]}).renewal(KEY) == "update"


def test_longer_host_memory_and_other_streams_are_no_update():
    assert replace(KEY, host=((2, 9, 65),)).renewal(KEY) == "capture"
    assert replace(KEY, streams=(4, 3)).renewal(KEY) == "capture"


class Bound:
    """A plan of two nodes on a device of some kind, captured from its second run on."""

    def __init__(self, kind):
        g = GraphBuilder("doubled")
        x = g.input("x", (8,))
        y = g.add(x, x)
        self.graph = g.build(g.add(y, y))
        self.device = UpdatingFar(kind)
        self.store = TensorStore([self.device], {}, timeout_s=30)
        self.plan = make_plan(self.graph, probe([self.device]))
        self.executor = Executor(
            self.graph, self.plan, self.resources(), timeout_s=30, captures=True
        )

    @property
    def report(self):
        return self.executor.captured.report

    @property
    def counts(self):
        return self.report.captures, self.report.updates, self.report.replays

    @property
    def part(self):
        (part,) = self.executor.captured._parts
        return part

    def resources(self):
        return Resources(self.graph, self.plan, self.store)

    def rebind(self):
        self.executor.rebind(self.resources())

    def run(self, value):
        x = np.full(8, value, np.float32)
        (out,) = self.executor.run({"x": x}).values()
        np.testing.assert_array_equal(out, 4 * x)

    def close(self):
        self.executor.close()
        self.store.close()
        self.device.close()


@pytest.fixture
def bind():
    made = []

    def make(kind):
        made.append(Bound(kind))
        for value in (1, 2):
            made[-1].run(value)
        assert made[-1].counts == (1, 0, 1)
        return made[-1]

    yield make
    for bound in made:
        bound.close()
        assert not bound.device.graphs.open
        assert all(buffer.is_closed for buffer in bound.device._buffers)


def memories(resources):
    return [buffer.memory for buffer in resources.buffers.values()]


def test_a_graph_is_updated_once_for_each_binding(bind):
    bound = bind("updates")
    for round_ in range(1, 4):
        before = bound.executor._resources
        kept = memories(before)
        bound.rebind()
        assert all(buffer.is_closed for buffer in before.buffers.values())
        for memory in kept:
            memory[:] = b"\xee" * len(memory)
        for value in (3, 4):
            bound.run(value * round_)
        assert bound.counts == (1, round_, 1 + 2 * round_)
        assert all(set(memory) == {0xEE} for memory in kept), "old memory is left alone"
    assert bound.device.graphs.log == ["made", "updated", "updated", "updated"]
    assert "anew" not in bound.report.text()


@pytest.mark.parametrize(("kind", "why"), [("refuses", WHY), ("plain", NO_UPDATES)])
def test_what_is_refused_is_made_anew_with_its_reason(bind, kind, why):
    bound = bind(kind)
    bound.rebind()
    for value in (3, 4):
        bound.run(value)
    assert bound.counts == (2, 0, 3)
    assert bound.device.graphs.log == ["made", "closed", "made"], "never two at once"
    assert list(bound.report.not_updated.values()) == [why]
    assert f"made anew: {why}" in bound.report.text()


def test_equal_keys_are_replayed(bind):
    bound = bind("updates")
    bound.executor.rebind(bound.executor._resources)
    bound.run(3)
    assert bound.counts == (1, 0, 2)


def test_back_and_forth_before_a_run_is_an_update(bind):
    """What lies between is not remembered: the graph has not seen it."""
    bound = bind("updates")
    captured = bound.executor.captured
    key = captured.key
    captured.renew(replace(key, programs=tuple((n, 0) for n, _ in key.programs)))
    captured.renew(key)
    bound.run(3)
    assert bound.counts == (1, 1, 2)


def test_other_differences_release_the_graph_at_once(bind):
    bound = bind("updates")
    captured = bound.executor.captured
    captured.renew(replace(captured.key, commands="others"))
    assert bound.device.graphs.log == ["made", "closed"]
    bound.run(3)
    assert bound.counts == (2, 0, 2)
    assert not bound.report.not_updated


@pytest.mark.parametrize(
    ("kind", "why"), [("breaks", "no updates today"), ("refuses and breaks", "no graphs today")]
)
def test_where_the_driver_fails_the_commands_run_one_by_one(bind, caplog, kind, why):
    bound = bind(kind)
    bound.rebind()
    for value in (3, 4):
        bound.run(value)
    assert bound.counts == (1, 0, 1)
    assert bound.device.graphs.log == ["made", "closed"], "it is not replayed any more"
    assert why in bound.report.text()
    assert "refused" in caplog.text
    bound.rebind()
    bound.run(5)
    assert bound.counts == (1, 0, 1)


def test_a_capture_that_cannot_begin_is_refused(bind):
    bound = bind("updates")

    def refuse(streams):
        raise DeviceFault("no captures today")

    bound.device.begin_capture = refuse
    bound.rebind()
    bound.run(3)
    assert bound.device.graphs.log == ["made", "closed"]
    assert "no captures today" in bound.report.text()


@pytest.mark.parametrize("error", [UsageError("not this one"), KeyboardInterrupt()])
@pytest.mark.parametrize("kind", ["updates", "refuses"])
def test_a_capture_that_is_cut_short_leaves_the_graph_stale(bind, error, kind):
    bound = bind(kind)
    bound.rebind()
    calls = bound.part._calls

    def fail():
        raise error

    bound.part._calls = [*calls[:1], fail]
    with pytest.raises(type(error)):
        bound.executor.run({"x": np.ones(8, np.float32)})
    assert all(not stream.sink.is_capturing for stream in bound.device._streams)
    assert bound.counts == (1, 0, 1)
    bound.part._calls = calls
    bound.run(3)
    assert sum(bound.counts[:2]) == 2
    assert len(bound.device.graphs.open) == 1


@pytest.mark.parametrize("kind", ["updates", "refuses", "breaks"])
def test_a_stale_graph_is_closed_with_its_executor(bind, kind):
    bound = bind(kind)
    bound.rebind()
    bound.executor.close()
    assert not bound.device.graphs.open
    assert bound.counts == (1, 0, 1)


def test_a_plan_takes_its_own_resources_only(bind):
    bound = bind("updates")
    g = GraphBuilder("other")
    x = g.input("x", (8,))
    graph = g.build(g.add(x, x))
    others = Resources(graph, make_plan(graph, probe([bound.device])), bound.store)
    with pytest.raises(UsageError, match="another plan's"):
        bound.executor.rebind(others)
    others.close()
    bound.run(3)
    assert bound.counts == (1, 0, 2)
    bound.executor.close()
    own = bound.resources()
    with pytest.raises(UsageError, match="closed"):
        bound.executor.rebind(own)
    own.close()


kinds = st.sampled_from(["updates", "updates", "refuses", "plain", "breaks", "refuses and breaks"])


@given(drawn=graphs(max_nodes=16), seed=seeds(), data=st.data())
def test_whatever_becomes_of_graphs_the_results_are_those_of_the_commands(drawn, seed, data):
    devices = [UpdatingCpu("updates", i) for i in range(data.draw(st.integers(1, 2)))]
    topology = probe(devices)
    plan = make_plan(drawn.graph, topology, data.draw(constraints(drawn.graph, topology)))
    turns = data.draw(st.lists(st.none() | kinds, min_size=1, max_size=5))
    try:
        eager = _outputs(drawn, plan, devices, seed, turns, captured=False)
        found = _outputs(drawn, plan, devices, seed, turns, captured=True)
    finally:
        for device in devices:
            device.close()
    for expected, outputs in zip(eager, found, strict=True):
        assert expected.keys() == outputs.keys()
        for tid in expected:
            np.testing.assert_array_equal(expected[tid], outputs[tid])
    assert not any(device.graphs.open for device in devices)


def _outputs(drawn, plan, devices, seed, turns, *, captured):
    """Run once for each turn, bound to other memory where that says what devices do then."""
    store = TensorStore(devices, values_for(drawn, seed), timeout_s=30)
    executor = Executor(drawn.graph, plan, Resources(drawn.graph, plan, store), timeout_s=30)
    if captured:
        executor.captured = captured_run(
            plan,
            executor._resources,
            executor._calls,
            executor._events,
            first_eager=False,
            on_host=True,
        )
        executor._calls, executor._numbers = executor.captured.calls, executor.captured.numbers
    used = {slot.name for slot in plan.inputs}
    outputs = []
    for run, kind in enumerate((None, *turns)):
        if kind is not None:
            for device in devices:
                device.kind = kind
            store.drain()
            executor.rebind(Resources(drawn.graph, plan, store))
        values = values_for(drawn, seed + run)
        outputs.append(executor.run({n: v for n, v in values.items() if n in used}))
    store.drain()
    executor.close()
    store.close()
    return outputs
