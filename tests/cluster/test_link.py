"""Links: pieces of any size, much in both directions at once, peers that go, what is left."""

import os
import socket
import struct
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggsched_cluster import messages as m
from ggsched_cluster.link import Link
from ggsched_cluster.outbox import Outbox
from ggsched_cluster.stream import TOKEN_NBYTES, Ended, Reader, packed

HOST, TOKEN = "127.0.0.1", bytes(range(TOKEN_NBYTES))
PATIENCE_S = 20.0


class Pieces:
    """A socket that hands over pieces of chosen sizes."""

    def __init__(self, data, sizes):
        self.data, self.sizes, self.reads = data, sizes, 0

    def recvmsg_into(self, targets):
        count = self.sizes[self.reads % len(self.sizes)]
        self.reads += 1
        taken = 0
        for target in targets:
            some = self.data[: min(len(target), count - taken)]
            target[: len(some)], self.data = some, self.data[len(some) :]
            taken += len(some)
        return (taken,)


@given(
    st.lists(st.lists(st.binary(max_size=300), max_size=5), max_size=5),
    st.lists(st.integers(1, 200), min_size=1, max_size=7),
)
def test_messages_in_any_pieces(messages, sizes):
    data = b"".join(view for parts in messages for view in packed(TOKEN, *parts))
    found = []
    reader = Reader(Pieces(data, sizes), TOKEN, found.append)
    while reader.source.data:
        reader.read()
    with pytest.raises(Ended):
        reader.read()
    assert [[bytes(part) for part in parts] for parts in found] == messages


def test_lengths_of_a_stranger_are_not_believed():
    data = bytes(TOKEN_NBYTES) + struct.pack("<IQ", 1, 1 << 60)
    with pytest.raises(Ended):
        Reader(Pieces(data, [1000]), TOKEN, list).read()


@pytest.fixture
def pair():
    made = Link(HOST, TOKEN), Link(HOST, TOKEN)
    yield made
    for link in made:
        link.close()


def received(link):
    found = link.poll(PATIENCE_S)
    assert found is not None
    return found


def test_both_sides_send_much_before_either_reads(pair):
    count, data = 8, bytes(range(256)) * (1 << 15)
    for number in range(count):
        for link, other in (pair, pair[::-1]):
            link.send(other.address, m.Data(1, 0, number), data)
    for link in pair:
        for number in range(count):
            message, (frame,) = received(link)
            assert message == m.Data(1, 0, number)
            assert frame == data


def test_more_frames_than_one_call_takes(pair):
    a, b = pair
    frames = [struct.pack("<I", k) * (k % 3) for k in range(3000)]
    a.send(b.address, m.Run(1, 2), *frames)
    message, found = received(b)
    assert message == m.Run(1, 2)
    assert list(map(bytes, found)) == frames


def test_polls_end_in_time(pair):
    a, b = pair
    began = time.monotonic()
    assert b.poll(0.05) is None
    assert 0.05 <= time.monotonic() - began < PATIENCE_S
    a.send(b.address, m.Close())
    until = time.monotonic() + PATIENCE_S
    while b.poll(0.0) is None:  # without waiting, what is there
        assert time.monotonic() < until


def test_a_connection_that_was_lost_is_made_again(pair):
    a, b = pair
    a.send(b.address, m.Close())
    assert received(b) == (m.Close(), [])
    for reader in b._readers:
        reader.source.shutdown(socket.SHUT_RDWR)
    assert b.poll(0.1) is None
    assert a.poll(0.1) is None  # it notices here
    a.send(b.address, m.Abort(1, "again"))
    assert received(b)[0] == m.Abort(1, "again")


def test_sending_to_one_that_is_gone_does_nothing(pair):
    a, b = pair
    a.send(b.address, m.Close(), bytes(1 << 24))
    b.close()
    for _ in range(20):
        a.send(b.address, m.Close(), bytes(1 << 20))
        assert a.poll(0.01) is None


def test_an_outbox_whose_other_side_does_not_even_accept_is_closed_at_once():
    with socket.create_server((HOST, 0), backlog=0) as door:
        address = f"tcp://{HOST}:{door.getsockname()[1]}"
        boxes = [Outbox(address) for _ in range(5)]
        for box in boxes:
            box.write([memoryview(bytes(1 << 24))])
        assert _writers()
        began = time.monotonic()
        for box in boxes:
            box.close(0.05)
        assert time.monotonic() - began < PATIENCE_S
    assert not _writers()


def test_what_was_sent_goes_out_after_close():
    a, b = Link(HOST, TOKEN), Link(HOST, TOKEN)
    a.send(b.address, m.Close(), bytes(1 << 24))
    closing = threading.Thread(target=a.close, args=(PATIENCE_S,))
    closing.start()
    assert received(b)[1][0].nbytes == 1 << 24
    closing.join()
    b.close()


def test_nothing_is_left_of_links():
    before = os.listdir("/proc/self/fd")
    for linger_s in (0.0, 0.05):
        a, b = Link(HOST, TOKEN), Link(HOST, TOKEN)
        beater = a.beater(b.address)
        beater.send(m.Beat("", 0, 0))
        a.send(b.address, m.Close())
        a.send(b.address, m.Close(), bytes(1 << 26))
        assert received(b)[0] in (m.Close(), m.Beat("", 0, 0))
        beater.close()
        for link in (a, b, a, b):
            link.close(linger_s)
    assert os.listdir("/proc/self/fd") == before
    assert not _writers()


def _writers():
    return [t for t in threading.enumerate() if t.name == "ggsched outbox"]
