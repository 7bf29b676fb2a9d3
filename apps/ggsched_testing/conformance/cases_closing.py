"""BUF-1, CAP-1, CAP-2, COL-2, ERR-2, ERR-3: empty buffers, captures and devices that are closed."""

from dataclasses import replace
from time import monotonic
from typing import Any

import numpy as np

from ggsched.backend.capture import Capture
from ggsched.backend.protocols import Stream
from ggsched.errors import DeviceFault, UsageError
from ggsched_testing.conformance.case import case
from ggsched_testing.conformance.context import NBYTES, TestContext
from ggsched_testing.conformance.exact import exact_op
from ggsched_testing.conformance.faults import fails_by_name, make_fail
from ggsched_testing.conformance.long_work import exact_node

# --- BUF-1 ------------------------------------------------------------------------------------


@case("BUF-1", "Buffers without bytes take every command of no bytes, and no other.", since=(1, 5))
def buf1_empty_buffers(w: TestContext) -> None:
    q, full, data = w.stream(), w.buffer(), w.bytes()
    w.put(q, full, data)
    buffers = w.buffers(3, 0)
    for x in buffers:
        w.require(x.nbytes == 0, f"{w.name(x)} has {x.nbytes} bytes")
        w.upload(q, w.bytes(0), x)
        w.fill(q, x, 0, 0, b"ab")
        w.copy(q, x, 0, full, int(w.rng.integers(0, NBYTES + 1)), 0)
        w.copy(q, full, int(w.rng.integers(0, NBYTES + 1)), x, 0, 0)
        w.copy(q, x, 0, buffers[0], 0, 0)
        w.download(q, x)
        w.order(q)
        if exact_op(w.device.facts):
            w.launch(q, w.compute(q, [(x, 0)], (buffers[-1], 0), 0))
        w.refused(UsageError, w.upload, q, w.bytes(1), x)
        w.refused(UsageError, w.fill, q, x, 1, 0, b"a")
        w.refused(UsageError, w.copy, q, full, 0, x, 0, 1)
        if w.device.facts.is_host:
            w.require(len(x.host_view()) == 0, "the view of an empty buffer has bytes")
    w.equal(w.get(q, full), data, "a buffer beside commands of no bytes")
    for x in buffers:
        w.close(x)
        w.refused(UsageError, w.upload, q, w.bytes(0), x)
        w.refused(UsageError, w.fill, q, x, 0, 0, b"a")


# --- CAP-1, CAP-2 -----------------------------------------------------------------------------


@case("CAP-1", "Streams of a capture but the first may be closed once it has ended.", "capture",
      "two streams", "events", since=(1, 5))  # fmt: skip
def cap1_side_streams_closed(w: TestContext) -> None:
    a, b = w.stream(), w.stream()
    x, y, z = w.buffers(3)
    capture = w.capture(a, b)
    w.copy(a, x, 0, y, 0, NBYTES)
    w.wait(b, w.record(a))
    w.copy(b, y, 0, z, 0, NBYTES)
    graph = w.end(capture)
    w.close(b)
    for _ in range(2):
        data = w.bytes()
        w.put(a, x, data)
        w.replay(a, graph)
        w.equal(w.get(a, z), data, "copied by a graph of which a stream is closed")


def _is_over(w: TestContext, capture: Capture) -> None:
    w.refused(UsageError, capture.end)
    capture.abort()


@case("CAP-2", "Closing a stream of a capture aborts it; the other streams are as before.",
      "capture", "two streams", since=(1, 5))  # fmt: skip
def cap2_closed_stream(w: TestContext) -> None:
    for closed in (0, 1):
        streams: list[Stream] = [w.stream(), w.stream()]
        x, y, old, data = w.buffer(), w.buffer(), w.bytes(), w.bytes()
        w.put(streams[0], x, data)
        w.put(streams[0], y, old)
        capture = w.capture(*streams)
        for q in streams:
            w.copy(q, x, 0, y, 0, NBYTES)
        w.close(streams.pop(closed))
        _is_over(w, capture)
        (q,) = streams
        w.equal(w.get(q, y), old, "the target of copies of a capture that was aborted")
        w.copy(q, x, 0, y, 0, NBYTES)
        w.equal(w.get(q, y), data, "copied by the stream that is left")
        w.close(q)


