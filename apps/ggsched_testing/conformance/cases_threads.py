"""STR-6: a device that many threads use at a time."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from ggsched_testing.conformance.case import case
from ggsched_testing.conformance.context import TestContext
from ggsched_testing.conformance.crew import Crew
from ggsched_testing.conformance.exact import exact_op
from ggsched_testing.conformance.long_work import exact_node

THREADS = 4
ROUNDS = 6


@case("STR-6", "Many threads make streams, buffers, events and programs at a time.", "two streams")
def str6_device_of_many_threads(w: TestContext) -> None:
    count = min(THREADS, w.device.facts.max_streams)
    numbers = [[w.numbers(8) for _ in range(ROUNDS)] for _ in range(count)]
    w.log(f"{count} threads, each: a stream, buffers, an event, a program, a launch, a download")
    Crew(w, [partial(_rounds, w, mine) for mine in numbers]).join()


def _rounds(w: TestContext, numbers: Sequence[Any]) -> None:
    for data in numbers:
        _round(w, data)


def _round(w: TestContext, data: Any) -> None:
    """Use a stream, without notes: those are for one thread."""
    device = w.device
    q = device.create_stream()
    event = device.create_event() if device.facts.has_events else None
    extra = [device.allocate(16 * (i + 1)) for i in range(4)]
    x, y = device.allocate(32), device.allocate(32)
    q.upload(data.view("u1").data, x, 0)
    expected = data
    if exact_op(device.facts):
        _in_order(q, w.timeout_s)
        program = device.compile([exact_node(w, 0, (x, 0), (y, 0), 8)], q)
        q.launch(program)
        _in_order(q, w.timeout_s)
        expected = w.result(data)
    else:
        q.copy(x, 0, y, 0, 32)
    host = device.allocate_host(64)
    host[:] = data.tobytes() * 2
    target = bytearray(32)
    q.download(y, 0, memoryview(target))
    if event is not None:
        q.record(event)
        event.sync(w.timeout_s)
    q.sync(w.timeout_s)
    w.require(bytes(target) == expected.tobytes(), "a thread sees bytes of another one")
    w.require(bytes(host) == data.tobytes() * 2, "a thread sees host memory of another one")
    for buffer in (*extra, x, y):
        buffer.close()
    q.close()


def _in_order(q: Any, timeout_s: float) -> None:
    match q.device.facts.copy_order:
        case "barrier":
            q.barrier()
        case "host":
            q.sync(timeout_s)
