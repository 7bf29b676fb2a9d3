"""BUF: memory of the device."""

import numpy as np

from ggsched.backend.protocols import Buffer, Stream
from ggsched.errors import OutOfDeviceMemory, UsageError
from ggsched_testing.conformance.call_trace import Bytes
from ggsched_testing.conformance.case import case
from ggsched_testing.conformance.cleanup import Hold
from ggsched_testing.conformance.context import NBYTES, TestContext

# --- BUF-1 ------------------------------------------------------------------------------------


@case("BUF-1", "A buffer has the length that was requested, odd ones and none included.")
def buf1_lengths(w: TestContext) -> None:
    q = w.stream()
    for nbytes in (0, 1, 3, 63, 64, 65, 4097):
        buffer = w.buffer(nbytes)
        w.require(buffer.nbytes == nbytes, f"{buffer.nbytes} bytes instead of {nbytes}")
        w.require(buffer.device is w.device, "the buffer's device is another object")
        data = w.bytes(nbytes)
        w.put(q, buffer, data)
        w.equal(w.get(q, buffer), data, f"a buffer of {nbytes} bytes")


@case("BUF-1", "Buffers do not share bytes.")
def buf1_buffers_are_apart(w: TestContext) -> None:
    q = w.stream()
    sizes = [1, 7, 64, 100, 256, 1000, 4096, 33]
    buffers = [w.buffer(n) for n in sizes]
    content = [w.bytes(n) for n in sizes]
    for buffer, data in zip(buffers, content, strict=True):
        w.upload(q, data, buffer)
    w.sync(q)
    for buffer, data in zip(buffers, content, strict=True):
        w.equal(w.get(q, buffer), data, f"{w.name(buffer)} after the others were written")


@case(
    "BUF-1", "Too much raises OutOfDeviceMemory with requested and free bytes; the device goes on."
)
def buf1_too_much(w: TestContext) -> None:
    most = w.device.facts.max_allocation_nbytes
    for requested in (most + 1, w.device.facts.memory_nbytes + 1, 1 << 60):
        error = w.refused(OutOfDeviceMemory, w.buffer, requested)
        text = error.one_line()
        w.require(str(requested) in text, f"the error does not say what was requested: {text}")
        numbers = [word for word in text.replace(",", " ").split() if word.isdigit()]
        w.require(len(numbers) > 1, f"the error does not say how much is free: {text}")
    q, buffer, data = w.stream(), w.buffer(), w.bytes()
    w.put(q, buffer, data)
    w.equal(w.get(q, buffer), data, "a buffer made after one that was too large")


@case("BUF-1", "A negative length is refused.")
def buf1_negative(w: TestContext) -> None:
    w.refused(UsageError, w.buffer, -1)


