"""CPY-1, CPY-2, CPY-3, CPY-6: copies between buffers."""

import numpy as np

from ggsched.backend.protocols import Buffer, Device, Stream
from ggsched.errors import UsageError
from ggsched_testing.conformance.case import case
from ggsched_testing.conformance.context import NBYTES, TestContext

# --- CPY-1 ------------------------------------------------------------------------------------


@case("CPY-1", "A copy is not ordered after other streams' work on its buffers.", "latch",
      "two streams")  # fmt: skip
def cpy1_not_after_others(w: TestContext) -> None:
    held, q = w.stream(), w.stream()
    x, y = w.buffers(2)
    data = w.bytes()
    w.put(q, x, data)
    w.put(q, y, w.bytes())
    hold = w.hold(held)
    unrelated = w.buffer()
    w.upload(held, w.bytes(), unrelated)
    w.download(held, unrelated)
    w.copy(q, x, 0, y, 0, NBYTES)
    w.equal(w.get(q, y), data, "copied while another stream is held")
    w.sync_held(hold, held)


@case("CPY-1", "A copy runs on its own stream, behind what was enqueued there.", "latch",
      "two streams")  # fmt: skip
def cpy1_on_its_own_stream(w: TestContext) -> None:
    held, free = w.stream(), w.stream()
    x, y = w.buffers(2)
    old, new = w.bytes(), w.bytes()
    w.put(held, x, new)
    w.put(held, y, old)
    hold = w.hold(held)
    w.copy(held, x, 0, y, 0, NBYTES)
    w.equal(w.get(free, y), old, "read by another stream while the copy is held")
    w.release_held(hold, held)
    w.equal(w.get(held, y), new, "after the copy")


@case("CPY-1", "A copy to a second device runs on the stream it is enqueued on.", "peer copy")
def cpy1_to_the_other_device(w: TestContext) -> None:
    _between(w, w.device, w.other)


@case("CPY-1", "A copy from a second device does so, too.", "peer copy")
def cpy1_from_the_other_device(w: TestContext) -> None:
    _between(w, w.other, w.device)


@case("CPY-1", "A copy is held by its own stream, and not by the other side's.", "peer copy",
      "latch")  # fmt: skip
def cpy1_held_by_its_own_stream(w: TestContext) -> None:
    mine, theirs = w.stream(w.device), w.stream(w.other)
    x, y = w.buffer(), w.buffer(NBYTES, w.other)
    old, new = w.bytes(), w.bytes()
    w.put(mine, x, new)
    w.put(theirs, y, old)
    hold = w.hold(mine)
    w.copy(mine, x, 0, y, 0, NBYTES)
    w.equal(w.get(theirs, y), old, "read by the other side while the copy is held")
    w.sync_held(hold, mine)
    w.equal(w.get(theirs, y), new, "read by the other side after the copy")


def _between(w: TestContext, src_device: Device, dst_device: Device) -> None:
    """Copy on a stream of the device under test while the other side's streams are held."""
    q, other = w.stream(w.device), w.stream(w.other)
    x, y = w.buffer(NBYTES, src_device), w.buffer(NBYTES, dst_device)
    data = w.bytes()
    w.put(q if src_device is w.device else other, x, data)
    w.put(q if dst_device is w.device else other, y, w.bytes())
    held = w.stream(w.other) if w.other.facts.max_streams > 1 else other
    hold = w.hold(held)
    w.upload(held, w.bytes(), w.buffer(NBYTES, w.other))
    w.copy(q, x, 0, y, 0, NBYTES)
    w.sync(q)
    w.sync_held(hold, held)
    w.equal(w.get(q if dst_device is w.device else other, y), data, "copied between two devices")


# --- CPY-2 ------------------------------------------------------------------------------------

PIECES = ((0, 0, 1), (1, 2, 3), (5, 64, 7), (63, 1, 65), (100, 97, 31), (0, 128, 128))
"""Source offset, destination offset, length: odd ones, unaligned ones."""


