"""Which commands are captured, and that replays compute what the commands compute."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggsched.backend.capture import offers_capture
from ggsched.backend.probe import probe
from ggsched.errors import DeviceFault
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.join import join_graphs
from ggsched.passes import make_plan
from ggsched.passes.memory.rings import Slots
from ggsched.passes.place import Constraints
from ggsched.run.capture import MEASURED_RUNS, CapturedRun, captured_run
from ggsched.run.capture_plan import SHORT, Obstacle, plan_capture
from ggsched.run.executor import Executor
from ggsched.run.graph_order import GraphOrder
from ggsched.run.resources import Resources
from ggsched.run.store import TensorStore
from ggsched.scheduler import Scheduler
from ggsched_cpu import open_backend
from ggsched_testing.generators.strategies import graphs, seeds, values_for
from ggsched_testing.generators.topologies import constraints
from ggsched_testing.oracle.interpreter import run_oracle
from ggsched_testing.plan_builder import PlanWriter, fake_device
from tests.backends.device_settings import far_device
from tests.run.devices import TestDevice
from tests.run.shared_layers import inputs, placement, shared

RUNS = 3


def writer():
    w = PlanWriter(fake_device("gpu:0"), fake_device("gpu:1"))
    x, y = w.host_input("x", 64), w.host_output("y", 64)
    a = w.value(w.arena("compute", 0, 256), 0, 64, of=x)
    return w, x, y, a


def test_a_step_on_one_stream_is_one_segment():
    w, x, y, a = writer()
    q = w.stream(0)
    w.transfer(q, x, a)
    w.launch(q, w.node("p", a))
    w.transfer(q, a, y)
    event = w.record(q)
    w.sync(q, event)
    found = plan_capture(w.plan(), {0})
    assert [(s.start, s.stop, s.streams, s.tied) for s in found.segments] == [(0, 3, (q,), ())]
    assert found.obstacles == (
        Obstacle(3, 4, "e0 is waited for outside"),
        Obstacle(4, 5, "the host waits"),
    )
    assert found.text().splitlines()[0] == "c0..c2: captured"


def test_forks_and_joins_stay_inside():
    w, x, y, a = writer()
    p, q = w.stream(0), w.stream(0)
    w.transfer(p, x, a)
    w.order(p, q)
    w.launch(q, w.node("p", a), w.node("p", a))
    w.order(q, p)
    w.transfer(p, a, y)
    w.sync(p)
    (segment,) = plan_capture(w.plan(), {0}).segments
    assert (segment.start, segment.stop) == (0, 7)
    assert set(segment.streams) == {p, q}
    assert segment.tied == ()


def test_a_stream_with_commands_outside_is_tied_to_the_origin():
    w, x, y, a = writer()
    p, q = w.stream(0), w.stream(0)
    w.transfer(p, x, a)
    w.launch(p, w.node("p", a), w.node("p", a))
    w.order(p, q)
    w.launch(q, w.node("p", a))
    w.sync(q)
    w.transfer(p, a, y)
    w.sync(p)
    found = plan_capture(w.plan(), {0})
    (segment,) = found.segments
    assert segment.streams == (p, q)
    assert segment.tied == (q,)
    assert found.obstacles[1].reason == "too little for a graph"


def test_a_wait_for_somebody_else_cuts():
    w, x, y, a = writer()
    p, q = w.stream(0), w.stream(1)
    b = w.value(w.arena("compute", 1, 256), 0, 64, of=x)
    w.launch(q, w.node("p", b), w.node("p", b))
    event = w.record(q)
    w.launch(p, w.node("p", a), w.node("p", a))
    w.wait(p, event)
    w.launch(p, w.node("p", a), w.node("p", a))
    w.transfer(p, a, y)
    w.sync(p)
    found = plan_capture(w.plan(), {0})
    assert [(s.start, s.stop) for s in found.segments] == [(2, 3), (4, 6)]
    assert [o.reason for o in found.obstacles] == [
        "its device offers no capture",
        "it waits for e0, which is recorded outside",
        "the host waits",
    ]
    both = plan_capture(w.plan(), {0, 1})
    assert [s.device for s in both.segments] == [1, 0, 0]


def test_uploads_that_are_read_at_once_stay_outside():
    """No wait of the plan orders that read with what the host writes next: graphs read later."""
    w = PlanWriter(fake_device("gpu:0", snapshots_uploads=True))
    x, y = w.host_input("x", 64), w.host_output("y", 64)
    a, q = w.value(w.arena("compute", 0, 256), 0, 64, of=x), w.stream(0)
    w.transfer(q, x, a)
    w.launch(q, w.node("p", a))
    w.transfer(q, a, y)
    w.sync(q)
    found = plan_capture(w.plan(), {0})
    assert [(s.start, s.stop) for s in found.segments] == [(1, 3)]
    assert found.obstacles[0] == Obstacle(0, 1, "its source is read while it is enqueued")


def test_a_wait_for_the_segment_of_another_device_cuts():
    w, x, y, a = writer()
    p, q = w.stream(0), w.stream(1)
    b = w.value(w.arena("compute", 1, 256), 0, 64, of=x)
    w.launch(p, w.node("p", a), w.node("p", a))
    w.order(p, q)
    w.launch(q, w.node("p", b), w.node("p", b))
    w.transfer(q, b, y)
    w.sync(q)
    found = plan_capture(w.plan(), {0, 1})
    assert [(s.start, s.stop, s.device) for s in found.segments] == [(0, 1, 0), (3, 5, 1)]
    assert [o.reason for o in found.obstacles] == [
        "e0 is waited for outside",
        "it waits for e0, which is recorded outside",
        "the host waits",
    ]


@pytest.mark.parametrize(("nodes", "reads_peers"), [(2, True), (2, False), (SHORT, True)])
def test_peers_that_exchange_often_are_captured_together(nodes, reads_peers):
    """Stages with long graphs stay apart, and so do devices that are no peers."""
    w = PlanWriter(*(fake_device(f"gpu:{i}", reads_peers=reads_peers) for i in range(2)))
    x, y = w.host_input("x", 64), w.host_output("y", 64)
    values = [w.value(w.arena("compute", i, 256), 0, 64, of=x) for i in range(2)]
    a, b = w.stream(0), w.stream(1)
    streams = {a: values[0], b: values[1]}
    w.transfer(a, x, values[0])
    for _ in range(2):
        for stream, other in ((a, b), (b, a)):
            w.launch(stream, *(w.node("p", streams[stream]) for _ in range(nodes)))
            w.order(stream, other)
    w.transfer(a, values[0], y)
    w.sync(a)
    found = plan_capture(w.plan(), {0, 1})
    if nodes < SHORT and reads_peers:
        (segment,) = found.segments
        assert (segment.start, segment.stop, segment.device) == (0, 14, 0)
        assert segment.streams == (a, b)
        assert not segment.tied
    else:
        assert {s.device for s in found.segments} == {0, 1}
        assert len(found.segments) == 4


@given(drawn=graphs(max_nodes=16), seed=seeds(), data=st.data())
def test_replays_compute_what_the_commands_compute(drawn, seed, data):
    backend = open_backend()
    devices = [backend.open_device(i) for i in range(data.draw(st.integers(1, 2)))]
    topology = probe(devices)
    plan = make_plan(drawn.graph, topology, data.draw(constraints(drawn.graph, topology)))
    try:
        outputs = [_run(drawn, plan, devices, seed, captured) for captured in (False, True)]
        for eager, replayed in zip(*outputs, strict=True):
            assert eager.keys() == replayed.keys()
            for tid in eager:
                np.testing.assert_array_equal(eager[tid], replayed[tid])
    finally:
        for device in devices:
            device.close()


def _run(drawn, plan, devices, seed, captured):
    store = TensorStore(devices, values_for(drawn, seed), timeout_s=30)
    executor = Executor(drawn.graph, plan, Resources(drawn.graph, plan, store), timeout_s=30)
    made = capture(executor) if captured else None
    used = {slot.name for slot in plan.inputs}
    found = []
    for run in range(RUNS):
        values = values_for(drawn, seed + run)
        found.append(executor.run({n: v for n, v in values.items() if n in used}))
    if made is not None:
        report = made.report
        covered = sum(s.stop - s.start for s in report.plan.segments)
        covered += sum(o.stop - o.start for o in report.plan.obstacles)
        assert covered == len(plan.commands)
        assert report.captures == len(report.plan.segments)
        assert report.replays == RUNS * report.captures
        assert len(report.text().splitlines()) == len(made.report.plan.text().splitlines())
        made.close()
    executor.close()
    store.close()
    return found


def capture(executor):
    made = captured_run(
        executor.plan,
        executor._resources,
        executor._calls,
        executor._events,
        first_eager=False,
        on_host=True,
    )
    executor._calls, executor._numbers = made.calls, made.numbers
    return made


@pytest.fixture
def bound():
    """A plan of two nodes, bound to a processor."""
    g = GraphBuilder("two")
    x = g.input("x", (8,))
    graph = g.build(g.silu(g.add(x, x)))
    device = open_backend().open_device(0)
    store = TensorStore([device], {}, timeout_s=30)
    plan = make_plan(graph, probe([device]))
    executor = Executor(graph, plan, Resources(graph, plan, store), timeout_s=30)
    yield executor
    executor.close()
    store.close()
    device.close()


def test_every_part_of_the_key_counts(bound):
    made = capture(bound)
    bound.run({"x": np.ones(8, np.float32)})
    made.renew(made.key)
    bound.run({"x": np.ones(8, np.float32)})
    assert (made.report.captures, made.report.replays) == (1, 2)
    for i, field in enumerate(fields(made.key)):
        value = getattr(made.key, field.name)
        other = value + "x" if isinstance(value, str) else (*value, (0, 0, 0))
        made.renew(replace(made.key, **{field.name: other}))
        bound.run({"x": np.ones(8, np.float32)})
        assert made.report.captures == i + 2, field.name


def test_a_plan_is_captured_in_its_second_run(bound):
    made = captured_run(bound.plan, bound._resources, bound._calls, bound._events, on_host=True)
    bound._calls, bound._numbers = made.calls, made.numbers
    for run in range(4):
        bound.run({"x": np.ones(8, np.float32)})
        assert made.report.captures == min(run, 1)
        assert made.report.replays == run


def test_devices_in_host_memory_are_left_alone():
    with Scheduler(["cpu:0"], weights={}) as scheduler:
        g = GraphBuilder("two")
        graph = g.build(g.silu(g.input("x", (8,))))
        for _ in range(3):
            scheduler.run(graph, {"x": np.ones(8, np.float32)})
        (executor,) = scheduler._executors.take_all()
        assert executor.captured is not None
        assert executor.captured.report.captures == 0
        executor.close()


def test_a_device_whose_memory_is_not_the_hosts_is_captured():
    far = far_device()
    graph = doubled()
    with Scheduler([far]) as scheduler:
        for run in range(4):
            x = np.full(8, run, np.float32)
            (out,) = scheduler.run(graph, {"x": x}).values()
            np.testing.assert_array_equal(out, 4 * x)
        (executor,) = scheduler._executors.take_all()
        report = executor.captured.report
        assert (report.captures, report.replays) == (1, 3)
        assert "captured" in report.text()
        executor.close()
    far.close()


def doubled():
    g = GraphBuilder("doubled")
    x = g.input("x", (8,))
    y = g.add(x, x)
    return g.build(g.add(y, y))


def test_a_refused_capture_is_reported_and_the_commands_run(bound, caplog):
    device = bound._resources.streams[0].device
    assert offers_capture(device)
    begin = device.begin_capture

    def refuse(streams):
        inner = begin(streams)
        inner.end = lambda: (_ for _ in ()).throw(DeviceFault("no graphs today"))
        return inner

    device.begin_capture = refuse
    made = capture(bound)
    x = np.arange(8, dtype=np.float32)
    for _ in range(2):
        (out,) = bound.run({"x": x}).values()
        np.testing.assert_allclose(out, 2 * x / (1 + np.exp(-2 * x)), rtol=1e-6)
    assert made.report.captures == 0
    assert "no graphs today" in made.report.text()
    assert "refused" in caplog.text


def test_peers_whose_capture_together_is_refused_are_captured_apart():
    """A driver may refuse graphs of several devices; what runs then is as without peers."""
    g = GraphBuilder("there and back")
    at = g.input("x", (8,))
    for _ in range(3):
        at = g.scale(g.add(at, at), 0.5)
        at = g.scale(g.add(at, at), 0.5)
    graph = g.build(at)
    devices = [open_backend().open_device(i) for i in range(2)]
    begun = []

    def refusing(device):
        begin = device.begin_capture

        def refuse(streams):
            if len({s.device for s in streams}) > 1:
                raise DeviceFault("one device at a time")
            begun.append(device)
            return begin(streams)

        return refuse

    for device in devices:
        device.begin_capture = refusing(device)
    pins = {n.id: n.id // 2 % 2 for n in graph.nodes}
    plan = make_plan(graph, probe(devices), Constraints(pins=pins, reads_peers=True))
    store = TensorStore(devices, {}, timeout_s=30)
    executor = Executor(graph, plan, Resources(graph, plan, store), timeout_s=30)
    made = capture(executor)
    assert len({plan.streams.streams[q].device for q in made.report.plan.segments[0].streams}) == 2
    for run in range(3):
        x = np.arange(8, dtype=np.float32) + run
        (out,) = executor.run({"x": x}).values()
        np.testing.assert_array_equal(out, x)
    assert set(begun) == set(devices)
    assert made.report.captures == len(begun)
    assert made.report.replays == RUNS * made.report.captures
    assert "one device at a time" in made.report.text()
    made.close()
    executor.close()
    store.close()
    for device in devices:
        device.close()


class Apart(TestDevice):
    """A device whose streams cannot wait for events of others."""

    def wait_path(self, other):
        return "host"


@pytest.mark.parametrize(
    ("kind", "has_events", "sizes"),
    [(TestDevice, True, {2}), (Apart, True, {1}), (TestDevice, False, {1})],
    ids=["peers", "no wait path", "no events"],
)
def test_only_peers_that_wait_for_each_other_are_captured_together(kind, has_events, sizes):
    """Others are captured each by itself: no event could order their streams with a graph."""
    facts = {"reads_peers": True, "is_host": False, "has_events": has_events}
    devices = [kind(f"test:{i}", **facts, snapshots_uploads=False) for i in range(2)]
    g = GraphBuilder("two")
    x = g.input("x", (2, 8))
    graph = g.build(g.silu(g.silu(x)), g.scale(g.scale(x, 2.0), 2.0))
    pins = Constraints(pins={0: 0, 1: 0, 2: 1, 3: 1})
    with Scheduler(devices) as scheduler:
        for run in range(4):
            value = np.full((2, 8), run, np.float32)
            found = scheduler.run(graph, {"x": value}, pins)
            for tid, array in run_oracle(graph, {"x": value}).items():
                np.testing.assert_allclose(found[tid], array, rtol=1e-6)
        (executor,) = scheduler._executors.values()
        report = executor.captured.report
        assert report.replays == 3 * len(report.plan.segments)
        assert {len(segment.streams) for segment in report.plan.segments} == sizes


def test_groups_of_peers_wait_for_each_other_in_pairs():
    """Two that wait for a third, but not for each other, are not in one graph."""
    w = PlanWriter(*(fake_device(f"gpu:{i}", reads_peers=True) for i in range(3)))
    x = w.host_input("x", 64)
    for i in range(3):
        value, q = w.value(w.arena("compute", i, 256), 0, 64, of=x), w.stream(i)
        w.launch(q, w.node("p", value), w.node("p", value))
    (all_of_them,) = plan_capture(w.plan(), {0, 1, 2}).segments
    assert len(all_of_them.streams) == 3
    pairs, last = plan_capture(w.plan(), {0, 1, 2}, unordered={(2, 1)}).segments
    assert (len(pairs.streams), len(last.streams)) == (2, 1)


def calls_of(origin, monkeypatch):
    """Return a list to which a stream's records and replays are added."""
    calls = []
    for name in ("record", "replay"):
        whole = getattr(type(origin), name)

        def noted(stream, given, name=name, whole=whole):
            if stream is origin:
                calls.append(name)
            return whole(stream, given)

        monkeypatch.setattr(type(origin), name, noted)
    return calls


