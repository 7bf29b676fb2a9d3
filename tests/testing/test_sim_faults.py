"""What goes wrong on purpose, and what the scheduler makes of it."""

import numpy as np
import pytest

from ggsched.config import Settings
from ggsched.errors import DeviceFault, OutOfDeviceMemory, SyncTimeout, UsageError
from ggsched.ir.builder import GraphBuilder
from ggsched.passes.place import Constraints
from ggsched.scheduler import Scheduler
from ggsched_testing.oracle.interpreter import run_oracle
from ggsched_testing.schedule_policy import EagerPolicy, LaziestPolicy, RandomPolicy
from ggsched_testing.sim import InjectedFaults, SimConfig, SimWorld
from tests.testing.sims import A, B, N, content, filled, fresh, program, raw, unary

CHOOSERS = {
    "eager": EagerPolicy,
    "laziest": LaziestPolicy,
    "random": lambda: RandomPolicy(3),
}


@pytest.fixture(params=CHOOSERS)
def policy(request):
    return CHOOSERS[request.param]()


def fault_of(call, *args):
    """Return what a call says of a failed command; an eager device knows at once."""
    try:
        call(*args)
    except DeviceFault as error:
        return str(error)
    return ""


class TestStreams:
    def test_refused(self, policy):
        world = SimWorld([SimConfig()], policy=policy, faults=InjectedFaults(refuse=frozenset({1})))
        q = world.open(0).create_stream()
        x = filled(q, A)
        with pytest.raises(UsageError, match=r"c1 upload 32 B to m0\[0:32\] is refused"):
            q.upload(raw(B), x, 0)
        q.sync(1)
        assert (content(x) == A).all()
        q.upload(raw(B), x, 0)  # the stream is as it was (ERR-1)
        q.sync(1)
        assert (content(x) == B).all()

    def test_failed_late(self, policy):
        """The first one is named, others do not run, other streams go on (ERR-2)."""
        world = SimWorld([SimConfig()], policy=policy, faults=InjectedFaults(fail=frozenset({2})))
        d = world.open(0)
        q, other = d.create_stream(), d.create_stream()
        x, y = filled(q, A), filled(other, B)
        q.launch(program(q, unary("silu", x, x)))
        said = fault_of(q.copy, x, 0, x, 0, 0)
        assert not said or "c2 launch n0 silu" in said
        for _ in range(2):
            with pytest.raises(DeviceFault, match=r"c2 launch n0 silu failed"):
                q.sync(1)
        assert np.isnan(content(x)).all()  # half done
        other.download(y, 0, raw(fresh()))
        other.sync(1)
        q.close()
        q.close()

    def test_events_of_failed_work_are_failed(self, policy):
        """Whoever waits for them fails and does not hang (EVT-6)."""
        world = SimWorld([SimConfig(), SimConfig()], policy=policy)
        a, b = world.open_all()
        q, r = a.create_stream(), b.create_stream()
        x, y = filled(q, A), filled(r, B)
        good, bad = a.create_event(), a.create_event()
        q.record(good)
        world.faults = InjectedFaults(fail=frozenset({world.enqueued}))
        q.upload(raw(B), x, 0)
        r_calls = (r.wait, bad), (r.copy, x, 0, y, 0, 4 * N)
        for said in (fault_of(q.record, bad), *(fault_of(*call) for call in r_calls)):
            assert not said or "c3 upload" in said
        with pytest.raises(DeviceFault, match=r"wait for e1 of sim:0 failed.*c3 upload"):
            r.sync(1)
        with pytest.raises(DeviceFault, match="c3 upload"):
            bad.sync(1)
        assert bad.is_done
        good.sync(1)
        assert (content(y) == B).all()

    def test_device_lost(self, policy):
        world = SimWorld([SimConfig(), SimConfig()], policy=policy)
        a, b = world.open_all()
        streams = [a.create_stream(), a.create_stream(), b.create_stream()]
        buffers = [filled(q, A) for q in streams]
        world.faults = InjectedFaults(lose=frozenset({world.enqueued}))
        hung = streams[1].hold()
        streams[0].upload(raw(B), buffers[0], 0)
        with pytest.raises(DeviceFault, match=r"c3 upload.*is lost"):
            streams[0].sync(1)
        for call in (a.create_stream, a.create_event, lambda: a.allocate(1)):
            with pytest.raises(DeviceFault, match="sim:0 is lost"):
                call()
        with pytest.raises(DeviceFault, match="sim:0"):
            streams[1].sync(1)
        hung.release()
        streams[2].upload(raw(B), buffers[2], 0)
        streams[2].sync(1)
        a.close()
        assert (content(buffers[2]) == B).all()

    def test_hangs(self, policy):
        """A timeout takes no time here, and leaves the stream usable (STR-5)."""
        world = SimWorld([SimConfig()], policy=policy)
        q = world.open(0).create_stream()
        x = filled(q, A)
        world.faults = InjectedFaults(hang=frozenset({1}))
        q.upload(raw(B), x, 0)
        event = q.device.create_event()
        q.record(event)
        before = world.host_s
        for waiter in (q, event):
            with pytest.raises(SyncTimeout, match=r"after 5 s: c1 upload 32 B.* never ends"):
                waiter.sync(5)
        assert world.host_s == pytest.approx(before + 10)
        q.download(x, 0, raw(fresh()))
        assert not q.is_done

    def test_no_memory(self):
        world = SimWorld([SimConfig()], faults=InjectedFaults(no_memory=frozenset({1})))
        d = world.open(0)
        d.allocate(8)
        with pytest.raises(OutOfDeviceMemory, match="requested 8"):
            d.allocate(8)
        d.allocate(8)
        assert world.live()["buffers"] == 2


