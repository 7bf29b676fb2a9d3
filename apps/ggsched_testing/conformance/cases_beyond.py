"""CPY, FIL, LCH, BUF, EVT, ERR: far offsets, many at a time, seldom uses, and neighbours."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from ggsched.backend.protocols import Buffer
from ggsched.errors import OutOfDeviceMemory
from ggsched_testing.conformance.case import case
from ggsched_testing.conformance.cases_buffers import is_freed, made_after
from ggsched_testing.conformance.context import NBYTES, TestContext
from ggsched_testing.conformance.long_work import Enqueuing

GIB: Final = 1 << 30
ROOM: Final = 1 << 16

# --- offsets beyond 2 and 4 GiB ---------------------------------------------------------------


def _far(w: TestContext, *, whole: int) -> Iterator[tuple[Buffer, int]]:
    """Yield buffers with an offset that takes more than 31 or 32 bits, where memory allows.

    The first ``ROOM`` bytes, where a shortened offset leads, are set to zero, and so are as many
    around the offset.
    """
    facts, q = w.device.facts, w.stream()
    for edge in (2 * GIB, 4 * GIB):
        nbytes = edge + ROOM
        if nbytes > facts.max_allocation_nbytes or 3 * nbytes > facts.memory_nbytes:
            return
        try:
            buffer = w.buffer(nbytes)
        except OutOfDeviceMemory:
            return
        w.fill(q, buffer, 0, ROOM, b"\0")
        w.fill(q, buffer, edge - ROOM, 2 * ROOM, b"\0")
        w.sync(q)
        yield buffer, edge + int(w.rng.integers(0, 64)) * whole
        w.equal(w.get(q, buffer, 0, ROOM), np.zeros(ROOM, np.uint8), "bytes at the start")
        w.close(buffer)


@case("CPY-2", "Uploads, copies and downloads reach bytes beyond 2 and 4 GiB.", "far offsets")
def cpy2_far_offsets(w: TestContext) -> None:
    q = w.stream()
    for x, far in _far(w, whole=1):
        data = w.bytes()
        w.upload(q, data, x, far)
        w.copy(q, x, far, x, far + 2 * NBYTES, NBYTES)
        near = w.buffer()
        w.copy(q, x, far + 2 * NBYTES, near, 0, NBYTES)
        w.equal(w.get(q, near), data, f"copied from beyond {far} bytes")
        w.equal(w.get(q, x, far, NBYTES), data, f"downloaded from {far} bytes on")
        edge, crossing = far // GIB * GIB, w.bytes()
        w.put(q, x, crossing, edge - NBYTES // 2)
        seen = w.get(q, x, edge - NBYTES // 2, NBYTES)
        w.equal(seen, crossing, f"across the byte {edge}")


@case("FIL-1", "Fills reach bytes beyond 2 and 4 GiB.", "far offsets")
def fil1_far_offsets(w: TestContext) -> None:
    q = w.stream()
    for x, far in _far(w, whole=4):
        pattern = w.bytes(4).tobytes()
        w.fill(q, x, far, NBYTES, pattern)
        expected = np.frombuffer(pattern * (NBYTES // 4), np.uint8)
        w.equal(w.get(q, x, far, NBYTES), expected, f"filled from {far} bytes on")


@case("LCH-1", "Launches read and write beyond 2 and 4 GiB.", "far offsets", "launch")
def lch1_far_operands(w: TestContext) -> None:
    q = w.stream()
    unit = max(4, w.device.facts.alignment)
    for x, far in _far(w, whole=unit):
        numbers = w.numbers()
        w.put(q, x, numbers, far)
        out = far + -(-NBYTES // unit) * unit
        w.launch(q, w.compute(q, [(x, far)], (x, out)))
        w.equal(w.get(q, x, out, NBYTES), w.result(numbers), f"computed from {far} bytes on")


# --- many at a time ---------------------------------------------------------------------------


@case("EVT-2", "An event holds each of many streams.", "events", "latch", "three streams")
def evt2_many_waiters(w: TestContext) -> None:
    count = min(w.device.facts.max_streams - 1, 18)
    a = w.stream()
    x, y, data = w.buffer(), w.buffer(NBYTES * count), w.bytes()
    w.put(a, x, w.bytes())
    hold = w.hold(a)
    w.upload(a, data, x)
    event = w.record(a)
    waiters = [w.stream() for _ in range(count)]
    for i, q in enumerate(waiters):
        w.wait(q, event)
        w.copy(q, x, 0, y, NBYTES * i, NBYTES)
    w.release_held(hold, *waiters)
    for q in waiters:
        w.sync(q)
    w.equal(w.get(a, y), np.tile(data, count), f"copied by {count} streams behind one event")


@case("LCH-1", "A program that is in flight many times runs each time.", "launch")
def lch1_many_times_in_flight(w: TestContext) -> None:
    q, count = w.stream(), 24
    x, y, source, out = w.buffer(), w.buffer(), w.buffer(count * NBYTES), w.buffer(count * NBYTES)
    numbers = w.numbers(count * NBYTES // 4)
    w.put(q, source, numbers)
    program = w.compute(q, [(x, 0)], (y, 0))
    w.order(q)
    if w.device.facts.copy_order == "host":
        return  # order() would wait for each
    queue = Enqueuing(w, q)

    def once(i: int) -> None:
        w.copy(q, source, i * NBYTES, x, 0, NBYTES)
        w.order(q)
        w.launch(q, program)
        w.order(q)
        w.copy(q, y, 0, out, i * NBYTES, NBYTES)
        w.order(q)

    queue.each(count, "copy to x, launch, copy from y", once)
    queue.release()
    w.equal(w.get(q, out), w.result(numbers), f"the results of {count} launches")


@case("CAP-1", "Graphs of one stream that are in flight at a time run each.", "capture")
def cap1_several_in_flight(w: TestContext) -> None:
    q, count = w.stream(), 6
    x, y = w.buffer(count * NBYTES), w.buffer(count * NBYTES)
    graphs = []
    for i in range(count):
        capture = w.capture(q)
        w.copy(q, x, i * NBYTES, y, i * NBYTES, NBYTES)
        graphs.append(w.end(capture))
    data = w.bytes(count * NBYTES)
    w.put(q, y, w.bytes(count * NBYTES))
    hold = w.hold(q)
    w.upload(q, data, x)
    for i in w.rng.permutation(count):
        w.replay(q, graphs[int(i)])
    hold.release()
    w.equal(w.get(q, y), data, f"copied by {count} graphs")


# --- memory -----------------------------------------------------------------------------------


@case("BUF-2", "Memory freed under a replay is not handed out.", "capture", "latch", "two streams")
def buf2_freed_under_a_replay(w: TestContext) -> None:
    for reads in (False, True):
        q, free = w.stream(), w.stream()
        x, y = w.buffers(2)
        for buffer in (x, y):
            w.put(free, buffer, w.bytes())
        capture = w.capture(q)
        if reads:
            w.copy(q, x, 0, y, 0, NBYTES)
        else:
            w.copy(q, y, 0, x, 0, NBYTES)
        graph = w.end(capture)
        hold = w.hold(q)
        w.replay(q, graph)
        if is_freed(w, x):
            made = made_after(w, free, 4)
            hold.release()
            w.until(lambda q=q: q.is_done, f"{w.name(q)} is not done")  # type: ignore[misc]
            seen = w.get(free, y)
            for buffer, data in made.items():
                w.equal(w.get(free, buffer), data, "a buffer made after the close")
                leaked = reads and np.array_equal(seen, data)
                w.require(not leaked, "the replay has read a buffer that was made after the close")
        hold.release()
        w.close(q, free)


@case("BUF-5", "What the host writes into imported memory is seen by launches.", "import", "launch")
def buf5_launches_see_host_writes(w: TestContext) -> None:
    q, unit = w.stream(), max(4096, w.device.facts.alignment)
    raw = np.zeros(3 * unit, np.uint8)
    start = -raw.ctypes.data % unit
    host = raw[start : start + 2 * unit]
    imported, y = w.device.import_host(host.data), w.buffer()
    w.log(f"b = {w.name(w.device)}.import_host({host.nbytes} host bytes)")
    program = w.compute(q, [(imported, unit)], (y, 0))
    for _ in range(3):
        numbers = w.numbers()
        host[unit : unit + NBYTES] = numbers.view(np.uint8)
        w.log("the host rewrites it")
        w.launch(q, program)
        w.equal(w.get(q, y), w.result(numbers), "computed from imported memory")
    imported.close()


# --- closing ----------------------------------------------------------------------------------


@case("EVT-5", "Closing an event leaves the others of its stream.", "events", "latch",
      "two streams")  # fmt: skip
def evt5_closed_beside_others(w: TestContext) -> None:
    a, b = w.stream(), w.stream()
    for closed in range(3):
        y = w.buffer()
        x, data, hold = w.uploading(a)
        events = [w.record(a) for _ in range(3)]
        w.close(events.pop(closed))
        w.not_done(*events)
        for event in events:
            w.wait(b, event)
        w.copy(b, x, 0, y, 0, NBYTES)
        w.sync_held(hold, b)
        w.equal(w.get(b, y), data, "copied behind events beside one that was closed")


@case("ERR-3", "Closing a program leaves the others of its stream.", "launch")
def err3_program_beside_others(w: TestContext) -> None:
    q, count = w.stream(), 5
    x, y = w.buffer(), w.buffer(count * NBYTES)
    numbers = w.numbers()
    w.put(q, x, numbers)
    w.put(q, y, np.zeros(count * NBYTES, np.uint8))
    w.order(q)
    programs = [w.compute(q, [(x, 0)], (y, i * NBYTES)) for i in range(count)]
    left = [int(i) for i in w.rng.permutation(count)]
    expected = np.zeros((count, NBYTES // 4), np.float32)
    while left:
        w.close(programs[left.pop()])
        for i in left:
            w.launch(q, programs[i])
            expected[i] = w.result(numbers)
        w.equal(w.get(q, y), expected.reshape(-1), f"made by the {len(left)} that are left")
        w.put(q, y, np.zeros(count * NBYTES, np.uint8))
        w.order(q)
        expected[:] = 0


@case("ERR-3", "Closing a device leaves others.", "pair", "two streams")
def err3_device_beside_others(w: TestContext) -> None:
    q, x, data = w.stream(), w.buffer(), w.bytes()
    other = w.stream(w.other)
    w.put(other, w.buffer(NBYTES, w.other), data)
    w.upload(q, data, x)
    w.close(w.other)
    w.equal(w.get(q, x), data, "uploaded before another device was closed")
    again = w.stream()
    w.put(again, x, data[::-1].copy())
    w.equal(w.get(q, x), data[::-1], "uploaded after another device was closed")