@case("BUF-1", "Memory that was closed can be had again.")
def buf1_memory_comes_back(w: TestContext) -> None:
    facts = w.device.facts
    nbytes = min(facts.max_allocation_nbytes, facts.memory_nbytes // 2, 1 << 20)
    rounds = min(80, facts.memory_nbytes // nbytes + 2)
    for _ in range(rounds):
        w.close(w.buffer(nbytes))


@case("BUF-1", "Buffers of host memory are aligned as declared.", "host memory")
def buf1_alignment(w: TestContext) -> None:
    for nbytes in (1, 100, 4096):
        address = np.frombuffer(w.buffer(nbytes).host_view(), np.uint8).ctypes.data
        wrong = address % w.device.facts.alignment
        w.require(not wrong, f"a buffer of {nbytes} bytes is {wrong} bytes off the alignment")


# --- BUF-2 ------------------------------------------------------------------------------------


@case("BUF-2", "Memory freed under an upload is not handed out before that is done.", "latch",
      "two streams")  # fmt: skip
def buf2_freed_under_an_upload(w: TestContext) -> None:
    q, x = w.stream(), w.buffer()
    w.put(q, x, w.bytes())
    hold = w.hold(q)
    w.upload(q, w.bytes(), x)
    if is_freed(w, x):
        _others_survive(w, hold, q)


@case("BUF-2", "Nor under a copy that reads it.", "latch", "two streams")
def buf2_freed_under_a_copy(w: TestContext) -> None:
    q, (x, y) = w.stream(), w.buffers(2)
    w.put(q, x, w.bytes())
    hold = w.hold(q)
    w.copy(q, x, 0, y, 0, NBYTES)
    if not is_freed(w, x):
        return
    secrets = _others_survive(w, hold, q)
    seen = w.get(q, y)
    leaked = any(np.array_equal(seen, secret) for secret in secrets)
    w.require(not leaked, "the copy has read a buffer that was made after the close")


@case("BUF-2", "Nor under a launch that writes it.", "latch", "launch", "two streams")
def buf2_freed_under_a_launch(w: TestContext) -> None:
    q, (x, y) = w.stream(), w.buffers(2)
    w.put(q, x, w.numbers())
    program = w.compute(q, [(x, 0)], (y, 0))
    hold = w.hold(q)
    w.launch(q, program)
    if is_freed(w, y):
        _others_survive(w, hold, q)


def is_freed(w: TestContext, buffer: Buffer) -> bool:
    """Close a buffer under a command; return whether that was not refused."""
    w.log("from here on the caller is wrong (BUF-2); the device must not make it worse")
    try:
        w.close(buffer)
    except UsageError:
        return False
    return True


def _others_survive(w: TestContext, hold: Hold, q: Stream) -> list[Bytes]:
    """Insist that buffers made now keep their content when the held work has run; return it."""
    free = w.stream()
    made = made_after(w, free, 8)
    hold.release()
    w.until(lambda: q.is_done, f"{w.name(q)} is not done")
    for buffer, data in made.items():
        w.equal(w.get(free, buffer), data, "a buffer made after the close")
    return list(made.values())


def made_after(w: TestContext, q: Stream, count: int) -> dict[Buffer, Bytes]:
    """Return buffers that are made when another one was closed, and what they hold."""
    made: dict[Buffer, Bytes] = {}
    for _ in range(count):
        buffer, data = w.buffer(), w.numbers().view(np.uint8)
        w.put(q, buffer, data)
        made[buffer] = data.copy()
    return made


# --- BUF-3 ------------------------------------------------------------------------------------

OUTSIDE = ((-1, 4), (NBYTES - 3, 4), (0, NBYTES + 1), (NBYTES + 1, 0), (1 << 40, 1))


@case("BUF-3", "Uploads and downloads outside the buffer are refused.")
def buf3_transfers_outside(w: TestContext) -> None:
    q = w.stream()
    x, content = w.filled(q)
    for offset, nbytes in OUTSIDE:
        w.refused(UsageError, w.upload, q, w.bytes(nbytes), x, offset)
        w.refused(UsageError, w.download, q, x, offset, nbytes)
    w.equal(w.get(q, x), content, "after transfers that were refused")


@case("BUF-3", "Copies outside either buffer are refused, and negative lengths.")
def buf3_copies_outside(w: TestContext) -> None:
    q = w.stream()
    x, content = w.filled(q)
    y = w.buffer(4 * NBYTES)
    for offset, nbytes in OUTSIDE:
        w.refused(UsageError, w.copy, q, x, offset, y, 0, nbytes)
        w.refused(UsageError, w.copy, q, y, 0, x, offset, nbytes)
    w.refused(UsageError, w.copy, q, x, 0, y, 0, -1)
    w.refused(UsageError, w.copy, q, y, 8, x, 8, -4)
    w.equal(w.get(q, x), content, "after copies that were refused")


@case("BUF-3", "Operands outside their buffer are refused when they are compiled.", "launch")
def buf3_operands_outside(w: TestContext) -> None:
    q = w.stream()
    x, content = w.filled(q)
    y = w.buffer()
    count = NBYTES // 4
    for offset in (4, -4, NBYTES):
        w.refused(UsageError, w.compute, q, [(x, offset)], (y, 0), count)
        w.refused(UsageError, w.compute, q, [(y, 0)], (x, offset), count)
    w.equal(w.get(q, x), content, "after operands that were refused")


@case("BUF-3", "Regions that end where the buffer ends are legal.")
def buf3_up_to_the_end(w: TestContext) -> None:
    q = w.stream()
    x, content = w.filled(q)
    last = w.bytes(1)
    w.upload(q, last, x, NBYTES - 1)
    w.upload(q, w.bytes(0), x, NBYTES)
    content[-1:] = last
    w.equal(w.get(q, x), content, "after an upload of the last byte")
    w.equal(w.get(q, x, NBYTES, 0), content[:0], "nothing at the end")


# --- BUF-4 ------------------------------------------------------------------------------------


@case("BUF-4", "A host view shows what the stream wrote, and the stream what the host wrote.",
      "host memory")  # fmt: skip
def buf4_view_is_the_memory(w: TestContext) -> None:
    q = w.stream()
    x, data, mine = w.buffer(), w.bytes(), w.bytes()
    w.put(q, x, data)
    view = x.host_view()
    w.require(view.nbytes == NBYTES, f"the view has {view.nbytes} bytes")
    w.equal(np.frombuffer(view, np.uint8), data, "the view after an upload")
    w.log(f"{w.name(x)}.host_view()[:] = host bytes")
    view[:] = mine.data
    w.equal(w.get(q, x), mine, "downloaded after writing through the view")


@case("BUF-4", "Launches work on the same bytes as the view.", "host memory", "launch")
def buf4_view_and_launches(w: TestContext) -> None:
    q, (x, y) = w.stream(), w.buffers(2)
    numbers = w.numbers()
    program = w.compute(q, [(x, 0)], (y, 0))
    w.log(f"{w.name(x)}.host_view()[:] = host bytes")
    x.host_view()[:] = numbers.view(np.uint8).data
    w.launch(q, program)
    w.sync(q)
    seen = np.frombuffer(y.host_view(), np.uint8)
    w.equal(seen, w.result(numbers), "the view of a launch's result")


@case("BUF-4", "A device whose memory is not host memory offers no view.", "no host memory")
def buf4_no_view(w: TestContext) -> None:
    x = w.buffer()
    w.refused(UsageError, x.host_view)
