"""Memory of the CPU backend that is cleared before anything was written takes no pages."""

import contextlib
from pathlib import Path

import numpy as np
import pytest

from ggsched.errors import UsageError
from tests.backends.device_settings import (
    TIMEOUT_S,
    Latch,
    cpu_device,
    far_device,
    node,
    upload,
    vector,
)

NBYTES = 64 << 20


@pytest.fixture
def device():
    made = cpu_device(sync=False)
    yield made
    made.close()


def resident():
    """Return the resident bytes of this process that are no file's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(x.split()[1]) for x in lines if x.startswith("RssAnon:")) << 10


def download(stream, buffer):
    found = np.empty(buffer.nbytes, np.uint8)
    stream.download(buffer, 0, memoryview(found))
    stream.sync(TIMEOUT_S)
    return found


def test_a_cleared_state_takes_memory_as_it_is_used(device):
    stream = device.create_stream()
    before = resident()
    state = device.allocate(NBYTES)
    stream.fill(state, 0, NBYTES, bytes(1))
    stream.sync(TIMEOUT_S)
    assert resident() - before < NBYTES // 4
    assert not download(stream, state).any()


def test_a_row_of_a_cache_takes_a_page(device):
    stream, nbytes = device.create_stream(), 16 << 20
    caches = [device.allocate(nbytes) for _ in range(8)]
    for cache in caches:
        stream.fill(cache, 0, nbytes, bytes(1))
    stream.sync(TIMEOUT_S)
    before = resident()
    for cache in caches:
        upload(stream, cache, np.ones(4096, np.uint8))
    stream.sync(TIMEOUT_S)
    assert resident() - before < 1 << 20


def by_upload(device, stream, buffer):
    upload(stream, buffer, np.full(buffer.nbytes, 7, np.uint8))


def by_pattern(device, stream, buffer):
    stream.fill(buffer, 0, buffer.nbytes, b"\7")


def by_host_view(device, stream, buffer):
    buffer.host_view()[:] = b"\7" * buffer.nbytes


def by_a_view_of_before(device, stream, buffer):
    view = buffer.host_view()
    stream.fill(buffer, 0, buffer.nbytes, bytes(1))
    stream.sync(TIMEOUT_S)
    np.from_dlpack(np.frombuffer(view, np.uint8))[:] = 7


def by_copy(device, stream, buffer):
    other = device.allocate(buffer.nbytes)
    by_upload(device, stream, other)
    stream.copy(other, 0, buffer, 0, buffer.nbytes)


def by_replay(device, stream, buffer):
    capture = device.begin_capture([stream])
    stream.fill(buffer, 0, buffer.nbytes, b"\7")
    stream.replay(capture.end())


def by_import(device, stream, buffer):
    """An import is read-only for a stream, but shows what its owner writes."""
    imported = device.import_host(buffer.host_view())
    np.frombuffer(imported.host_view(), np.uint8)
    by_host_view(device, stream, buffer)


def by_program(device, stream, buffer):
    count = buffer.nbytes // 4
    x = device.allocate(buffer.nbytes)
    upload(stream, x, np.full(count, 7, np.float32))
    sums = node("add", [vector(x, count), vector(x, count)], vector(buffer, count))
    stream.launch(device.compile([sums], stream))


def by_a_peers_stream(device, stream, buffer):
    with contextlib.closing(cpu_device(sync=False, index=1)) as peer:
        theirs, mine = peer.create_stream(), peer.allocate(buffer.nbytes)
        by_upload(peer, theirs, mine)
        theirs.copy(mine, 0, buffer, 0, buffer.nbytes)
        theirs.sync(TIMEOUT_S)


def by_copy_from_a_peer(device, stream, buffer):
    with contextlib.closing(cpu_device(sync=False, index=1)) as peer:
        theirs, mine = peer.create_stream(), peer.allocate(buffer.nbytes)
        by_upload(peer, theirs, mine)
        theirs.sync(TIMEOUT_S)
        stream.copy(mine, 0, buffer, 0, buffer.nbytes)
        stream.sync(TIMEOUT_S)


def by_a_device_of_another_backend(device, stream, buffer):
    with contextlib.closing(far_device()) as far:
        theirs, mine = far.create_stream(), far.allocate(buffer.nbytes)
        by_upload(far, theirs, mine)
        theirs.copy(mine, 0, buffer, 0, buffer.nbytes)


@pytest.mark.parametrize(
    "write",
    [
        by_upload,
        by_pattern,
        by_host_view,
        by_a_view_of_before,
        by_copy,
        by_replay,
        by_import,
        by_program,
        by_a_peers_stream,
        by_copy_from_a_peer,
        by_a_device_of_another_backend,
    ],
)
@pytest.mark.parametrize("is_cleared_before", [False, True])
def test_zeros_are_written_where_something_may_be(device, write, is_cleared_before):
    stream, state = device.create_stream(), device.allocate(4096)
    if is_cleared_before:
        stream.fill(state, 0, 4096, bytes(1))
        stream.sync(TIMEOUT_S)
    write(device, stream, state)
    stream.sync(TIMEOUT_S)
    before = download(stream, state)
    assert before.any()
    stream.fill(state, 8, 100, bytes(4))
    found = download(stream, state)
    assert not found[8:108].any()
    assert (np.delete(found, np.s_[8:108]) == np.delete(before, np.s_[8:108])).all()


def test_what_is_written_before_a_clearing_that_waits_is_cleared(device):
    """The order is an event's of somebody else, who writes after the clearing was enqueued."""
    stream, state, latch = device.create_stream(), device.allocate(16), Latch()
    stream.wait(latch)
    stream.fill(state, 0, 16, bytes(1))
    state.host_view()[:] = b"\7" * 16
    latch.open()
    assert not download(stream, state).any()


def test_a_pattern_is_written_into_fresh_memory(device):
    stream = device.create_stream()
    state = device.allocate(16)
    stream.fill(state, 4, 4, b"\1\2")
    assert download(stream, state).tolist() == [0] * 4 + [1, 2] * 2 + [0] * 8


def test_a_captured_clearing_is_done_at_each_replay(device):
    stream = device.create_stream()
    state = device.allocate(16)
    capture = device.begin_capture([stream])
    stream.fill(state, 0, 16, bytes(1))
    graph = capture.end()
    for _ in range(2):
        upload(stream, state, np.full(16, 7, np.uint8))
        stream.replay(graph)
        assert not download(stream, state).any()


def test_a_closed_buffer_is_refused(device):
    stream = device.create_stream()
    state = device.allocate(16)
    state.close()
    with pytest.raises(UsageError, match="closed"):
        stream.fill(state, 0, 16, bytes(1))
