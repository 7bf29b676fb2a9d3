"""Strangers that hold connections, and messages of members that no member should send.

Neither a worker nor a driver ends by them, and an error names the machine.
"""

import errno
import struct

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggsched import Scheduler
from ggsched.config import Settings
from ggsched.errors import DeviceFault, UsageError
from ggsched.files.mapping import map_file
from ggsched_cluster import messages as m
from ggsched_cluster.link import MAX_STRANGERS, PAUSE_S, STRANGER_S, Link
from ggsched_cluster.remote_devices import open_group
from ggsched_cluster.stream import (
    MAX_HEADER_NBYTES,
    MAX_MESSAGE_NBYTES,
    MAX_PARTS,
    TOKEN_NBYTES,
    Ended,
    Reader,
    packed,
)
from ggsched_cluster.transport import SYSTEM
from ggsched_cluster.weights import MIN_RANGE_NBYTES, Offer, Sources, offer_of
from ggsched_testing.sim.transport import SimTransport
from tests.cluster.test_link import Pieces
from tests.cluster.test_lost_messages import expected
from tests.cluster.test_sessions import homes
from tests.cluster.workers import Members

TOKEN = bytes(range(TOKEN_NBYTES))


def read_all(reader):
    while True:
        reader.read()


@pytest.mark.parametrize(
    "lengths",
    [
        [0] * (MAX_PARTS + 1),
        [MAX_HEADER_NBYTES + 1],
        [1, MAX_MESSAGE_NBYTES],
        [1, 1 << 63],
    ],
    ids=["parts", "header", "message", "length"],
)
def test_lengths_of_a_member_have_limits(lengths):
    data = TOKEN + struct.pack(f"<I{len(lengths)}Q", len(lengths), *lengths)
    reader = Reader(Pieces(data, [1 << 16]), TOKEN, list)
    with pytest.raises(Ended, match="a message of"):
        read_all(reader)


def test_a_part_that_the_host_has_no_memory_for(monkeypatch):
    def no_memory(*_):
        raise MemoryError

    monkeypatch.setattr("ggsched_cluster.stream.np.empty", no_memory)
    data = TOKEN + struct.pack("<IQ", 1, 1)
    with pytest.raises(Ended, match="no memory for a message of 1 bytes"):
        Reader(Pieces(data, [1000]), TOKEN, list).read()


DEEP = b"\x91" * 100_000
"""Lists in lists (msgpack)."""


@pytest.mark.parametrize("parts", [[], [b""], [b"\xc1"], [DEEP], [m.encode(m.Data(1, 0, 2))]])
def test_a_message_that_cannot_be_read_is_dropped(parts, caplog):
    net = SimTransport()
    with net:
        link = Link("here", TOKEN, net)
        source = net.connect("here", 1)
        source.sendmsg(packed(TOKEN, *parts))
        source.sendmsg(packed(TOKEN, m.encode(m.Close())))
        assert link.poll(1.0) == (m.Close(), [])
        link.close()
    assert "a message cannot be read" in caplog.text


def test_strangers_have_a_number_and_a_time():
    net = SimTransport()
    with net:
        link = Link("here", TOKEN, net)
        held = [net.connect("here", 1) for _ in range(5 * MAX_STRANGERS)]
        assert link.poll(1.0) is None
        assert len(link._readers) == MAX_STRANGERS
        member = net.connect("here", 1)
        member.sendmsg(packed(TOKEN, m.encode(m.Close())))
        assert link.poll(1.0) == (m.Close(), [])
        assert link.poll(STRANGER_S + 1) is None
        assert len(link._readers) == 1  # the member's
        assert all(source.is_ready() for source in held)  # closed
        link.close()


@pytest.mark.parametrize("has_stranger", [False, True])
def test_a_process_without_descriptors_does_not_spin(has_stranger, monkeypatch):
    net, calls = SimTransport(), []
    with net:
        link = Link("here", TOKEN, net)
        if has_stranger:
            stranger = net.connect("here", 1)
            assert link.poll(0.1) is None
        accept = link._door.accept

        def fail():
            calls.append(net.now())
            raise OSError(errno.EMFILE, "too many open files")

        member = net.connect("here", 1)
        member.sendmsg(packed(TOKEN, m.encode(m.Close())))
        monkeypatch.setattr(link._door, "accept", fail)
        assert link.poll(4 * PAUSE_S) is None
        assert len(calls) <= 6
        assert not has_stranger or stranger.is_ready()
        monkeypatch.setattr(link._door, "accept", accept)
        assert link.poll(2 * PAUSE_S) == (m.Close(), [])
        link.close()


def test_an_address_of_ipv6():
    try:
        SYSTEM.listen("::1").close()
    except OSError:
        pytest.skip("this host has no ::1")
    a, b = Link("::1", TOKEN), Link("::1", TOKEN)
    try:
        assert b.address.startswith("tcp://[::1]:")
        a.send(b.address, m.Abort(1, "why"))
        assert b.poll(20.0) == (m.Abort(1, "why"), [])
    finally:
        a.close()
        b.close()


