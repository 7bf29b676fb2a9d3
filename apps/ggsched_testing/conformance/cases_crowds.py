"""STR-2, STR-6, EVT-1: thousands of commands, hundreds of events, streams of many threads."""

from contextlib import suppress
from functools import partial
from typing import Final

import numpy as np

from ggsched.backend.protocols import Event
from ggsched.errors import SyncTimeout
from ggsched_testing.conformance.call_trace import Bytes
from ggsched_testing.conformance.case import case
from ggsched_testing.conformance.context import TestContext
from ggsched_testing.conformance.crew import Crew

MAX_THREADS: Final = 64
SLOTS: Final = 64
"""Words of a buffer that the commands of a stream write in turn."""


@case("STR-2", "Thousands of commands on drawn streams, with polls between, all take effect.")
def str2_drawn_crowds(w: TestContext) -> None:
    streams = [w.stream() for _ in range(min(3, w.device.facts.max_streams))]
    buffers = [w.buffer(4 * SLOTS) for _ in streams]
    content = [np.zeros(SLOTS, np.uint32) for _ in streams]
    count = w.draws(2500, 300)
    for q, x in zip(streams, buffers, strict=True):
        w.put(q, x, np.zeros(4 * SLOTS, np.uint8))
    picks, slots = w.rng.integers(len(streams), size=count), w.rng.integers(SLOTS, size=count)
    w.log(f"{count} fills of four bytes on {len(streams)} streams")
    for i in range(count):
        k, at = int(picks[i]), int(slots[i])
        q = streams[k]
        w.fill(q, buffers[k], 4 * at, 4, i.to_bytes(4, "little"))
        content[k][at] = i
        if i % 97 == 0 and q.is_done:
            w.sync(q, 0.0)
        del w.program[24:]
    for q, x, words in zip(streams, buffers, content, strict=True):
        w.equal(w.get(q, x), words.view(np.uint8), f"the last of {count} fills of each word")


@case("EVT-1", "Of hundreds of events one that is done covers its prefix, and so do all before it.",
      "events")  # fmt: skip
def evt1_drawn_events(w: TestContext) -> None:
    streams = [w.stream() for _ in range(min(3, w.device.facts.max_streams))]
    x = [w.buffer(4) for _ in streams]
    marks: list[list[tuple[Event, Bytes, int]]] = [[] for _ in streams]
    hold = w.hold(streams[0])
    for i in range(w.draws(300, 60)):
        k = int(w.rng.integers(len(streams)))
        w.fill(streams[k], x[k], 0, 4, i.to_bytes(4, "little"))
        target = w.download(streams[k], x[k])
        last = w.hold(streams[k]) if i > 24 and w.rng.random() < 0.2 else None
        marks[k].append((w.record(streams[k]), target, i))
        if last is not None:
            w.pause()
            is_done = last.is_real and marks[k][-1][0].is_done
            w.require(not is_done, "an event is done, and what is before it is held")
            last.release()
        if i == 24:
            hold.release()
        del w.program[:-24]
    w.release()
    for some in marks:
        for at in w.rng.permutation(len(some)):
            event, target, i = some[int(at)]
            if not event.is_done:
                with suppress(SyncTimeout):
                    w.sync(event, float(w.rng.choice([0.0, 1e-6])))
                continue
            seen = int(target.view(np.uint32)[0])
            w.require(seen == i, f"{w.name(event)} is done, and a download before it is not")
            earlier, _, _ = some[int(w.rng.integers(at + 1))]
            w.require(earlier.is_done, "an event is not done, behind which another one is")
    for q, some in zip(streams, marks, strict=True):
        w.sync(q)
        w.require(all(event.is_done for event, _, _ in some), "an event is not done after sync")


@case("STR-6", "Streams of up to 64 threads, each with commands of its own, at the same time.",
      "two streams")  # fmt: skip
def str6_drawn_threads(w: TestContext) -> None:
    count = min(w.draws(MAX_THREADS, 12), w.device.facts.max_streams)
    plans = [[w.bytes(int(n)) for n in w.rng.integers(1, 5000, 6)] for _ in range(count)]
    w.log(f"{count} threads, each: a stream, uploads, copies, downloads")
    Crew(w, [partial(_through, w, data, count) for data in plans]).join()


def _through(w: TestContext, plan: list[Bytes], count: int) -> None:
    """Move bytes through a stream of its own."""
    device = w.device
    q = device.create_stream()
    for data in plan:
        x, y = device.allocate(data.size), device.allocate(data.size)
        target = np.zeros(data.size, np.uint8)
        q.upload(data.data, x, 0)
        q.copy(x, 0, y, 0, data.size)
        q.download(y, 0, target.data)
        q.sync(4 * w.timeout_s)
        w.equal(target, data, f"through a stream beside those of {count} threads")
        x.close()
        y.close()
    q.close()
