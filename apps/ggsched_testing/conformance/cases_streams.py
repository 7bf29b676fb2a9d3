"""STR: streams."""

from collections.abc import Callable

import numpy as np

from ggsched.backend.protocols import Stream
from ggsched.errors import SyncTimeout
from ggsched_testing.conformance.case import case
from ggsched_testing.conformance.context import NBYTES, TestContext
from ggsched_testing.conformance.crew import Crew

# --- STR-1 ------------------------------------------------------------------------------------


@case("STR-1", "Uploads, copies and downloads of a stream take effect in their order.")
def str1_copies_in_order(w: TestContext) -> None:
    q, (x, y, z) = w.stream(), w.buffers(3)
    first, second = w.bytes(), w.bytes()
    hold = w.hold(q)
    w.upload(q, first, x)
    w.copy(q, x, 0, y, 0, NBYTES)
    seen = w.download(q, x)
    w.upload(q, second, x)
    w.copy(q, x, 0, z, 0, NBYTES)
    hold.release()
    w.sync(q)
    w.equal(seen, first, "downloaded between two uploads")
    w.equal(w.get(q, y), first, "copied between two uploads")
    w.equal(w.get(q, z), second, "copied after both")


@case("STR-1", "A command begins when the one before is complete, however long that takes.")
def str1_long_before_short(w: TestContext) -> None:
    q = w.stream()
    n = 1 << 20
    x, y = w.buffer(n), w.buffer(n)
    for _ in range(4):
        data = w.bytes(n)
        w.upload(q, data, x)
        w.copy(q, x, 0, y, 0, n)
        last = w.download(q, y, n - 8, 8)
        w.upload(q, w.bytes(8), y, n - 8)
        w.sync(q)
        w.equal(last, data[-8:], "end of a long copy")


@case("STR-1", "Launches of a stream run in their order.", "launch")
def str1_launches_in_order(w: TestContext) -> None:
    q, (x, y, z) = w.stream(), w.buffers(3)
    numbers = w.numbers()
    w.put(q, x, numbers)
    first, second = w.compute(q, [(x, 0)], (y, 0)), w.compute(q, [(y, 0)], (z, 0))
    again = w.compute(q, [(z, 0)], (y, 0))
    hold = w.hold(q)
    for program in (first, second, again):
        w.launch(q, program)
    hold.release()
    w.sync(q)
    once = w.result(numbers)
    w.equal(w.get(q, z), w.result(once), "result of the second launch")
    w.equal(w.get(q, y), w.result(w.result(once)), "result of the third launch")


@case("STR-1", "Copies and launches are in order by what copy_order declares.", "launch")
def str1_copies_and_launches(w: TestContext) -> None:
    q, (x, y, z) = w.stream(), w.buffers(3)
    program = w.compute(q, [(x, 0)], (y, 0))
    for _ in range(3):
        numbers = w.numbers()
        w.upload(q, numbers, x)
        w.order(q)
        w.launch(q, program)
        w.order(q)
        w.copy(q, y, 0, z, 0, NBYTES)
        seen = w.download(q, z)
        w.sync(q)
        w.equal(seen, w.result(numbers), "upload, launch, copy, download")


@case("STR-1", "A copy after a launch does not overwrite what the launch reads.", "launch")
def str1_copy_after_reading_launch(w: TestContext) -> None:
    q = w.stream()
    x, y, numbers, program = w.computation(q)
    w.launch(q, program)
    w.order(q)
    w.upload(q, w.numbers(), x)
    w.equal(w.get(q, y), w.result(numbers), "result of a launch whose input was then overwritten")


# --- STR-2 ------------------------------------------------------------------------------------


@case("STR-2", "A stream that is held takes commands without blocking.", "async", "hold")
def str2_held_stream_takes_commands(w: TestContext) -> None:
    q, (x, y) = w.stream(), w.buffers(2)
    data = w.bytes()
    hold = w.hold(q)
    for _ in range(16):
        w.upload(q, data, x)
        w.copy(q, x, 0, y, 0, NBYTES)
    seen = w.download(q, y)
    hold.release()
    w.sync(q)
    w.equal(seen, data, "enqueued while the stream was held")


@case("STR-2", "A held stream takes launches without blocking.", "async", "hold", "launch")
def str2_held_stream_takes_launches(w: TestContext) -> None:
    q = w.stream()
    _, y, numbers, program = w.computation(q)
    hold = w.hold(q)
    for _ in range(16):
        w.launch(q, program)
    hold.release()
    w.equal(w.get(q, y), w.result(numbers), "launched while the stream was held")


