"""BUF-2, CAP-3, ERR-3, CAP-1: memory that is freed in use, and what closing does to others."""

import gc
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from ggsched.backend.capture import offers_capture
from ggsched.backend.protocols import Buffer, Stream
from ggsched.errors import UsageError
from ggsched_testing.conformance.call_trace import Bytes
from ggsched_testing.conformance.case import case
from ggsched_testing.conformance.cases_buffers import is_freed, made_after
from ggsched_testing.conformance.cases_failed_waits import Closing
from ggsched_testing.conformance.context import NBYTES, TestContext
from ggsched_testing.conformance.exact import exact_op

# --- BUF-2 ------------------------------------------------------------------------------------

Use = Callable[[TestContext, Stream, Buffer, Buffer], Bytes | None]
"""Enqueues a command that uses the first buffer; the second is at its disposal. Returns the host
target of a command that shows to the host what it read."""


def _by_upload(w: TestContext, q: Stream, x: Buffer, y: Buffer) -> None:
    w.upload(q, w.bytes(), x)


def _by_download(w: TestContext, q: Stream, x: Buffer, y: Buffer) -> Bytes:
    return w.download(q, x)


def _from(w: TestContext, q: Stream, x: Buffer, y: Buffer) -> None:
    w.copy(q, x, 0, y, 0, NBYTES)


def _to(w: TestContext, q: Stream, x: Buffer, y: Buffer) -> None:
    w.copy(q, y, 0, x, 0, NBYTES)


def _by_fill(w: TestContext, q: Stream, x: Buffer, y: Buffer) -> None:
    w.fill(q, x, 0, NBYTES, b"\x11")


def _as_input(w: TestContext, q: Stream, x: Buffer, y: Buffer) -> None:
    w.launch(q, w.compute(q, [(x, 0)], (y, 0)))


def _as_output(w: TestContext, q: Stream, x: Buffer, y: Buffer) -> None:
    w.launch(q, w.compute(q, [(y, 0)], (x, 0)))


USES: Final[Mapping[str, Use]] = {
    "upload": _by_upload,
    "download": _by_download,
    "copy from": _from,
    "copy to": _to,
    "fill": _by_fill,
    "read by a launch": _as_input,
    "written by a launch": _as_output,
}


@case("BUF-2", "Memory freed in use is not handed out, whatever uses it, last or not.", "latch",
      "two streams")  # fmt: skip
def buf2_freed_in_any_use(w: TestContext) -> None:
    names = [n for n in USES if "launch" not in n or exact_op(w.device.facts)]
    for name in names:
        idle = names[int(w.rng.integers(len(names)))]
        for before, after in ((), ()), ((idle,), ()), ((), (idle,)):
            _use_and_free(w, name, before, after)
            w.program.clear()


def _use_and_free(
    w: TestContext, name: str, before: tuple[str, ...], after: tuple[str, ...]
) -> None:
    """Use memory on a held stream, and before or after that on one that is idle; free it."""
    q, free = w.stream(), w.stream()
    x, y, z = w.buffers(3)
    for buffer in (x, y, z):
        w.put(free, buffer, w.numbers())
    w.log(f"the use: {name}; on an idle stream before {before}, after {after}")
    for other in before:
        USES[other](w, free, x, z)
    w.sync(free)
    hold = w.hold(q)
    shown = USES[name](w, q, x, y)
    for other in after:
        USES[other](w, free, x, z)
    w.sync(free)
    if is_freed(w, x):
        secrets = made_after(w, free, 4)
        hold.release()
        w.until(lambda: q.is_done, f"{w.name(q)} is not done")
        seen = shown if shown is not None else w.get(free, y)
        leaks = {"download", "copy from"} & {name}
        leaked = bool(leaks) and any(np.array_equal(seen, s) for s in secrets.values())
        w.require(not leaked, "the command has read a buffer that was made after the close")
        if name == "read by a launch":
            results = [w.result(s.view(np.float32)).view(np.uint8) for s in secrets.values()]
            leaked = any(np.array_equal(seen, r) for r in results)
            w.require(not leaked, "the launch has read a buffer that was made after the close")
        for buffer, data in secrets.items():
            w.equal(w.get(free, buffer), data, "a buffer made after the close")
    hold.release()
    w.close(q, free)


@case("BUF-2", "Nor when the stream that uses it is closed.", "foreign wait", "latch", "async",
      "two streams")  # fmt: skip
def buf2_freed_behind_a_closed_stream(w: TestContext) -> None:
    q, free, x = w.stream(), w.stream(), w.buffer()
    w.put(free, x, w.bytes())
    hold = w.hold(q)
    w.upload(q, w.bytes(), x)
    behind = w.record(q) if w.device.facts.has_events else None
    closing = Closing(w, q)
    closing.has_ended()
    made: dict[Buffer, Bytes] = {}
    if is_freed(w, x):
        made = made_after(w, free, 4)
    hold.release()
    closing.finish()
    if behind is not None:
        w.sync(behind)
    for buffer, data in made.items():
        w.equal(w.get(free, buffer), data, "a buffer made after the close")


# --- CAP-3 ------------------------------------------------------------------------------------


