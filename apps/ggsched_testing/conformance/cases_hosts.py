"""CPY-4, CPY-5: host memory that commands use."""

import gc
import weakref

import numpy as np

from ggsched.errors import UsageError
from ggsched_testing.conformance.call_trace import Bytes
from ggsched_testing.conformance.case import case
from ggsched_testing.conformance.context import NBYTES, TestContext

# --- CPY-4 ------------------------------------------------------------------------------------


@case("CPY-4", "The source may be rewritten as soon as sync has returned.")
def cpy4_source_free_after_sync(w: TestContext) -> None:
    q, (x, y) = w.stream(), w.buffers(2)
    source = w.bytes()
    for _ in range(8):
        data = w.bytes()
        source[:] = data
        w.upload(q, source, x)
        w.copy(q, x, 0, y, 0, NBYTES)
        w.sync(q)
        _rewrite(w, source)
        w.equal(w.get(q, y), data, "uploaded from memory that was rewritten after sync")
        w.equal(w.get(q, x), data, "uploaded from memory that was rewritten after sync")


@case("CPY-4", "The source may be rewritten once an event behind the upload is done.", "events")
def cpy4_source_free_after_event(w: TestContext) -> None:
    q, x = w.stream(), w.buffer()
    source = w.bytes()
    for _ in range(8):
        data = w.bytes()
        source[:] = data
        w.upload(q, source, x)
        event = w.record(q)
        w.sync(event)
        _rewrite(w, source)
        w.equal(w.get(q, x), data, "uploaded from memory that was rewritten after the event")


@case("CPY-4", "A source that nobody else refers to is kept alive and unchanged.", "latch")
def cpy4_source_is_kept_alive(w: TestContext) -> None:
    q = w.stream()
    x = w.buffer(1 << 16)
    data = w.bytes(1 << 16)
    expected = data.copy()
    hold = w.hold(q)
    w.upload(q, data, x)
    w.forget(data)
    w.log("the caller drops its references to the source")
    del data
    gc.collect()
    w.log("other host memory is allocated and written")
    others = [np.full(1 << 16, i, np.uint8) for i in range(16)]
    hold.release()
    w.equal(w.get(q, x), expected, "uploaded from memory that only the stream refers to")
    del others


@case("CPY-4", "Where uploads are snapshots the source may be rewritten at once.", "snapshots")
def cpy4_snapshot(w: TestContext) -> None:
    q, (x, y) = w.stream(), w.buffers(2, 1 << 16)
    source = w.bytes(1 << 16)
    first = source.copy()
    hold = w.hold(q)
    w.upload(q, source, x)
    second = w.bytes(1 << 16)
    w.log(f"the host rewrites {w.name(source)}")
    source[:] = second
    w.upload(q, source, y)
    _rewrite(w, source)
    hold.release()
    w.equal(w.get(q, x), first, "uploaded from memory that was rewritten after the call")
    w.equal(w.get(q, y), second, "uploaded after another upload from the same memory")


@case("CPY-4", "A source is read behind a download into it that comes before.",
      "no snapshots", "latch")  # fmt: skip
def cpy4_source_of_a_download(w: TestContext) -> None:
    q = w.stream()
    for nbytes in (4, NBYTES, (1 << 16) + 12, 1 << 20):
        (x, y), data = w.buffers(2, nbytes), w.bytes(nbytes)
        hold = w.hold(q)
        w.upload(q, data, x)
        through = w.download(q, x)
        w.upload(q, through, y)
        hold.release()
        w.equal(w.get(q, y), data, f"{nbytes} bytes uploaded from memory that they came to")


@case("CPY-4", "The library releases the source when the upload is complete.")
def cpy4_source_is_released(w: TestContext) -> None:
    q, x = w.stream(), w.buffer()
    data = w.bytes()
    w.upload(q, data, x)
    w.sync(q)
    w.upload(q, w.bytes(), x)
    w.sync(q)
    watch = weakref.ref(data)
    w.forget(data)
    del data
    w.until(lambda: _is_gone(watch), "an upload that is long complete still holds its source")