@case("STR-2", "wait does not block the host.", "async", "hold", "events", "two streams")
def str2_wait_does_not_block(w: TestContext) -> None:
    a, b = w.stream(), w.stream()
    x, data, hold = w.uploading(a)
    w.wait(b, w.record(a))
    seen = w.download(b, x)
    hold.release()
    w.sync(b)
    w.equal(seen, data, "downloaded behind a wait")


@case("STR-2", "Any number of commands can be enqueued before anybody waits.")
def str2_many_commands(w: TestContext) -> None:
    q, (x, y) = w.stream(), w.buffers(2)
    w.put(q, x, w.bytes())
    data = w.bytes(16)
    for i in range(1000):
        if i % 2:
            w.upload(q, data, x, i % 16 * 16)
        else:
            w.copy(q, x, 0, y, 0, 64)
        w.program[8:] = ["... a thousand uploads and copies"]
    w.upload(q, data, y)
    w.equal(w.get(q, y, 0, 16), data, "after a thousand commands")


# --- STR-3 ------------------------------------------------------------------------------------


@case("STR-3", "Copies run without another call; asking is_done is enough to see the end.")
def str3_copies_run_by_themselves(w: TestContext) -> None:
    q, (x, y) = w.stream(), w.buffers(2)
    data = w.bytes()
    w.upload(q, data, x)
    w.copy(q, x, 0, y, 0, NBYTES)
    seen = w.download(q, y)
    w.until(lambda: q.is_done, f"{w.name(q)} is not done")
    w.equal(seen, data, "downloaded when is_done was true")


@case("STR-3", "Launches run without another call.", "launch")
def str3_launches_run_by_themselves(w: TestContext) -> None:
    q, (x, y) = w.stream(), w.buffers(2)
    numbers = w.numbers()
    w.put(q, x, numbers)
    w.launch(q, w.compute(q, [(x, 0)], (y, 0)))
    w.until(lambda: q.is_done, f"{w.name(q)} is not done")
    w.equal(w.get(q, y), w.result(numbers), "launched and polled for")


@case("STR-3", "An event becomes done without another call.", "events", "two streams")
def str3_events_come_by_themselves(w: TestContext) -> None:
    a, b = w.stream(), w.stream()
    x = w.buffer()
    data = w.bytes()
    w.upload(a, data, x)
    w.wait(b, w.record(a))
    seen = w.download(b, x)
    end = w.record(b)
    w.until(lambda: end.is_done, f"{w.name(end)} is not done")
    w.equal(seen, data, "downloaded when the event was done")


# --- STR-4 ------------------------------------------------------------------------------------


@case("STR-4", "A stream that is held holds up no other with its copies.", "latch", "two streams")
def str4_held_stream_holds_no_other(w: TestContext) -> None:
    held, free = w.stream(), w.stream()
    x, y, z = w.buffers(3)
    data = w.bytes()
    w.put(held, x, w.bytes())
    hold = w.hold(held)
    late = w.bytes()
    w.upload(held, late, x)
    w.upload(free, data, y)
    w.copy(free, y, 0, z, 0, NBYTES)
    w.equal(w.get(free, z), data, "copied on the free stream")
    w.release_held(hold, held)
    w.equal(w.get(held, x), late, "uploaded on the stream that was held")


@case("STR-4", "Nor with its launches.", "latch", "two streams", "launch")
def str4_held_launch_holds_no_other(w: TestContext) -> None:
    held, free = w.stream(), w.stream()
    x, y, z = w.buffers(3)
    numbers = w.numbers()
    w.put(free, x, numbers)
    slow, quick = w.compute(held, [(x, 0)], (y, 0)), w.compute(free, [(x, 0)], (z, 0))
    hold = w.hold(held)
    w.launch(held, slow)
    w.launch(free, quick)
    w.equal(w.get(free, z), w.result(numbers), "launched on the free stream")
    w.release_held(hold, held)
    w.equal(w.get(held, y), w.result(numbers), "launched on the stream that was held")


@case("STR-4", "sync of one stream does not wait for another.", "latch", "two streams")
def str4_sync_waits_for_its_own(w: TestContext) -> None:
    held, free = w.stream(), w.stream()
    x = w.buffer()
    hold = w.hold(held)
    w.upload(held, w.bytes(), x)
    w.sync(free)
    w.require(free.is_done, "a stream without commands is not done")
    hold.release()
    w.sync(held)


