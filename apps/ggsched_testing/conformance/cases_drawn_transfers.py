"""STR, EVT, CPY: transfers and launches whose sizes, number and streams are drawn."""

from time import monotonic
from typing import Final

import numpy as np

from ggsched.backend.protocols import Stream
from ggsched_testing.conformance.case import case
from ggsched_testing.conformance.context import TestContext
from ggsched_testing.conformance.traffic import MAX_HELD, Traffic

KIB: Final = 1 << 10
MIB: Final = 1 << 20
ROUNDS: Final = 6
LINKS: Final = 40
"""Events by which launches follow each other; values double with each launch."""
MAX_STREAMS: Final = 6


@case("STR-1", "Transfers of drawn sizes, hundreds in flight, take effect in their order.")
def str1_drawn_transfers(w: TestContext) -> None:
    q = w.stream()
    for largest, steps in ((4 * MIB + 13, 24), (MIB + 5, 60), (64 * KIB + 3, 150), (257, 400)):
        traffic = Traffic(w, [q], largest, 6 * largest)
        traffic.large_steps(traffic.lanes[0])
        for _ in range(w.draws(steps, steps // 2)):
            traffic.step(traffic.lanes[0])
        traffic.check(f"transfers of up to {largest} bytes on one stream")


@case("STR-4", "Transfers of drawn sizes on several streams do not disturb each other.",
      "two streams")  # fmt: skip
def str4_drawn_transfers(w: TestContext) -> None:
    for largest in (MIB + 5, 64 * KIB + 3, 4 * KIB):
        streams = _streams(w)
        traffic = Traffic(w, streams, largest, 4 * largest)
        for lane in traffic.lanes:
            traffic.large_steps(lane)
        for _ in range(w.draws(20 * len(streams), 16)):
            traffic.step(traffic.lanes[int(w.rng.integers(len(streams)))])
        traffic.check(f"transfers of up to {largest} bytes on {len(streams)} streams")
        w.close(*streams)


@case("EVT-2", "Buffers that streams hand over by events are used in order, however many.",
      "events", "two streams")  # fmt: skip
def evt2_drawn_exchanges(w: TestContext) -> None:
    for largest, steps in ((MIB + 5, 24), (16 * KIB + 1, 100), (64, 240)):
        streams = _streams(w)
        traffic = Traffic(w, streams, largest, 6 * largest)
        for i in range(w.draws(steps, steps // 2)):
            if i % (MAX_HELD // 6) == 0:
                w.release()
                w.hold(streams[int(w.rng.integers(len(streams)))])
            one, two = (traffic.lanes[k] for k in w.rng.permutation(len(streams))[:2])
            traffic.step(one)
            traffic.exchange(one, two)
        w.release()
        traffic.check(f"{steps} exchanges between {len(streams)} streams")
        w.close(*streams)


@case("EVT-2", "Launches that follow each other by events over drawn streams are in order.",
      "events", "launch", "two streams")  # fmt: skip
def evt2_drawn_launches(w: TestContext) -> None:
    for _ in range(w.draws(6, 3)):
        streams, count = _streams(w), int(w.rng.integers(1, 6000))
        ring = [w.buffer(4 * count) for _ in range(3)]
        numbers = w.numbers(count)
        q, at = streams[0], 0
        w.upload(q, numbers, ring[0])
        w.order(q)
        hold = w.hold(q)
        for i in range(LINKS):
            event = w.record(q)
            q = streams[int(w.rng.integers(len(streams)))]
            w.wait(q, event)
            for _ in range(2):
                after = (at + 1) % len(ring)
                w.launch(q, w.compute(q, [(ring[at], 0)], (ring[after], 0), count))
                numbers, at = w.result(numbers), after
            if i == MAX_HELD // 6:
                hold.release()
        w.equal(w.get(q, ring[at]), numbers, f"{2 * LINKS} launches on {len(streams)} streams")
        w.close(*streams, *ring)


def _streams(w: TestContext) -> list[Stream]:
    most = min(MAX_STREAMS, w.device.facts.max_streams)
    return [w.stream() for _ in range(int(w.rng.integers(2, most + 1)))]


# --- memory between the host and a device -----------------------------------------------------


@case(
    "CPY-4", "Uploads of one class of sizes or two, many in flight on several streams, stay apart."
)
def cpy4_drawn_uploads_in_flight(w: TestContext) -> None:
    """What a backend copies a source to is reused behind the transfer only.

    It may be reused for another stream, and as host memory of the device, which the host writes.
    """
    for largest in (256 * KIB, 64 * KIB, MIB):
        streams = [w.stream() for _ in range(min(3, w.device.facts.max_streams))]
        pool, count = w.bytes(4 * largest), min(64, 8 * MIB // largest)
        buffers = [w.buffer(largest) for _ in range(count)]
        for _ in range(w.draws(ROUNDS, 2)):
            starts = w.rng.integers(2 * largest, size=count)
            sizes = largest - w.rng.integers(largest // 4, size=count)
            sizes[w.rng.random(count) < w.rng.random()] //= 32  # of another class
            data = [pool[a : a + n] for a, n in zip(starts, sizes, strict=True)]
            hold = w.hold(streams[0]) if w.rng.integers(2) else None
            bursts = w.rng.integers(1, 40, size=count)
            order = np.repeat(np.arange(count) % len(streams), bursts)[:count]
            for i, at in enumerate(order):
                w.upload(streams[at], data[i], buffers[i])
                _write_host_memory(w, largest)
                if hold is not None and i == count // 3:
                    hold.release()
            deadline = monotonic() + w.timeout_s
            while not all(q.is_done for q in streams) and monotonic() < deadline:
                _write_host_memory(w, largest)
            for q in streams:
                w.sync(q)
            for x, expected in zip(buffers, data, strict=True):
                seen = w.get(streams[-1], x, 0, expected.size)
                w.equal(seen, expected, f"one of {count} uploads in flight")
            w.program.clear()
        w.close(*streams, *buffers)


def _write_host_memory(w: TestContext, nbytes: int) -> None:
    """Write some bytes of host memory of the device, which is given back at once."""
    view = np.frombuffer(w.device.allocate_host(nbytes), np.uint8)
    view[:: max(1, nbytes // 8)] = 0


@case("CPY-5", "Downloads of one class of sizes, many in flight on several streams, stay apart.")
def cpy5_drawn_downloads_in_flight(w: TestContext) -> None:
    for largest in (MIB, 8 * KIB, 64 * KIB):
        streams = [w.stream() for _ in range(min(3, w.device.facts.max_streams))]
        count = min(40, 16 * MIB // largest)
        sizes = [largest - int(w.rng.integers(largest // 4)) for _ in range(count)]
        data = [w.bytes(n) for n in sizes]
        buffers = [w.buffer(n) for n in sizes]
        for x, content in zip(buffers, data, strict=True):
            w.put(streams[0], x, content)
        burst = int(w.rng.integers(1, 12))
        hold = w.hold(streams[0])
        targets = [w.download(streams[i // burst % len(streams)], x) for i, x in enumerate(buffers)]
        hold.release()
        for q in streams:
            w.sync(q)
        for target, expected in zip(targets, data, strict=True):
            w.equal(target, expected, f"one of {count} downloads in flight")
        w.close(*streams, *buffers)
        w.program.clear()