def two_devices():
    """Return a graph over two devices, its values, and what it gives."""
    g = GraphBuilder("two devices")
    x, w = g.input("x", (N,)), g.weight("w", (N,))
    y = g.silu(g.add(x, w))
    z = g.add(g.gelu(y), y)
    graph = g.build(z)
    constraints = Constraints(homes={"w": 0}, pins={0: 0, 1: 0, 2: 1, 3: 0})
    return graph, constraints


def answer(graph, x):
    return run_oracle(graph, {"x": x, "w": B})[graph.outputs[0]]


CONFIGS = {
    "events": (SimConfig(), SimConfig()),
    "host": (SimConfig(has_events=False), SimConfig(copies=frozenset(), copy_order="barrier")),
}


@pytest.mark.parametrize("configs", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("kind", ["refuse", "fail", "hang", "lose"])
def test_each_command_of_a_plan_goes_wrong_in_turn(kind, configs, policy):
    graph, constraints = two_devices()
    number = 0
    while True:
        world = SimWorld(configs, policy=policy)
        devices = world.open_all()
        scheduler = Scheduler(devices, weights={"w": B}, settings=Settings())
        before = run(scheduler, graph, constraints)
        wrong = world.enqueued + number
        world.faults = InjectedFaults(**{kind: frozenset({wrong})})
        error = failure(scheduler, graph, constraints)
        if error is None:
            assert world.enqueued <= wrong, f"c{wrong} goes wrong without an error"
            break
        assert f"c{wrong} " in str(error)
        assert any(note.startswith("at c") for note in error.__notes__)
        if kind == "refuse":
            assert (run(scheduler, graph, constraints) == before).all()
        scheduler.close()
        check_released(world, kind)
        if kind in ("refuse", "fail"):
            with Scheduler(devices, weights={"w": B}, settings=Settings()) as again:
                assert (run(again, graph, constraints) == before).all()
        for device in devices:
            device.close()
        assert not any(world.live().values())
        number += 1
    scheduler.close()
    assert number >= 8


def check_released(world, kind):
    """Nothing is left; only after a hang there may be work that will never use what is freed."""
    assert not any(world.live().values())
    if kind != "hang":
        assert not world.violations


def run(scheduler, graph, constraints):
    (result,) = scheduler.run(graph, {"x": A}, constraints).values()
    assert (result == answer(graph, A)).all()
    return result


def failure(scheduler, graph, constraints):
    try:
        scheduler.run(graph, {"x": A}, constraints)
    except (UsageError, DeviceFault, SyncTimeout) as error:
        return error
    return None


def test_each_allocation_fails_in_turn():
    graph, constraints = two_devices()
    number = 0
    while True:
        world = SimWorld(
            [SimConfig(), SimConfig()], faults=InjectedFaults(no_memory=frozenset({number}))
        )
        with Scheduler(world.open_all(), weights={"w": B}, settings=Settings()) as scheduler:
            if world.faults.no_memory:
                try:
                    run(scheduler, graph, constraints)
                    break
                except OutOfDeviceMemory:
                    assert world.live()["buffers"] == world.live()["programs"] == 0
            run(scheduler, graph, constraints)
        assert not any(world.live().values())
        number += 1
    assert number == 3