@case("CAP-2", "Closing a device aborts its captures.", "capture", since=(1, 5))
def cap2_closed_device(w: TestContext) -> None:
    q, x, y = w.stream(), w.buffer(), w.buffer()
    capture = w.capture(q)
    w.copy(q, x, 0, y, 0, NBYTES)
    w.close(w.device)
    _is_over(w, capture)


@case("CAP-2", "An event of a capture stays one of it, also when the capture is aborted.",
      "capture", "events", since=(1, 5))  # fmt: skip
def cap2_event_of_an_aborted_capture(w: TestContext) -> None:
    q, x, data = w.stream(), w.buffer(), w.bytes()
    w.put(q, x, data)
    capture = w.capture(q)
    w.upload(q, w.bytes(), x)
    event, closed = w.record(q), w.record(q)
    w.close(closed)
    w.refused(UsageError, lambda: event.is_done)
    capture.abort()
    w.require(event.is_recorded, "an event that was recorded in a capture is not recorded")
    w.refused(UsageError, lambda: event.is_done)
    w.refused(UsageError, w.sync, event)
    w.refused(UsageError, w.wait, q, event)
    w.refused(UsageError, w.record, q, event)
    later = w.capture(q)
    w.refused(UsageError, w.wait, q, event)
    w.end(later)
    w.close(event)
    w.equal(w.get(q, x), data, "after a capture that was aborted")


# --- COL-2 ------------------------------------------------------------------------------------


@case("COL-2", "What a peer holds is read in order, also where it is declared constant.",
      "peer reads", "launch", "latch", since=(1, 5))  # fmt: skip
def col2_constants_of_peers(w: TestContext) -> None:
    q, theirs = w.stream(), w.stream(w.other)
    x, y = w.buffer(NBYTES, w.other), w.buffer()
    w.put(theirs, x, w.numbers())
    node = exact_node(w, 0, (x, 0), (y, 0), NBYTES // 4)
    inputs = tuple(replace(o, is_constant=o.buffer is x) for o in node.inputs)
    program = w.compile([replace(node, inputs=inputs)], q)
    hold = w.hold(q)
    w.launch(q, program)
    w.pause()
    numbers = w.numbers()
    w.put(theirs, x, numbers)
    w.release_held(hold, q)
    w.equal(w.get(q, y), w.result(numbers), "of a peer's bytes, written while the launch was held")


# --- ERR-2, ERR-3 -----------------------------------------------------------------------------


@case("ERR-2", "All streams of a device may fail: each reports it, and the device is closed.",
      "fault", "two streams", since=(1, 5))  # fmt: skip
def err2_every_stream_fails(w: TestContext) -> None:
    streams = [w.stream() for _ in range(min(4, w.device.facts.max_streams))]
    labels = [make_fail(w, q) for q in streams]
    for i in w.rng.permutation(len(streams)):
        q, label = streams[int(i)], labels[int(i)]
        w.until(lambda q=q: q.is_done, "a stream with a fault is not done")  # type: ignore[misc]
        fails_by_name(w, label, w.sync, q)
        w.refused(DeviceFault, w.upload, q, w.bytes(), w.buffer())
    w.close(w.device)


@case("ERR-3", "When close of a device has returned, nothing is written any more.", "two streams",
      since=(1, 5))  # fmt: skip
def err3_nothing_behind_a_closed_device(w: TestContext) -> None:
    count, nbytes = min(3, w.device.facts.max_streams), 1 << 18
    x = w.buffer(nbytes)
    targets: list[Any] = []
    for _ in range(count):
        q = w.stream()
        w.fill(q, x, 0, nbytes, b"\x5a")
        targets += [w.download(q, x) for _ in range(int(w.rng.integers(1, 4)))]
    w.close(w.device)
    left = [np.array(target) for target in targets]
    end = monotonic() + w.harness.grace_s
    while monotonic() < end:
        w.pause()
    for target, before in zip(targets, left, strict=True):
        w.equal(target, before, "a target of a download, a moment after its device was closed")