TEXTS = st.sampled_from(["", "x", "tcp://", "tcp://here:", "tcp://here:-1", "tcp://here:99999999"])
NUMBERS = st.integers(-2, 3)
TO_A_WORKER = st.one_of(
    st.builds(m.Ping, TEXTS, NUMBERS),
    st.builds(m.Pong, TEXTS, NUMBERS, st.floats()),
    st.builds(m.Data, NUMBERS, NUMBERS, NUMBERS),
    st.builds(m.Weight, TEXTS),
    st.builds(m.Abort, NUMBERS, TEXTS),
    st.builds(m.Beat, TEXTS, NUMBERS, NUMBERS, TEXTS),
    st.builds(m.Wanted, TEXTS),
    st.builds(m.Done, NUMBERS, TEXTS),
    st.builds(m.Opened, NUMBERS, TEXTS, TEXTS, TEXTS, st.just(())),
    st.builds(m.Failed, NUMBERS, TEXTS, TEXTS, TEXTS),
    st.builds(m.Run, NUMBERS, NUMBERS),
    st.builds(m.Manage, NUMBERS, TEXTS),
)


def opened(net, change=lambda message, frames: (message, frames)):
    members = Members("a", "b", wrap=lambda _, link: Rewrites(link, change), transport=net)
    return open_group(members.start, backends=("cpu",), timeout_s=4.0)


def require_right(scheduler):
    graph, _, inputs, wanted = expected()
    scheduler.clear_states()
    got = scheduler.run(graph, inputs, homes(3, 2))
    for tid, array in wanted.items():
        np.testing.assert_array_equal(got[tid], array)


@settings(max_examples=25)
@given(st.lists(st.tuples(TO_A_WORKER, st.lists(st.binary(max_size=9), max_size=2)), max_size=6))
def test_what_a_worker_is_sent_does_not_end_it(sent):
    """Between two runs; numbers of requests are those that are over."""
    with SimTransport() as net:
        devices = opened(net)
        driver = devices[0].group.driver
        weights, config = expected()[1], Settings(timeout_s=4)
        with Scheduler(devices, weights=weights, settings=config) as scheduler:
            require_right(scheduler)
            for message, frames in sent:
                driver._link.send(driver._members[0].address, message, *frames)
            require_right(scheduler)
        for device in devices:
            device.close()


class Rewrites:
    """A link of a worker that changes what is sent."""

    def __init__(self, link, change):
        self._link, self._change = link, change

    def __getattr__(self, name):
        return getattr(self._link, name)

    def send(self, address, message, *frames):
        message, frames = self._change(message, frames)
        self._link.send(address, message, *frames)


def short(message, frames):
    return message, frames[:-1]


def cut(message, frames):
    return message, [bytes(frame)[:-1] for frame in frames]


def of_another_kind(message, frames):
    return m.Failed(message.id, message.worker, "GgschedError.__init__", "odd", "x"), []


@pytest.mark.parametrize(
    ("harm", "text"),
    [(short, "cannot be read"), (cut, "cannot be read"), (of_another_kind, "odd")],
)
def test_an_answer_of_a_member_that_makes_no_sense(harm, text):
    graph, weights, inputs, _ = expected()
    harms = []

    def change(message, frames):
        is_harmed = harms and isinstance(message, m.Done) and frames
        return harms[0](message, frames) if is_harmed else (message, frames)

    with SimTransport() as net:
        devices = opened(net, change)
        config = Settings(timeout_s=4)
        with Scheduler(devices, weights=weights, settings=config) as scheduler:
            require_right(scheduler)
            harms.append(harm)
            with pytest.raises(DeviceFault, match=rf"threads://[ab].*{text}"):
                scheduler.run(graph, inputs, homes(3, 2))
            harms.clear()
            require_right(scheduler)
        for device in devices:
            device.close()


@pytest.mark.parametrize("harm", [{"topology": "{}"}, {"topology": "["}, {"free": ()}])
def test_devices_of_a_machine_that_make_no_sense(harm):
    def change(message, frames):
        is_harmed = isinstance(message, m.Opened)
        return msgspec.structs.replace(message, **harm) if is_harmed else message, frames

    text = "threads://a: its answer cannot be read"
    with SimTransport() as net, pytest.raises(DeviceFault, match=text):
        opened(net, change)


@pytest.mark.parametrize("digest", ["../outside", "", "0" * 31, "0" * 32 + "\n", "A" * 32, "/x"])
def test_a_digest_is_no_path(digest, tmp_path):
    folder = tmp_path / "kept"
    sources, data = Sources(cache=str(folder)), bytes(128)
    offer = Offer("|u1", (128,), 128, 0, digest)
    if digest:
        with pytest.raises(UsageError, match="is not a digest"):
            sources.find("w", offer)
        with pytest.raises(UsageError, match="is not a digest"):
            sources.sent(offer, data)
    else:
        sources.sent(offer, data)
    assert not list(tmp_path.rglob("*"))


def test_bytes_of_another_digest_are_not_kept(tmp_path, caplog):
    sources = Sources(cache=str(tmp_path))
    sources.sent(Offer("|u1", (4,), 4, 0, "0" * 32), b"abcd")
    assert not list(tmp_path.iterdir())
    assert "its bytes are others" in caplog.text


@pytest.mark.parametrize("nbytes", [1, MIN_RANGE_NBYTES - 1, MIN_RANGE_NBYTES])
def test_few_bytes_of_a_file_are_not_compared(nbytes, tmp_path):
    (tmp_path / "secret").write_bytes(bytes(range(256)))
    part = map_file(str(tmp_path / "secret"))[100 : 100 + nbytes]
    offer, _ = offer_of(part, with_digest=False)
    assert bool(offer.path) == (nbytes == MIN_RANGE_NBYTES)
    asked = Offer("|u1", (nbytes,), nbytes, offer.checksum, "", str(tmp_path / "secret"), 256, 100)
    assert (Sources().find("w", asked) is not None) == (nbytes == MIN_RANGE_NBYTES)
