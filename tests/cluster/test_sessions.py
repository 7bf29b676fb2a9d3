"""Sessions over workers: results as on one machine, errors, and what is left after them."""

import time

import numpy as np
import pytest

from ggsched import GraphBuilder, Scheduler
from ggsched.config import Settings
from ggsched.errors import (
    BackendUnavailable,
    DeviceFault,
    PlanError,
    SyncTimeout,
    UsageError,
)
from ggsched.passes.place import Constraints
from ggsched_cluster import messages as m
from ggsched_cluster.remote_devices import open_group
from tests.cluster.workers import Members

CPU = ("cpu",)
WIDTH = 32


def model(stages=2):
    """Stages of a matrix each, with a state in the last; they go to machines by turns."""
    g = GraphBuilder("stages")
    x = g.input("x", (4, WIDTH))
    h = x
    for i in range(stages):
        h = g.silu(g.mul_mat(g.weight(f"w{i}", (WIDTH, WIDTH)), h))
    kept = g.state("kept", (4, WIDTH))
    graph = g.build(g.cpy(g.add(h, kept), kept))
    rng = np.random.default_rng(3)
    weights = {
        f"w{i}": rng.normal(size=(WIDTH, WIDTH)).astype(np.float32) / 8 for i in range(stages)
    }
    return graph, weights, {"x": rng.normal(size=(4, WIDTH)).astype(np.float32)}


def homes(stages, machines):
    return Constraints(homes={f"w{i}": i % machines for i in range(stages)})


def alone(graph, weights, inputs):
    with Scheduler(["cpu:0"], weights=weights) as scheduler:
        return scheduler.run(graph, inputs)


@pytest.fixture
def opened():
    """Open groups that are closed in the end, whatever happened."""
    groups = []

    def start(members, wanted=(), timeout_s=10.0):
        devices = open_group(members.start, wanted, backends=CPU, timeout_s=timeout_s)
        groups.append(devices)
        return devices

    yield start
    for devices in groups:
        for device in devices:
            device.close()


def settings(timeout_s=10.0):
    return Settings(timeout_s=timeout_s)


@pytest.mark.parametrize("machines", [1, 2, 3])
def test_results_are_those_of_one_machine(machines, opened):
    graph, weights, inputs = model(5)
    devices = opened(Members(*"abc"[:machines]))
    assert [d.facts.name for d in devices] == [f"threads://{n}/cpu:0" for n in "abc"[:machines]]
    with Scheduler(devices, weights=weights, settings=settings()) as scheduler:
        with Scheduler(["cpu:0"], weights=weights) as one:
            for _ in range(3):  # the state grows with each
                wanted = one.run(graph, inputs)
                got = scheduler.run(graph, inputs, homes(5, machines))
                for tid, array in wanted.items():
                    np.testing.assert_array_equal(got[tid], array)
        held = scheduler.resident_nbytes("weight")
        assert sum(held.values()) == 5 * 4 * WIDTH * WIDTH
        assert len(held) == machines
        assert sum(scheduler.resident_nbytes("state").values()) == 16 * WIDTH
        scheduler.clear_states()
        scheduler.reload_weights(["w0"])
        weights["w0"] = 2 * weights["w0"]
        got = scheduler.run(graph, inputs, homes(5, machines))
        for tid, array in alone(graph, weights, inputs).items():
            np.testing.assert_array_equal(got[tid], array)


def test_devices_are_chosen_by_name(opened):
    members = Members("a", "b", "c")
    wanted = [("c", ("cpu:1", "cpu:0")), ("a", ())]
    names = [d.facts.name for d in opened(members, wanted)]
    assert names == ["threads://c/cpu:1", "threads://c/cpu:0", "threads://a/cpu:0"]
    assert members.found["b"].why_gone()


def test_a_machine_that_is_not_there(opened):
    with pytest.raises(BackendUnavailable, match=r"threads://x: no such machine \(machines: a\)"):
        opened(Members("a"), [("x", ())])


def test_a_device_that_a_machine_does_not_have(opened):
    with pytest.raises(UsageError, match=r"threads://a: no backend 'gpu' is installed"):
        opened(Members("a"), [("a", ("gpu:0",))])


def test_devices_of_two_kinds_are_refused(opened):
    devices = opened(Members("a", "b"))
    with pytest.raises(UsageError, match="devices of this process and of a cluster in one list"):
        Scheduler(devices[:1])