@case("CAP-3", "A graph keeps its host memory alive.", "capture")
def cap3_host_memory_is_kept(w: TestContext) -> None:
    q, x, expected = w.stream(), w.buffer(), w.bytes()
    source = expected.copy()
    capture = w.capture(q)
    w.upload(q, source, x)
    graph = w.end(capture)
    w.log(f"nobody refers to {w.name(source)} any more")
    w.forget(source)
    del source
    gc.collect()
    litter = [w.bytes() for _ in range(32)]
    for _ in range(2):
        w.put(q, x, litter[0])
        w.replay(q, graph)
        w.equal(w.get(q, x), expected, "replayed from memory that only the graph refers to")


# --- CAP-1 ------------------------------------------------------------------------------------


@case("CAP-1", "Hundreds of commands are captured, and replayed again and again.", "capture")
def cap1_long_graphs(w: TestContext) -> None:
    q, count = w.stream(), 200
    x, y = w.buffer(4 * count), w.buffer(4 * count)
    data = w.bytes(4 * count)
    order = w.rng.permutation(count)
    capture = w.capture(q)
    lines = len(w.program)
    for i in map(int, order):
        w.copy(q, x, 4 * i, y, 4 * i, 4)
    w.program[lines:] = [f"{count} copies of four bytes, in random order"]
    graph = w.end(capture)
    for _ in range(3):
        data = w.bytes(4 * count)
        w.put(q, x, data)
        w.replay(q, graph)
        w.equal(w.get(q, y), data, f"replayed {count} copies")


@case("CAP-1", "Each of many replays runs.", "capture")
def cap1_many_replays(w: TestContext) -> None:
    q, x, y = w.stream(), w.buffer(), w.buffer()
    graph = w.captured(q, lambda: w.copy(q, x, 0, y, 0, NBYTES))
    lines = len(w.program)
    for i in range(40):
        data = w.bytes()
        w.upload(q, data, x)
        w.replay(q, graph)
        w.equal(w.get(q, y), data, f"after replay {i + 1}")
        del w.program[lines:]
    w.close(graph)


# --- ERR-3 ------------------------------------------------------------------------------------


@case("ERR-3", "Closing a stream releases nothing that waits for its events.", "events", "latch",
      "three streams")  # fmt: skip
def err3_closed_while_others_wait(w: TestContext) -> None:
    a, b, c = w.stream(), w.stream(), w.stream()
    x, y, z = w.buffers(3)
    data = w.bytes()
    w.put(b, x, w.bytes())
    hold = w.hold(a)
    for _ in range(200):
        w.upload(a, data[:4], x)
    del w.program[-199:]
    w.upload(a, data, x)
    event = w.record(a)
    w.wait(b, event)
    w.copy(b, x, 0, y, 0, NBYTES)
    closing = Closing(w, a)
    closing.has_ended()
    w.still_held(hold, b, event)
    w.wait(c, event)
    w.copy(c, x, 0, z, 0, NBYTES)
    w.release_held(hold, c)
    closing.finish()
    for q, buffer in ((b, y), (c, z)):
        w.sync(q)
        w.equal(w.get(q, buffer), data, "copied behind an event of a stream that was closed")


@case("ERR-3", "Closed streams make room for others, and leave no thread and no program behind.")
def err3_streams_come_back(w: TestContext) -> None:
    keeper = w.stream() if w.device.facts.max_streams > 1 else None
    x, y, numbers = w.buffer(), w.buffer(), w.numbers()
    program = None
    first = w.stream()
    w.put(first, x, numbers)
    if keeper is not None and exact_op(w.device.facts):
        program = w.compute(keeper, [(x, 0)], (y, 0))
    w.close(first)
    threads = set(threading.enumerate())
    lines = len(w.program)
    for _ in range(min(2 * w.device.facts.max_streams, 80)):
        q = w.stream()
        w.upload(q, numbers, x)
        w.sync(q)
        w.close(q)
        del w.program[lines:]
    w.log("many streams, each used and closed")
    w.until(
        lambda: not _ours(threads),
        "threads of closed streams are left",
    )
    if keeper is not None and program is not None:
        w.launch(keeper, program)
        w.equal(w.get(keeper, y), w.result(numbers), "launched after other streams were closed")


def _ours(before: set[threading.Thread]) -> list[threading.Thread]:
    """Return threads that have begun since; those of other cases go by another name."""
    new = set(threading.enumerate()) - before
    return [t for t in new if not t.name.startswith("conformance")]


@case("ERR-3", "A closed graph is refused.", "capture")
def err3_closed_graph(w: TestContext) -> None:
    q, x, data = w.stream(), w.buffer(), w.bytes()
    graph = w.captured(q, lambda: w.upload(q, data, x))
    w.close(graph, graph)
    w.refused(UsageError, w.replay, q, graph)


@case("ERR-3", "What a closed device made is closed: views, captures, launches.")
def err3_closed_device_is_thorough(w: TestContext) -> None:
    device: Any = w.device
    q, x = w.stream(), w.buffer()
    w.put(q, x, w.bytes())
    host, captures = device.facts.is_host, offers_capture(device)
    program = w.compile([], q)
    w.close(device)
    if host:
        w.refused(UsageError, x.host_view)
    w.refused(UsageError, w.launch, q, program)
    w.refused(UsageError, w.copy, q, x, 0, x, 8, 8)
    if captures:
        w.refused(UsageError, device.begin_capture, [q])


@case("ERR-3", "A closed buffer shows nothing, also where it was looked at before.", "host memory")
def err3_closed_view(w: TestContext) -> None:
    x = w.buffer()
    x.host_view()
    w.close(x)
    w.refused(UsageError, x.host_view)
