"""FIL-1, FIL-2, FIL-3: setting bytes of a buffer to a repeated pattern."""

import numpy as np

from ggsched.backend.fill import BLOCK_NBYTES
from ggsched.errors import UsageError
from ggsched_testing.conformance.call_trace import Bytes
from ggsched_testing.conformance.case import case
from ggsched_testing.conformance.context import NBYTES, TestContext

PATTERNS = (b"\x00", b"\xa7", b"\x12\x34", b"\x00\x00\x80\xff")
"""Zero, one byte, two different bytes, and minus infinity as f32."""


def _content(pattern: bytes, nbytes: int) -> Bytes:
    return np.frombuffer(pattern * (nbytes // len(pattern)), np.uint8)


# --- FIL-1 ------------------------------------------------------------------------------------


@case("FIL-1", "A fill changes its range and nothing else, whatever the offsets.")
def fil1_changes_nothing_else(w: TestContext) -> None:
    q, x, model = w.stream(), w.buffer(), w.bytes()
    w.put(q, x, model.copy())
    for pattern in PATTERNS:
        length = len(pattern)
        for first, count in ((0, 1), (1, 1), (3, 2), (5, 7), (16, 13), (NBYTES // length - 1, 1)):
            offset, nbytes = first * length, count * length
            w.fill(q, x, offset, nbytes, pattern)
            model[offset : offset + nbytes] = _content(pattern, nbytes)
            w.equal(w.get(q, x), model, f"after a fill of {nbytes} bytes at {offset}")


@case("FIL-1", "A whole buffer is filled, and a long one to its last byte.")
def fil1_whole_buffers(w: TestContext) -> None:
    q = w.stream()
    for nbytes in (4, NBYTES, BLOCK_NBYTES + 12):
        for pattern in PATTERNS[1:]:
            x = w.buffer(nbytes)
            w.put(q, x, w.bytes(nbytes))
            w.fill(q, x, 0, nbytes, pattern)
            w.equal(w.get(q, x), _content(pattern, nbytes), f"a buffer of {nbytes} bytes")
            w.close(x)


@case("FIL-1", "The caller may forget the pattern as soon as the call returns.", "latch")
def fil1_pattern_is_taken(w: TestContext) -> None:
    q, x = w.stream(), w.buffer()
    hold = w.hold(q)
    for k in range(8):
        w.fill(q, x, 32 * k, 32, bytes([k, 255 - k]))
    hold.release()
    wanted = np.concatenate([_content(bytes([k, 255 - k]), 32) for k in range(8)])
    w.equal(w.get(q, x, 0, 256), wanted, "eight fills that were enqueued on a held stream")


# --- FIL-2 ------------------------------------------------------------------------------------


@case("FIL-2", "A fill runs behind the copies before it and ahead of those after it.")
def fil2_in_order_with_copies(w: TestContext) -> None:
    q, (x, y) = w.stream(), w.buffers(2)
    old, new = w.bytes(), w.bytes()
    w.upload(q, old, x)
    w.fill(q, x, 0, 64, b"\x5a")
    w.copy(q, x, 0, y, 0, NBYTES)
    w.upload(q, new, x)
    old[:64] = 0x5A
    w.equal(w.get(q, y), old, "copied between a fill and an upload")
    w.equal(w.get(q, x), new, "uploaded behind a fill")


@case("FIL-2", "A fill is ordered with launches as a copy is.", "launch")
def fil2_in_order_with_launches(w: TestContext) -> None:
    q, (x, y) = w.stream(), w.buffers(2)
    program = w.compute(q, [(x, 0)], (y, 0))
    numbers = w.numbers()
    zeros = np.zeros_like(numbers)
    w.put(q, x, numbers)
    w.fill(q, x, 0, numbers.nbytes, b"\0\0\0\0")
    w.order(q)
    w.launch(q, program)
    w.order(q)
    w.fill(q, x, 0, NBYTES, b"\xff")
    w.equal(w.get(q, y), w.result(zeros), "computed of what was filled")
    w.equal(w.get(q, x), _content(b"\xff", NBYTES), "filled behind the launch")


@case("FIL-2", "A fill runs on its own stream, and waits for no other.", "latch", "two streams")
def fil2_on_its_own_stream(w: TestContext) -> None:
    held, free = w.stream(), w.stream()
    x, y = w.buffers(2)
    old = w.bytes()
    w.put(held, x, old)
    hold = w.hold(held)
    w.fill(held, x, 0, NBYTES, b"\x77")
    w.fill(free, y, 0, NBYTES, b"\x66")
    w.equal(w.get(free, y), _content(b"\x66", NBYTES), "filled while another stream is held")
    w.equal(w.get(free, x), old, "read while the fill of the held stream waits")
    w.release_held(hold, held)
    w.equal(w.get(held, x), _content(b"\x77", NBYTES), "after the fill")


@case("FIL-2", "An event covers a fill.", "events", "latch", "two streams")
def fil2_events_cover_it(w: TestContext) -> None:
    a, b = w.stream(), w.stream()
    x, y = w.buffers(2)
    w.put(a, x, w.bytes())
    hold = w.hold(a)
    w.fill(a, x, 0, NBYTES, b"\x21\x43")
    event = w.record(a)
    w.wait(b, event)
    w.copy(b, x, 0, y, 0, NBYTES)
    w.release_held(hold, event, a, b)
    w.equal(w.get(b, y), _content(b"\x21\x43", NBYTES), "copied behind a fill of another stream")


@case("FIL-2", "A captured fill is made by each replay, and not by the capture.", "capture")
def fil2_captured(w: TestContext) -> None:
    q, x, old = w.stream(), w.buffer(), w.bytes()
    w.put(q, x, old)
    graph = w.captured(q, lambda: w.fill(q, x, 8, 64, b"\x01\x02\x03\x04"))
    w.equal(w.get(q, x), old, "after the capture")
    for _ in range(2):
        data = w.bytes()
        w.put(q, x, data)
        w.replay(q, graph)
        data[8:72] = _content(b"\x01\x02\x03\x04", 64)
        w.equal(w.get(q, x), data, "after a replay")


# --- FIL-3 ------------------------------------------------------------------------------------


@case("FIL-3", "Patterns of other lengths than 1, 2 and 4 bytes are refused.")
def fil3_length_of_the_pattern(w: TestContext) -> None:
    q, x, content = w.stream(), w.buffer(), w.bytes()
    w.put(q, x, content.copy())
    for pattern in (b"", b"abc", b"12345678"):
        w.refused(UsageError, w.fill, q, x, 0, 24, pattern)
    w.equal(w.get(q, x), content, "after fills that were refused")


@case("FIL-3", "A range that is not made of whole patterns is refused.")
def fil3_whole_patterns(w: TestContext) -> None:
    q, x, content = w.stream(), w.buffer(), w.bytes()
    w.put(q, x, content.copy())
    for offset, nbytes, pattern in ((1, 4, b"ab"), (0, 5, b"ab"), (2, 4, b"abcd"), (4, 6, b"abcd")):
        w.refused(UsageError, w.fill, q, x, offset, nbytes, pattern)
    w.equal(w.get(q, x), content, "after fills that were refused")


@case("FIL-3", "Bytes outside the buffer, and closed buffers, are refused.")
def fil3_outside(w: TestContext) -> None:
    q, x, content = w.stream(), w.buffer(), w.bytes()
    w.put(q, x, content.copy())
    for offset, nbytes in ((-1, 4), (0, NBYTES + 1), (NBYTES, 1), (NBYTES + 1, 0), (4, -4)):
        w.refused(UsageError, w.fill, q, x, offset, nbytes, b"\0")
    w.equal(w.get(q, x), content, "after fills that were refused")
    closed = w.buffer()
    w.close(closed)
    w.refused(UsageError, w.fill, q, closed, 0, 4, b"\0")


@case("FIL-3", "A buffer of another device is refused.", "pair")
def fil3_foreign_buffer(w: TestContext) -> None:
    q, theirs, x = w.stream(), w.stream(w.other), w.buffer(NBYTES, w.other)
    content = w.bytes()
    w.put(theirs, x, content)
    w.refused(UsageError, w.fill, q, x, 0, NBYTES, b"\0")
    w.equal(w.get(theirs, x), content, "the other device's buffer")


@case("FIL-3", "Zero bytes are legal, and change nothing.")
def fil3_zero_bytes(w: TestContext) -> None:
    q, x, empty, content = w.stream(), w.buffer(), w.buffer(0), w.bytes()
    w.put(q, x, content)
    for offset in (0, 4, NBYTES):
        w.fill(q, x, offset, 0, b"abcd")
    w.fill(q, empty, 0, 0, b"\0")
    w.equal(w.get(q, x), content, "after fills of zero bytes")
