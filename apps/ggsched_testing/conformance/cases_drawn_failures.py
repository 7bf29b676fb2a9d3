"""EVT-6, COL-4: failures at drawn places, learned of in drawn ways, over streams and devices."""

from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from ggsched.backend.protocols import Event, Stream
from ggsched.errors import DeviceFault
from ggsched_testing.conformance.case import case
from ggsched_testing.conformance.context import NBYTES, TestContext
from ggsched_testing.conformance.faults import (
    LABEL,
    compiled_lookup,
    fails_by_name,
    make_fail,
    recorded,
)

MAX_STREAMS = 5


def _work(w: TestContext, q: Stream, count: int) -> None:
    """Enqueue commands on buffers that nothing else uses; a stream that has failed refuses them."""
    x, y = w.buffer(NBYTES, q.device), w.buffer(NBYTES, q.device)
    with suppress(DeviceFault):
        for i in range(count):
            if i % 2:
                w.copy(q, x, 0, y, 0, NBYTES)
            else:
                w.upload(q, w.bytes(), x)
    del w.program[:-24]


def _learn(w: TestContext, thing: Stream | Event) -> DeviceFault:
    """Learn of a failure as a caller may: by polls, or at once."""
    if w.rng.integers(2):
        w.until(lambda: thing.is_done, f"{w.name(thing)} is not done, behind a failure")
    return w.refused(DeviceFault, w.sync, thing)


def _chain(w: TestContext, streams: Sequence[Stream]) -> None:
    """Let the first stream fail and others wait for it one after another; look at all of them."""
    first, kept = streams[0], w.buffer(NBYTES, streams[0].device)
    data = w.bytes()
    w.upload(first, data, kept)
    _work(w, first, int(w.rng.integers(0, 100)))
    good = w.record(first)
    label = make_fail(w, first)
    _work(w, first, int(w.rng.integers(0, 30)))
    events: list[Event] = []
    for q, after in zip(streams, [*streams[1:], None], strict=True):
        events.append(recorded(w, q))
        if after is not None:
            _work(w, after, int(w.rng.integers(0, 4)))
            with suppress(DeviceFault):
                w.wait(after, events[-1])
            _work(w, after, int(w.rng.integers(0, 8)))
    things: list[Stream | Event] = [*streams, *events]
    for i in w.rng.permutation(len(things)):
        text = _learn(w, things[int(i)]).one_line()
        is_named = things[int(i)] is not first or label in text
        w.require(is_named, f"the fault does not name {label!r}: {text}")
    w.sync(good)
    fresh = w.stream(first.device)
    w.wait(fresh, good)
    w.equal(w.get(fresh, kept), data, "written in front of a failure, behind an event")
    w.close(*streams, fresh)


@case("EVT-6", "A failure behind drawn commands reaches each stream of a drawn chain.", "fault",
      "events", "two streams")  # fmt: skip
def evt6_drawn_chains(w: TestContext) -> None:
    for _ in range(w.draws(8, 3)):
        most = min(MAX_STREAMS, w.device.facts.max_streams - 1)
        _chain(w, [w.stream() for _ in range(int(w.rng.integers(1, most + 1)))])


@case("EVT-6", "A failure goes from device to device with events.", "fault", "peer wait",
      "two streams")  # fmt: skip
def evt6_drawn_devices(w: TestContext) -> None:
    if w.other.wait_path(w.device.facts) == "host":
        return
    for _ in range(w.draws(6, 2)):
        room = {d.facts.name: d.facts.max_streams - 2 for d in w.devices}
        streams = [w.stream()]
        for i in w.rng.integers(0, 2, 3):
            device = w.devices[int(i)]
            if room[device.facts.name] > 0:
                room[device.facts.name] -= 1
                streams.append(w.stream(device))
        _chain(w, streams)


@case("COL-4", "A peer's command that fails in a graph fails the replay, and names its node.",
      "peer reads", "capture", "events", "op get_rows")  # fmt: skip
def col4_failing_peer(w: TestContext) -> None:
    if any("get_rows:f32" not in d.facts.ops for d in w.devices):
        return
    for fails in (0, 1):
        a, b = w.stream(), w.stream(w.other)
        rows = w.numbers(16)
        ids, outs, programs = zip(*(compiled_lookup(w, q, rows, 1) for q in (a, b)), strict=True)
        capture = w.capture(a, b)
        w.wait(b, w.record(a))
        for q, program in zip((a, b), programs, strict=True):
            w.launch(q, program)
        w.wait(a, w.record(b))
        graph = w.end(capture)
        w.replay(a, graph)
        w.sync(a)
        for q, out in zip((a, b), outs, strict=True):
            w.equal(w.get(q, out), rows[4:8], "looked up by a device of a graph")
        w.put((a, b)[fails], ids[fails], np.array([1000], np.int32).view(np.uint8))
        with suppress(DeviceFault):
            w.replay(a, graph)
        fails_by_name(w, LABEL, w.sync, a)
        fresh = w.stream(w.other)
        w.works(fresh, "on the peer after a replay failed")
        w.close(graph, a, b, fresh)