@case("CPY-2", "A copy changes its destination and nothing else, whatever the offsets.")
def cpy2_copy_changes_nothing_else(w: TestContext) -> None:
    q, (x, y) = w.stream(), w.buffers(2)
    source, model = w.bytes(), w.bytes()
    w.put(q, x, source)
    w.put(q, y, model.copy())
    for a, b, n in PIECES:
        w.copy(q, x, a, y, b, n)
        model[b : b + n] = source[a : a + n]
        w.equal(w.get(q, y), model, f"the destination after a copy of {n} bytes")
    w.equal(w.get(q, x), source, "the source after copies")


@case("CPY-2", "An upload changes its destination and nothing else, its source included.")
def cpy2_upload_changes_nothing_else(w: TestContext) -> None:
    q, x = w.stream(), w.buffer()
    model = w.bytes()
    w.put(q, x, model.copy())
    for _, b, n in PIECES:
        data = w.bytes(n)
        given = data.copy()
        w.upload(q, given, x, b)
        model[b : b + n] = data
        w.equal(w.get(q, x), model, f"the buffer after an upload of {n} bytes")
        w.equal(given, data, "the host source after an upload")


@case("CPY-2", "A download fills its target exactly and leaves the buffer alone.")
def cpy2_download_changes_nothing_else(w: TestContext) -> None:
    q, x = w.stream(), w.buffer()
    content = w.bytes()
    w.put(q, x, content)
    for a, b, n in PIECES:
        host = w.bytes()
        expected = host.copy()
        expected[b : b + n] = content[a : a + n]
        w.download_to(q, x, a, host[b : b + n])
        w.sync(q)
        w.equal(host, expected, f"host memory around a download of {n} bytes")
    w.equal(w.get(q, x), content, "the buffer after downloads")


@case("CPY-2", "A copy within a buffer moves its bytes and no others.")
def cpy2_within_a_buffer(w: TestContext) -> None:
    q, x = w.stream(), w.buffer()
    model = w.bytes()
    w.put(q, x, model.copy())
    for a, b, n in ((0, 128, 128), (128, 0, 64), (3, 77, 5), (200, 11, 56)):
        w.copy(q, x, a, x, b, n)
        model[b : b + n] = model[a : a + n].copy()
        w.equal(w.get(q, x), model, f"after a copy of {n} bytes within the buffer")


# --- CPY-3 ------------------------------------------------------------------------------------


@case("CPY-3", "Source and destination that overlap are refused.")
def cpy3_overlap(w: TestContext) -> None:
    q = w.stream()
    x, content = w.filled(q)
    for a, b, n in ((0, 0, NBYTES), (0, 8, 16), (8, 0, 16), (15, 0, 16), (0, 0, 1), (64, 65, 100)):
        w.refused(UsageError, w.copy, q, x, a, x, b, n)
    w.equal(w.get(q, x), content, "after copies that were refused")


@case("CPY-3", "Neighbours do not overlap.")
def cpy3_neighbours(w: TestContext) -> None:
    q = w.stream()
    x, content = w.filled(q)
    w.copy(q, x, 0, x, 16, 16)
    w.copy(q, x, 64, x, 48, 16)
    content[16:32] = content[:16].copy()
    content[48:64] = content[64:80].copy()
    w.equal(w.get(q, x), content, "after copies between neighbours")


@case("CPY-3", "Zero bytes are legal everywhere.")
def cpy3_zero_bytes(w: TestContext) -> None:
    q = w.stream()
    x, empty, other = w.buffer(), w.buffer(0), w.buffer(0)
    content, nothing = w.bytes(), np.zeros(0, np.uint8)
    w.put(q, x, content)
    for offset in (0, 1, NBYTES):
        w.upload(q, nothing, x, offset)
        w.download_to(q, x, offset, nothing)
        w.copy(q, x, offset, x, offset, 0)
        w.copy(q, empty, 0, x, offset, 0)
    w.upload(q, nothing, empty)
    w.copy(q, empty, 0, other, 0, 0)
    w.equal(w.get(q, empty), nothing, "an empty buffer")
    w.equal(w.get(q, x), content, "after commands of zero bytes")