@case("CPY-4", "A source may be read-only, unaligned, and anywhere in its array.")
def cpy4_any_source(w: TestContext) -> None:
    q, x = w.stream(), w.buffer()
    source = w.bytes(2 * NBYTES)
    source.flags.writeable = False
    for start, n in ((0, NBYTES), (1, 255), (3, 5), (17, 64)):
        piece = source[start : start + n]
        w.upload(q, piece, x)
        w.equal(w.get(q, x, 0, n), piece, f"{n} bytes from offset {start} of an array")


@case("CPY-4", "Host memory that is not a contiguous view of bytes is refused.")
def cpy4_what_is_no_host_memory(w: TestContext) -> None:
    q, x = w.stream(), w.buffer()
    wrong: list[object] = [
        np.zeros(4, np.float32),
        np.zeros(4, np.float32).data,
        memoryview(bytes(32))[::2],
        bytes(16),
    ]
    for source in wrong:
        w.log(f"{w.name(q)}.upload({type(source).__name__}, {w.name(x)}, 0)")
        w.refused(UsageError, q.upload, source, x, 0)


# --- CPY-5 ------------------------------------------------------------------------------------


@case("CPY-5", "A download that is held writes nothing.", "latch")
def cpy5_not_before_its_turn(w: TestContext) -> None:
    q = w.stream()
    x, data, hold = w.uploading(q)
    seen = w.download(q, x)
    before = seen.copy()
    w.still_held(hold, q)
    w.equal(seen, before, "the target of a download that is held")
    hold.release()
    w.sync(q)
    w.equal(seen, data, "the target of the download")


@case("CPY-5", "After sync the target is the host's: nothing is written to it any more.")
def cpy5_not_after_sync(w: TestContext) -> None:
    q, x = w.stream(), w.buffer()
    for _ in range(8):
        w.put(q, x, w.bytes())
        seen = w.download(q, x)
        w.sync(q)
        _rewrite(w, seen)
        mine = seen.copy()
        w.put(q, x, w.bytes())
        w.equal(seen, mine, "the target after sync, written by the host")


@case("CPY-5", "A target that nobody else refers to is kept alive.", "latch")
def cpy5_target_is_kept_alive(w: TestContext) -> None:
    q = w.stream()
    x = w.buffer(1 << 16)
    data = w.bytes(1 << 16)
    w.put(q, x, data)
    hold = w.hold(q)
    seen = w.download(q, x)
    w.forget(seen)
    w.log("the caller drops its references to the target")
    del seen
    gc.collect()
    others = [np.zeros(1 << 16, np.uint8) for _ in range(16)]
    hold.release()
    w.sync(q)
    w.require(not any(other.any() for other in others), "a download wrote to other host memory")


@case("CPY-5", "A read-only target is refused, and what is not a contiguous view of bytes.")
def cpy5_what_is_no_target(w: TestContext) -> None:
    q, x = w.stream(), w.buffer(16)
    wrong: list[object] = [
        memoryview(bytes(16)),
        np.zeros(4, np.float32).data,
        memoryview(bytearray(32))[::2],
        bytearray(16),
    ]
    for target in wrong:
        w.log(f"{w.name(q)}.download({w.name(x)}, 0, {type(target).__name__})")
        w.refused(UsageError, q.download, x, 0, target)


@case("CPY-5", "Memory from allocate_host serves both ways.")
def cpy5_pinned_memory(w: TestContext) -> None:
    q, x = w.stream(), w.buffer()
    for n in (0, 1, NBYTES):
        w.log(f"host memory = {w.name(w.device)}.allocate_host({n})")
        memory = w.device.allocate_host(n)
        w.require(memory.nbytes == n and not memory.readonly, "not writable, or of another length")
        data = w.bytes(n)
        host = np.frombuffer(memory, np.uint8)
        host[:] = data
        w.upload(q, host, x)
        w.sync(q)
        host[:] = 0
        w.download_to(q, x, 0, host)
        w.sync(q)
        w.equal(host, data, "through memory from allocate_host")


def _rewrite(w: TestContext, array: Bytes) -> None:
    w.log(f"the host rewrites {w.name(array)}")
    np.bitwise_xor(array, 0xFF, array)


def _is_gone(watch: "weakref.ref[Bytes]") -> bool:
    gc.collect()
    return watch() is None