# --- STR-5 ------------------------------------------------------------------------------------


@case("STR-5", "After sync everything is complete, visible to the host, and is_done is true.")
def str5_sync_completes(w: TestContext) -> None:
    q, (x, y) = w.stream(), w.buffers(2)
    for n in (1, 64, NBYTES):
        data = w.bytes(n)
        w.upload(q, data, x)
        w.copy(q, x, 0, y, 0, n)
        seen = w.download(q, y, 0, n)
        w.sync(q)
        w.require(q.is_done, "is_done is false after sync")
        w.equal(seen, data, "downloaded before sync")


@case("STR-5", "sync on a stream that nothing was enqueued on returns, also with no time.")
def str5_sync_of_nothing(w: TestContext) -> None:
    q = w.stream()
    w.sync(q, 0.0)
    w.put(q, w.buffer(), w.bytes())
    w.sync(q, 0.0)
    w.sync(q)


@case("STR-5", "A timeout raises SyncTimeout and leaves the stream usable.", "latch")
def str5_timeout_leaves_the_stream_usable(w: TestContext) -> None:
    q, more = w.stream(), w.bytes(16)
    x, data, hold = w.uploading(q)
    seen = w.download(q, x)
    for limit in (0.0, 0.002):
        w.refused(SyncTimeout, w.sync, q, limit)
    w.still_held(hold, q)
    w.upload(q, more, x)
    hold.release()
    w.sync(q)
    w.equal(seen, data, "downloaded across a timeout")
    w.equal(w.get(q, x, 0, 16), more, "uploaded after a timeout")


@case("STR-5", "After sync the effects are visible to whatever is enqueued later.", "two streams")
def str5_visible_to_other_streams(w: TestContext) -> None:
    a, b = w.stream(), w.stream()
    x, y = w.buffers(2)
    for _ in range(8):
        data = w.bytes()
        w.upload(a, data, x)
        w.sync(a)
        w.copy(b, x, 0, y, 0, NBYTES)
        w.equal(w.get(b, y), data, "copied on another stream after sync")


@case("STR-5", "sync waits for launches.", "launch")
def str5_sync_waits_for_launches(w: TestContext) -> None:
    q = w.stream()
    count = 1 << 16
    x, y = w.buffer(4 * count), w.buffer(4 * count)
    numbers = w.numbers(count)
    w.put(q, x, numbers)
    w.launch(q, w.compute(q, [(x, 0)], (y, 0), count))
    w.sync(q)
    w.require(q.is_done, "is_done is false after sync")
    w.equal(w.get(q, y), w.result(numbers), "launched before sync")


# --- STR-6 ------------------------------------------------------------------------------------


@case("STR-6", "is_done of a stream does not block and is false while it is held.", "hold")
def str6_is_done_does_not_block(w: TestContext) -> None:
    q = w.stream()
    w.require(q.is_done, "a stream without commands is not done")
    hold = w.hold(q)
    w.upload(q, w.bytes(), w.buffer())
    w.sync_held(hold, q)
    w.require(q.is_done, "is_done is false after sync")


@case("STR-6", "is_done of an event does not block either.", "hold", "events")
def str6_event_is_done_does_not_block(w: TestContext) -> None:
    q = w.stream()
    hold = w.hold(q)
    w.upload(q, w.bytes(), w.buffer())
    event = w.record(q)
    w.sync_held(hold, event)
    w.require(event.is_done, "is_done is false after sync")


@case("STR-6", "Different streams may be used by different threads.", "two streams")
def str6_streams_of_two_threads(w: TestContext) -> None:
    results: list[np.ndarray] = []
    jobs = [_job(w, w.stream(), results) for _ in range(2)]
    w.log("two threads: upload, copy, download and sync, 20 times, on a stream each")
    Crew(w, jobs).join()
    for seen, expected in zip(results[::2], results[1::2], strict=True):
        w.equal(seen, expected, "downloaded by one of two threads")


def _job(w: TestContext, q: Stream, results: list[np.ndarray]) -> Callable[[], None]:
    """Return what one thread does. It writes nothing down: the list is not made for threads."""
    x, y = w.buffers(2)
    rounds = [w.bytes() for _ in range(20)]

    def job() -> None:
        for data in rounds:
            seen = np.zeros_like(data)
            q.upload(data.data, x, 0)
            q.copy(x, 0, y, 0, NBYTES)
            q.download(y, 0, seen.data)
            q.sync(w.timeout_s)
            results.extend((seen, data))

    return job