def test_another_version_is_refused(opened, monkeypatch):
    versions = iter(["ggsched 1", "ggsched 2", "ggsched 2"])
    monkeypatch.setattr(m, "version", lambda: next(versions, "ggsched 2"))
    with pytest.raises(BackendUnavailable, match="has ggsched 2: the driver has ggsched 1"):
        opened(Members("a"))


def test_another_graph_is_refused(opened, monkeypatch):
    graph, weights, inputs = model()
    devices = opened(Members("a", "b"))
    monkeypatch.setattr("ggsched_cluster.remote_store.print_graph", lambda g: _renamed(g))
    with (
        Scheduler(devices, weights=weights, settings=settings()) as scheduler,
        pytest.raises(UsageError, match="the graph has the digest .*: the driver has"),
    ):
        scheduler.run(graph, inputs, homes(2, 2))


def _renamed(graph):
    from ggsched.ir.text import print_graph

    return print_graph(graph).replace('"x"', '"z"')


def test_a_weight_that_nobody_has(opened):
    graph, weights, inputs = model()
    del weights["w1"]
    devices = opened(Members("a", "b"))
    with Scheduler(devices, weights=weights, settings=settings()) as scheduler:
        with pytest.raises(UsageError, match="threads://b: w1: no data for this weight"):
            scheduler.run(graph, inputs, homes(2, 2))
        weights["w1"] = weights["w0"]
        assert scheduler.run(graph, inputs, homes(2, 2))


def test_a_source_of_weights_that_fails(opened):
    graph, weights, inputs = model()
    calls = []

    def source(name):
        calls.append(name)
        if len(calls) == 2:
            raise ValueError("the disk is on fire")
        return weights[name]

    devices = opened(Members("a", "b"))
    with Scheduler(devices, weights=source, settings=settings()) as scheduler:
        with pytest.raises(ValueError, match="the disk is on fire"):
            scheduler.run(graph, inputs, homes(2, 2))
        assert scheduler.run(graph, inputs, homes(2, 2))


@pytest.mark.parametrize("where", ["weights", "messages"])
def test_an_interrupt_and_another_run(where, opened):
    """Ctrl-C while machines wait for something: the next call finds them ready."""
    graph, weights, inputs = model(3)
    calls = []

    def source(name):
        calls.append(name)
        if len(calls) == 2 and where == "weights":
            raise KeyboardInterrupt
        return weights[name]

    def interrupt(link, address, message, *frames):
        driver._link.poll = raise_interrupt

    def raise_interrupt(timeout_s):
        del driver._link.poll
        raise KeyboardInterrupt

    wrap = Fails.by(interrupt) if where == "messages" else (lambda name, link: link)
    devices = opened(Members("a", "b", wrap=wrap))
    driver = devices[0].group.driver
    with Scheduler(devices, weights=source, settings=settings()) as scheduler:
        with pytest.raises(KeyboardInterrupt):
            scheduler.run(graph, inputs, homes(3, 2))
        scheduler.clear_states()
        got = scheduler.run(graph, inputs, homes(3, 2))
        for tid, array in alone(graph, weights, inputs).items():
            np.testing.assert_array_equal(got[tid], array)


def test_inputs_are_checked_before_anything_is_sent(opened):
    graph, weights, inputs = model()
    devices = opened(Members("a", "b"))
    with Scheduler(devices, weights=weights, settings=settings()) as scheduler:
        for wrong in ({}, {"x": inputs["x"][:2]}, {**inputs, "y": inputs["x"]}):
            with pytest.raises(UsageError):
                scheduler.run(graph, wrong, homes(2, 2))
        assert scheduler.run(graph, inputs, homes(2, 2))


class Fails:
    """A link that breaks what a machine sends to others."""

    def __init__(self, link, how):
        self._link, self._how, self.broken = link, how, False

    @classmethod
    def by(cls, how):
        return lambda name, link: cls(link, how) if name == "a" else link

    def __getattr__(self, name):
        return getattr(self._link, name)

    def send(self, address, message, *frames):
        if isinstance(message, m.Data) and not self.broken:
            self.broken = True
            self._how(self._link, address, message, *frames)
        else:
            self._link.send(address, message, *frames)


def lose(link, address, message, *frames):
    pass


def shorten(link, address, message, *frames):
    link.send(address, message, memoryview(frames[0])[:-4])


def double(link, address, message, *frames):
    link.send(address, message, *frames)
    link.send(address, message, *frames)


def mislabel(link, address, message, *frames):
    other = m.Data(message.run, message.sender, message.tag + 100)
    link.send(address, other, *frames)