@case("CPY-3", "Zero bytes keep their place in the order.", "events", "latch", "two streams")
def cpy3_zero_bytes_keep_their_place(w: TestContext) -> None:
    a, b = w.stream(), w.stream()
    x, nothing = w.buffer(), np.zeros(0, np.uint8)
    hold = w.hold(a)
    w.upload(a, nothing, x)
    w.copy(a, x, 0, x, 0, 0)
    event = w.record(a)
    w.wait(b, event)
    w.download_to(b, x, 0, nothing)
    w.sync_held(hold, b, event, a)


# --- CPY-6 ------------------------------------------------------------------------------------


@case("CPY-6", "A declared path to a second device carries bytes both ways.", "peer copy")
def cpy6_declared_path(w: TestContext) -> None:
    q, theirs = w.stream(), w.stream(w.other)
    x, y, back = w.buffer(), w.buffer(NBYTES, w.other), w.buffer()
    data = w.bytes()
    w.put(q, x, data)
    w.copy(q, x, 8, y, 16, 100)
    w.sync(q)
    w.equal(w.get(theirs, y, 16, 100), data[8:108], "copied to the other device")
    w.copy(q, y, 16, back, 0, 100)
    w.equal(w.get(q, back, 0, 100), data[8:108], "copied there and back")


@case("CPY-6", "A pair without a path is refused.", "no peer copy")
def cpy6_no_path(w: TestContext) -> None:
    q = w.stream()
    x, y = w.buffer(), w.buffer(NBYTES, w.other)
    content = w.bytes()
    w.put(q, x, content)
    w.refused(UsageError, w.copy, q, x, 0, y, 0, 16)
    w.refused(UsageError, w.copy, q, y, 0, x, 0, 16)
    w.equal(w.get(q, x), content, "after copies that were refused")


@case("CPY-6", "Host memory of another backend is reached where that is declared.", "foreign copy")
def cpy6_foreign_host(w: TestContext) -> None:
    q, foreign = w.stream(), w.foreign()
    mine, theirs = w.buffer(), foreign.allocate(NBYTES)
    data = w.bytes()
    w.put(q, mine, data)
    w.copy(q, mine, 16, theirs, 0, 64)
    w.sync(q)
    view = np.frombuffer(theirs.host_view(), np.uint8)
    w.equal(view[:64], data[16:80], "copied to another backend")
    w.copy(q, theirs, 0, mine, 128, 64)
    w.equal(w.get(q, mine, 128, 64), data[16:80], "copied from another backend")


@case("CPY-6", "Memory of another backend that is out of reach is refused.")
def cpy6_foreign_memory(w: TestContext) -> None:
    q = w.stream()
    for is_host in (True, False):
        foreign = w.foreign(is_host=is_host)
        if w.device.copies_with(foreign.facts):
            continue
        mine, theirs = w.buffer(), foreign.allocate(64)
        w.refused(UsageError, w.copy, q, mine, 0, theirs, 0, 16)
        w.refused(UsageError, w.copy, q, theirs, 0, mine, 0, 16)
    _nothing_of_ours(w, q, w.foreign())


@case("CPY-6", "Transfers take buffers of their own device only.", "pair")
def cpy6_transfers_of_foreign_buffers(w: TestContext) -> None:
    q, y = w.stream(), w.buffer(NBYTES, w.other)
    w.refused(UsageError, w.upload, q, w.bytes(), y)
    w.refused(UsageError, w.download, q, y)
    _nothing_of_ours(w, q, w.other)


def _nothing_of_ours(w: TestContext, q: Stream, other: Device) -> None:
    """Insist that a copy between two buffers of another device is refused."""
    a: Buffer = other.allocate(64)
    b: Buffer = other.allocate(64)
    w.refused(UsageError, w.copy, q, a, 0, b, 0, 16)
    a.close()
    b.close()
