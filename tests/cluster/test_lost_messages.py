"""A message lost, late, doubled, overtaken, or cut off with its connection, wherever in a session.

Driver, workers and links are the real ones; sockets, threads of the session and the clock are
simulated. Every request ends with its result or with one error, within a few timeouts of the
simulated clock, and nothing waits for ever.
"""

from functools import cache
from typing import get_args

import numpy as np
import pytest

from ggsched import Scheduler
from ggsched.config import Settings
from ggsched.errors import BackendUnavailable, DeviceFault, SyncTimeout
from ggsched_cluster import messages as m
from ggsched_cluster.link import Link
from ggsched_cluster.pings import Pinger
from ggsched_cluster.remote_devices import open_group
from ggsched_cluster.stream import TOKEN_NBYTES
from ggsched_cluster.worker import Ended
from ggsched_testing.sim.transport import Fault, FaultKind, SimTransport
from tests.cluster.test_sessions import alone, homes, model
from tests.cluster.workers import Members

TIMEOUT_S, TOKEN = 4.0, bytes(range(TOKEN_NBYTES))
LATEST_S = 3 * TIMEOUT_S + 3
"""Without progress for the timeout and two beats, then twice the timeout to give up."""

STEP = 8
"""Which messages are tried: one in so many, others for each fault; all of them in slow tests."""

CLEAR = (
    "no progress for",
    "the machine was lost",
    "came twice",
    "the driver was interrupted",
    "does not answer",
)


@cache
def expected():
    graph, weights, inputs = model(3)
    return graph, weights, inputs, alone(graph, weights, inputs)


class Timed:
    """Runs parts of a session, and notes errors and how long each took."""

    def __init__(self, net):
        self.net, self.errors, self.longest_s = net, [], 0.0

    def __call__(self, act):
        began = self.net.now()
        try:
            return act()
        except (DeviceFault, SyncTimeout, BackendUnavailable) as error:
            self.errors.append(str(error))
            return None
        finally:
            self.longest_s = max(self.longest_s, self.net.now() - began)


def session(fault=None, **timing):
    """Open machines, run three times, close; return what is to be judged."""
    graph, weights, inputs, wanted = expected()
    net = SimTransport(fault, **timing)
    settings = Settings(timeout_s=TIMEOUT_S)
    with net:
        timed = Timed(net)
        start = Members("a", "b", transport=net).start
        devices = timed(lambda: open_group(start, backends=("cpu",), timeout_s=TIMEOUT_S))
        results = 0
        if devices is not None:
            scheduler = timed(lambda: Scheduler(devices, weights=weights, settings=settings))
            for _ in range(3 if scheduler is not None else 0):
                before = len(timed.errors)
                timed(scheduler.clear_states)
                if len(timed.errors) > before:
                    continue  # the state is what the runs so far have made it
                got = timed(lambda: scheduler.run(graph, inputs, homes(3, 2)))
                if got is not None:
                    results += 1
                    for tid, array in wanted.items():
                        np.testing.assert_array_equal(got[tid], array)
            if scheduler is not None:
                timed(scheduler.close)
            for device in devices:
                timed(device.close)
    return net, timed, results


def test_a_session_without_a_fault_is_the_same_each_time():
    counts = set()
    for _ in range(2):
        net, timed, results = session()
        assert (timed.errors, results) == ([], 3)
        counts.add(net.messages)
    assert len(counts) == 1


KINDS = [*((kind, 0.0) for kind in get_args(FaultKind) if kind != "late")]
KINDS += [("late", TIMEOUT_S / 4), ("late", 3 * TIMEOUT_S)]


def require_ends(kind, delay_s, numbers, **timing):
    """Judge sessions that have a fault at one of some messages."""
    for number in numbers:
        _, timed, results = session(Fault(kind, number, delay_s), **timing)
        where = f"{kind} {delay_s:g} at message {number}: {timed.errors}"
        assert timed.longest_s <= LATEST_S, where
        assert all(any(text in error for text in CLEAR) for error in timed.errors), where
        assert results == 3 or timed.errors, where


@pytest.mark.parametrize(("kind", "delay_s"), KINDS)
def test_every_request_ends(kind, delay_s):
    first = KINDS.index((kind, delay_s))
    require_ends(kind, delay_s, range(first % STEP, session()[0].messages, STEP))


@pytest.mark.slow
@pytest.mark.parametrize("latency_s", [1e-4, 0.3], ids=["", "beats between"])
@pytest.mark.parametrize(("kind", "delay_s"), KINDS)
def test_every_request_ends_at_every_message(kind, delay_s, latency_s):
    count = session(latency_s=latency_s)[0].messages
    require_ends(kind, delay_s, range(count), latency_s=latency_s)


@pytest.mark.parametrize("where", ["open", "thread"])
def test_a_worker_that_is_stuck_is_lost(where, monkeypatch):
    """In opening its devices, where it beats, and in starting the thread that beats."""
    net = SimTransport()

    def stuck(*_):
        net.wait(lambda: bool(members.found) and bool(members.found["a"].dead))
        raise Ended

    if where == "open":
        monkeypatch.setattr("ggsched_cluster.worker._opened", stuck)
    else:
        monkeypatch.setattr(Link, "thread", stuck)
    members = Members("a", transport=net)
    text = "waits for no message" if where == "open" else "nothing was heard of it"
    with net:
        with pytest.raises(DeviceFault, match=rf"threads://a: the machine was lost: .*{text}"):
            open_group(members.start, backends=("cpu",), timeout_s=TIMEOUT_S)
        assert net.now() <= LATEST_S


def test_long_work_that_gets_on_is_no_failure(monkeypatch):
    """Each device takes half of the timeout to be measured; no message comes meanwhile."""
    net = SimTransport()

    def measured(devices, seconds, progress, **_):
        for _ in range(10):
            net.wait(lambda: False, TIMEOUT_S / 2)
            progress("cpu:0", "a product")
        raise DeviceFault("reached")

    monkeypatch.setattr("ggsched_cluster.worker.calibrate", measured)
    with net:
        devices = open_group(Members("a", transport=net).start, backends=("cpu",), timeout_s=4)
        with pytest.raises(DeviceFault, match="reached"):
            devices[0].group.driver.calibrate(0, 1.0)
        for device in devices:
            device.close()


def test_a_ping_ends_while_other_messages_come():
    with SimTransport() as net:
        here, there = Link("here", TOKEN, net), Link("there", TOKEN, net)

        def beat():
            for number in range(20):
                net.wait(lambda: False, TIMEOUT_S / 8)
                there.send(here.address, m.Beat(there.address, -1, number))

        net.thread(beat, "beat")
        with pytest.raises(DeviceFault, match="does not answer within 4 s"):
            Pinger(here, TIMEOUT_S).offset(there.address)
        assert net.now() <= TIMEOUT_S + 1
