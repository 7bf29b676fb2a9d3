"""Work that takes a while: deep queues, and launches during which others can look.

A launch that takes milliseconds shows a completion that is reported too early to whoever looks
from another stream, and needs no latch.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final

import numpy as np

from ggsched.backend.program import BoundNode
from ggsched.backend.protocols import Buffer, Program, Stream
from ggsched_testing.conformance.call_trace import Bytes
from ggsched_testing.conformance.context import Floats, TestContext, vector

ELEMENTS: Final = 1 << 15
LONG_S: Final = 1e-2
MAX_NODES: Final = 2048
_MARGIN: Final = 1.25
_STALLED_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class LongLaunch:
    """A program whose last node alone writes its result.

    Attributes:
        expected: What it holds after a launch.
    """

    program: Program
    result: Buffer
    expected: Floats


def long_launch(w: TestContext, q: Stream) -> LongLaunch:
    """Compile a program that takes milliseconds to run, as measured; its result is cleared."""
    x, between, result = (w.buffer(4 * ELEMENTS, q.device) for _ in range(3))
    numbers = w.numbers(ELEMENTS)
    w.put(q, x, numbers)
    nodes = 1
    while True:
        works = [exact_node(w, i, (x, 0), (between, 0), ELEMENTS) for i in range(nodes)]
        last = exact_node(w, nodes, (x, 0), (result, 0), ELEMENTS)
        program = w.compile([*works, last], q)
        w.program[-1] = f"p = compile({nodes} nodes of {ELEMENTS} elements and a last one)"
        seconds = min(_seconds(w, q, program) for _ in range(2))
        if seconds >= LONG_S or nodes >= MAX_NODES:
            break
        w.close(program)
        needed = int(_MARGIN * nodes * LONG_S / seconds)
        nodes = min(max(2 * nodes, needed), 8 * nodes, MAX_NODES)
    w.order(q)
    w.put(q, result, np.zeros(ELEMENTS, np.float32))
    w.order(q)
    return LongLaunch(program, result, w.result(numbers))


def _seconds(w: TestContext, q: Stream, program: Program) -> float:
    start = perf_counter()
    w.launch(q, program)
    w.sync(q)
    return perf_counter() - start


def exact_node(
    w: TestContext, number: int, source: tuple[Buffer, int], out: tuple[Buffer, int], count: int
) -> BoundNode:
    """Return a node of the exact op over one vector."""
    return w.node(number, [vector(*source, count)], vector(*out, count))


class Enqueuing:
    """Enqueues many commands on a stream that is held as long as that blocks nobody.

    A queue may be full (STR-2): if enqueueing does not get on, the latch is released.
    """

    def __init__(self, w: TestContext, q: Stream) -> None:
        self._w = w
        self._hold = w.hold(q)
        self._count = 0
        self._is_over = threading.Event()
        self.is_held = self._hold.is_real
        self._watch = threading.Thread(
            target=self._look, name="ggsched kit watches a queue", daemon=True
        )
        if self.is_held:
            self._watch.start()

    def _look(self) -> None:
        seen = -1
        while seen != self._count:
            seen = self._count
            if self._is_over.wait(_STALLED_S):
                return
        self.is_held = False
        self._hold.release()

    def each(self, count: int, what: str, enqueue: Callable[[int], Any]) -> None:
        """Call ``enqueue`` with each number below ``count``; the calls are noted as one line."""
        lines = len(self._w.program)
        self._w.log(f"{count} times: {what}")
        for i in range(count):
            enqueue(i)
            self._count += 1
            del self._w.program[lines + 1 :]

    def is_still_held(self) -> bool:
        """Whether everything was taken while the stream was held; nothing is released from now."""
        self._is_over.set()
        if self._watch.is_alive():
            self._watch.join()
        return self.is_held

    def release(self) -> None:
        """Let the stream go on."""
        self.is_still_held()
        self._hold.release()


def seen_by(w: TestContext, q: Stream, buffer: Buffer) -> Bytes:
    """Return what another stream sees of a buffer now."""
    target = w.download(q, buffer)
    w.sync(q)
    return target
