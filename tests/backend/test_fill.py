"""Fills where a stream has none of its own, and through every wrapper of streams."""

import numpy as np
import pytest

from ggsched.backend.checked import checked
from ggsched.backend.fill import blocks, fill
from ggsched.backend.probe import probe
from ggsched.errors import UsageError
from ggsched.trace.recorder import Recorder
from ggsched.trace.tracing import traced
from ggsched_cpu.device import CpuDevice, CpuSettings
from ggsched_testing.restricted_device import limited_devices
from tests.support.errors import refused

TIMEOUT_S = 10.0
N = 64


class OldStream:
    """A stream of contract 1.0: what it has not got is not requested."""

    def __init__(self, inner):
        self.upload = inner.upload


@pytest.fixture
def device():
    device = CpuDevice(0, CpuSettings())
    yield device
    device.close()


def content(stream, buffer):
    found = np.zeros(buffer.nbytes, np.uint8)
    stream.download(buffer, 0, found.data)
    stream.sync(TIMEOUT_S)
    return found.tobytes()


@pytest.mark.parametrize("block", [1 << 20, 16, 3, 1])
@pytest.mark.parametrize("pattern", [b"\x07", b"ab", b"abcd"])
def test_a_stream_without_fills(monkeypatch, device, block, pattern):
    monkeypatch.setattr("ggsched.backend.fill.BLOCK_NBYTES", block)
    stream, buffer = device.create_stream(), device.allocate(N)
    stream.upload(memoryview(bytes(N)), buffer, 0)
    fill(OldStream(stream), buffer, 8, 40, pattern)
    assert content(stream, buffer) == bytes(8) + pattern * (40 // len(pattern)) + bytes(16)
    with refused("FIL-3"):
        fill(OldStream(stream), buffer, 0, 9, b"abc")
    with refused("BUF-3"):
        fill(OldStream(stream), buffer, 8, N, b"a")


def test_a_stream_without_fills_refuses_no_bytes_where_a_fill_is_refused(device):
    """Nothing was checked: a closed buffer and an offset outside were accepted in silence."""
    stream, buffer = OldStream(device.create_stream()), device.allocate(N)
    fill(stream, buffer, N, 0, b"a")
    with pytest.raises(UsageError, match="BUF-3"):
        fill(stream, buffer, N + 1, 0, b"a")
    imported = device.import_host(memoryview(bytes(N)))
    with pytest.raises(UsageError, match="read-only"):
        fill(stream, imported, 0, 0, b"a")
    buffer.close()
    with pytest.raises(UsageError, match="closed"):
        fill(stream, buffer, 0, 0, b"a")


def test_blocks_cover_the_range_with_one_piece_of_memory(monkeypatch):
    monkeypatch.setattr("ggsched.backend.fill.BLOCK_NBYTES", 12)
    parts = list(blocks(32, b"abcd"))
    assert [(start, len(part)) for start, part in parts] == [(0, 12), (12, 12), (24, 8)]
    assert b"".join(parts[k][1] for k in range(3)) == b"abcd" * 8
    assert len({id(part.obj) for _, part in parts}) == 1


@pytest.mark.parametrize("kind", ["checked", "traced", "limited"])
def test_through_wrappers(device, kind):
    recorder = Recorder()
    wrap = {
        "checked": lambda: checked([device])[0],
        "traced": lambda: traced([device], recorder)[0],
        "limited": lambda: limited_devices([device], probe([device]))[0],
    }
    wrapped = wrap[kind]()
    stream, buffer = wrapped.create_stream(), wrapped.allocate(N)
    stream.fill(buffer, 0, N, b"\x01")
    stream.fill(buffer, 4, 8, b"ab")
    assert content(stream, buffer) == b"\1" * 4 + b"ab" * 4 + b"\1" * (N - 12)
    if kind == "traced":
        spans = [
            [(a.start, a.end) for a in e.writes]
            for e in recorder.trace("fills").entries
            if getattr(e, "label", "") == "fill"
        ]
        assert spans == [[(0, N)], [(4, 12)]]
    else:
        with refused("FIL-3"):
            stream.fill(buffer, 1, 2, b"ab")


def test_a_closed_buffer_is_named(device):
    stream, buffer = device.create_stream(), device.allocate(N)
    buffer.close()
    with pytest.raises(UsageError, match="closed"):
        stream.fill(buffer, 0, N, b"\0")


def test_imported_memory_is_not_filled(device):
    stream, buffer = device.create_stream(), device.import_host(memoryview(bytes(N)))
    with pytest.raises(UsageError, match="read-only"):
        stream.fill(buffer, 0, N, b"\0")
