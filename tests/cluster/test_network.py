"""The rules of ``docs/reference/network.md``, for sockets between workers."""

import socket
import threading
from contextlib import suppress

import pytest

from ggsched.errors import DeviceFault, UsageError
from ggsched_cluster import messages as m
from ggsched_cluster.link import Link
from ggsched_cluster.stream import TOKEN_NBYTES
from ggsched_cluster.worker import Worker

HOST, TOKEN, RUN = "127.0.0.1", bytes(range(TOKEN_NBYTES)), 5


class End:
    """A worker in the middle of a run, without devices."""

    def __init__(self, me, token=TOKEN):
        self.link = Link(HOST, token)
        self.worker = Worker(self.link)
        self.worker._me, self.worker._run, self.worker._request = me, RUN, RUN

    def to(self, *others):
        self.worker._addresses = [end.link.address for end in others]

    def receive(self, machine, tag, nbytes):
        target = bytearray(nbytes)
        self.worker.receive(machine, tag, memoryview(target))
        return bytes(target)


@pytest.fixture
def ends():
    made = [End(0), End(1)]
    for end in made:
        end.to(*made)
    yield made
    for end in made:
        end.link.close()


def test_net_1_bytes_may_change_after_send(ends):
    a, b = ends
    source = bytearray(b"before" * 10_000)
    a.worker.send(1, 0, memoryview(source))
    source[:] = b"after " * 10_000
    assert b.receive(0, 0, len(source)) == b"before" * 10_000


def test_net_2_all_bytes_and_no_others(ends):
    a, b = ends
    target = bytearray(b"." * 8)
    a.worker.send(1, 3, memoryview(b"abcd"))
    b.worker.receive(0, 3, memoryview(target)[2:6])
    assert target == b"..abcd.."


def test_net_3_send_does_not_wait(ends):
    a, b = ends
    many = 2000
    for tag in range(many):
        a.worker.send(1, tag, memoryview(tag.to_bytes(4, "little") * 256))
    assert b.receive(0, many - 1, 1024)[:4] == (many - 1).to_bytes(4, "little")


def test_net_4_any_order_and_other_runs(ends):
    a, b = ends
    a.worker._run = RUN - 1
    a.worker.send(1, 0, memoryview(b"old!"))
    a.worker._run = RUN
    for tag in (2, 0, 1):
        a.worker.send(1, tag, memoryview(b"tag%d" % tag))
    assert [b.receive(0, tag, 4) for tag in range(3)] == [b"tag0", b"tag1", b"tag2"]


def test_net_5_ends_when_the_run_is_given_up(ends):
    a, b = ends
    a.link.send(b.link.address, m.Abort(RUN - 1, "another run"))
    a.link.send(b.link.address, m.Abort(RUN, "machine 0 was lost"))
    with pytest.raises(DeviceFault, match="the run was given up: machine 0 was lost"):
        b.receive(0, 0, 4)


def test_net_5_another_length(ends):
    a, b = ends
    a.worker.send(1, 0, memoryview(b"12345"))
    with pytest.raises(DeviceFault, match="message #0 has 5 bytes instead of 4"):
        b.receive(0, 0, 4)


def test_net_6_the_second_of_two_is_a_fault(ends):
    a, b = ends
    for data in (b"1st.", b"2nd.", b"next"):
        a.worker.send(1, 1 if data == b"next" else 0, memoryview(data))
    assert b.receive(0, 0, 4) == b"1st."
    with pytest.raises(DeviceFault, match="message #0 came twice"):
        b.receive(0, 1, 4)


def test_another_token_and_noise_are_dropped(ends):
    a, b = ends
    stranger = End(0, token=bytes(TOKEN_NBYTES))
    stranger.to(a, b)
    noise = socket.create_connection((HOST, int(b.link.address.split(":")[-1])), timeout=10)
    try:
        stranger.worker.send(1, 0, memoryview(b"evil"))
        noise.sendall(b"noise" * 100)
        for parts in ([], [b"\xc1 no header"], [m._ENCODER.encode({"is": "unknown"})]):
            a.link._write(b.link.address, *parts)
        thread = threading.Timer(0.3, a.worker.send, (1, 0, memoryview(b"good")))
        thread.start()
        assert b.receive(0, 0, 4) == b"good"
        thread.join()
        with suppress(ConnectionResetError):
            assert noise.recv(1) == b""
    finally:
        noise.close()
        stranger.link.close()


def test_a_token_has_its_length():
    with pytest.raises(UsageError, match="a token of 3 bytes"):
        Link(HOST, b"abc")