@pytest.mark.parametrize("peers", [False, True])
def test_what_only_the_next_run_waits_for_does_not_cut_a_graph(peers, monkeypatch):
    """Two micro-batches at once whose logits nobody wants are one graph, like others.

    What the next run waits for is recorded behind the graph, where it says that all of it is done.
    """
    graph, new, weights, parts = shared(2, peers=peers)
    devices = [open_backend().open_device(i) for i in range(2)]
    store = TensorStore(devices, parts, timeout_s=30)
    made, waits = [], Constraints(reads_peers=True)
    for keep in ((), new.outputs):
        joined = join_graphs([new, new], keep=[(), keep])
        wanted = waits.with_slots(Slots(2, joined.firsts, lanes=2))
        plan = make_plan(joined.graph, probe(devices), wanted, placement=placement(2))
        resources = Resources(joined.graph, plan, store)
        executor = Executor(joined.graph, plan, resources, timeout_s=30)
        made.append((joined, executor, capture(executor)))
    (segment,) = made[0][2].report.plan.segments
    assert segment.renewed
    states, run = {}, 0
    for _ in range(3):
        for joined, executor, _ in (made[0], made[0], made[0], made[1]):
            given_values = {}
            for k in range(2):
                for name, array in inputs(run).items():
                    given_values[joined.input_name(k, name)] = array
                expected = run_oracle(graph, {**inputs(run), **weights}, states=states)
                run += 1
            if executor is made[1][1]:
                store.drain()  # two streams touch a state, so plans do not follow each other
                made[0][1].drained()
            used = {slot.name for slot in executor.plan.inputs}
            found = executor.run({n: a for n, a in given_values.items() if n in used})
            if executor is made[0][1]:
                continue
            for (wanted, array), got in zip(expected.items(), found.values(), strict=True):
                np.testing.assert_allclose(got, array, rtol=1e-5, atol=1e-6, err_msg=str(wanted))
        store.drain()
    assert [capture.report.captures for _, _, capture in made] == [1, 1]
    calls = calls_of(made[0][1]._resources.streams[segment.streams[0]], monkeypatch)
    made[0][2].calls[0]()
    assert calls == ["replay"] + ["record"] * (len(segment.renewed) + bool(segment.tied))
    store.drain()
    for _, executor, captured in made:
        captured.close()
        executor.close()
    store.close()
    for device in devices:
        device.close()


def test_what_has_been_measured_is_called_without_a_clock():
    w, x, y, a = writer()
    q = w.stream(0)
    w.transfer(q, x, a)
    w.transfer(q, a, y)
    plan, done = w.plan(), []
    calls = [lambda i=i: done.append(i) for i in range(len(plan.commands))]
    captured = CapturedRun(plan, [None], calls, {}, None, (), GraphOrder())
    for _ in range(MEASURED_RUNS):
        assert not set(captured.calls) & set(calls)
        for call in captured.calls:
            call()
        captured.after_run()
    assert list(captured.calls) == calls
    assert done == [*range(len(calls))] * MEASURED_RUNS
    assert "s a run" in captured.report.text()