def fail(link, address, message, *frames):
    raise DeviceFault("the network card is on fire", where="card")


@pytest.mark.parametrize(
    ("how", "error", "text"),
    [
        (lose, SyncTimeout, r"no progress for 1 s: machines wait for each other.*message #0"),
        (mislabel, SyncTimeout, r"no progress for 1 s: machines wait for each other"),
        (shorten, DeviceFault, r"message #0 has 508 bytes instead of 512"),
        (fail, DeviceFault, r"threads://a: card: the network card is on fire"),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_what_goes_wrong_on_the_way(how, error, text, opened):
    """One error, no hang, and the next run is right again."""
    graph, weights, inputs = model(3)
    devices = opened(Members("a", "b", wrap=Fails.by(how)), timeout_s=1.0)
    with Scheduler(devices, weights=weights, settings=settings(1.0)) as scheduler:
        began = time.monotonic()
        with pytest.raises(error, match=text):
            scheduler.run(graph, inputs, homes(3, 2))
        assert time.monotonic() - began < 20
        scheduler.clear_states()
        got = scheduler.run(graph, inputs, homes(3, 2))
        for tid, array in alone(graph, weights, inputs).items():
            np.testing.assert_array_equal(got[tid], array)


def test_a_message_that_comes_twice_harms_nobody(opened):
    graph, weights, inputs = model(3)
    members = Members("a", "b", wrap=lambda name, link: Fails(link, double))
    devices = opened(members)
    wanted = alone(graph, weights, inputs)
    with Scheduler(devices, weights=weights, settings=settings()) as scheduler:
        for _ in range(3):
            scheduler.clear_states()
            try:
                got = scheduler.run(graph, inputs, homes(3, 2))
            except DeviceFault as error:
                assert "came twice" in str(error)  # noqa: PT017  # either is right
                continue
            for tid, array in wanted.items():
                np.testing.assert_array_equal(got[tid], array)


def test_a_machine_that_is_lost_and_a_scheduler_that_goes_on(opened):
    graph, weights, inputs = model(3)
    members = Members("a", "b", wrap=lambda name, link: Fails(link, lose))
    devices = opened(members)
    with Scheduler(devices, weights=weights, settings=settings()) as scheduler:
        members.found["b"].dead = "somebody pulled the plug"
        lost = r"threads://b: the machine was lost: somebody pulled the plug \(reset\(\) goes on"
        with pytest.raises(DeviceFault, match=lost):
            scheduler.run(graph, inputs, homes(3, 2))
        with pytest.raises(DeviceFault, match="the machine was lost"):
            scheduler.run(graph, inputs, homes(3, 2))
        for device in devices:
            device.close()
        again = opened(Members("a", "c"))
        scheduler.reset(again)
        scheduler.clear_states()
        got = scheduler.run(graph, inputs, homes(3, 2))
        for tid, array in alone(graph, weights, inputs).items():
            np.testing.assert_array_equal(got[tid], array)


def test_a_silent_machine_is_lost(opened):
    """Its process is there, but stopped."""
    graph, weights, inputs = model(2)

    def wrap(name, link):
        link.beater = lambda address: _Mute()
        return link

    devices = opened(Members("a", wrap=wrap), timeout_s=0.5)
    with Scheduler(devices, weights=weights, settings=settings(0.5)) as scheduler:
        graph_, stuck = graph, devices[0].group.driver
        stuck._link.send = lambda *_: None
        with pytest.raises(DeviceFault, match=r"was lost: nothing was heard of it for 0.5 s"):
            scheduler.run(graph_, inputs)
        del stuck._link.send


class _Mute:
    def send(self, message):
        pass

    def close(self):
        pass


def test_a_plan_that_needs_a_path_between_machines_is_refused(opened, monkeypatch):
    """Whatever the planner did: what is sent out has been cut and checked."""
    graph, weights, inputs = model(2)
    devices = opened(Members("a", "b"))
    monkeypatch.setattr(devices[0].group, "machine_of", [0, 0])
    with Scheduler(devices, weights=weights, settings=settings()) as scheduler:
        made = scheduler.plan(graph, homes(2, 2))
        assert {made.devices[q.device].name for q in made.streams.streams} == {
            "threads://a/cpu:0",
            "threads://b/cpu:0",
        }
        with pytest.raises((PlanError, DeviceFault, UsageError)):
            scheduler.run(graph, inputs, homes(2, 2))
