"""Transfers of drawn sizes on several streams, and what every byte is afterwards.

Each stream has buffers of its own, so nothing races. ``exchange`` hands the buffers of two streams
over to each other, each behind an event of the other.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from ggsched.backend.protocols import Buffer, Stream
from ggsched_testing.conformance.call_trace import Bytes
from ggsched_testing.conformance.context import TestContext

MAX_HELD: Final = 36
"""Commands after which a stream that is held is released: its queue may be full (STR-2)."""

MAX_OWN: Final = 2
"""Buffers of a stream."""

KINDS: Final = 4
"""Uploads, copies, fills, and downloads, which come last."""

DOWNLOAD: Final = KINDS - 1

EDGE: Final = 8
"""Bytes on both sides of each end of a transfer that are downloaded behind it."""


@dataclass(slots=True)
class ModelBuffer:
    """A buffer with the bytes that it has when all commands so far are complete."""

    buffer: Buffer
    content: Bytes


@dataclass(slots=True)
class Lane:
    """A stream with the buffers that only its commands use."""

    stream: Stream
    own: list[ModelBuffer]


class Traffic:
    """Enqueues drawn transfers, and knows their effect.

    Args:
        w: The world.
        streams: Streams of one device.
        nbytes: Length of each buffer.
        budget: Bytes that all commands together may move.
    """

    def __init__(self, w: TestContext, streams: list[Stream], nbytes: int, budget: int) -> None:
        self.w = w
        self.nbytes = nbytes
        self.left = budget
        self.pool = w.bytes(2 * nbytes)
        self.lanes = [Lane(q, [self._fresh(q) for _ in range(MAX_OWN)]) for q in streams]
        self.seen: list[tuple[Bytes, Bytes]] = []
        """Targets of downloads, with the bytes that they should have."""
        self.captured: list[Callable[[], None]] | None = None
        """Effects of commands that are captured, in an order that the device has to keep."""
        for lane in self.lanes:
            w.sync(lane.stream)

    def _fresh(self, q: Stream) -> ModelBuffer:
        made = ModelBuffer(self.w.buffer(self.nbytes, q.device), self.pool[: self.nbytes].copy())
        self.w.upload(q, made.content.copy(), made.buffer)
        return made

    # --- commands ---------------------------------------------------------------------------

    def large_steps(self, lane: Lane) -> None:
        """Enqueue one transfer of each kind, of half a buffer or more."""
        for kind in self.w.rng.permutation(KINDS):
            n = int(self.w.rng.integers(self.nbytes // 2, self.nbytes + 1))
            at, to = (int(self.w.rng.integers(self.nbytes - n + 1)) for _ in range(2))
            self._enqueue(lane, int(kind), n, at, to)

    def step(self, lane: Lane, *, downloads: bool = True) -> None:
        """Enqueue one transfer on a stream."""
        self._enqueue(lane, int(self.w.rng.integers(KINDS - (not downloads))), *self._region())

    def _enqueue(self, lane: Lane, kind: int, n: int, at: int, to: int) -> None:
        w, q = self.w, lane.stream
        a, b = (lane.own[i] for i in w.rng.permutation(len(lane.own))[:2])
        written, start = a, at
        match kind:
            case 0:
                first = int(w.rng.integers(self.nbytes))
                data = self.pool[first : first + n]
                w.upload(q, data, a.buffer, at)
                self._take_effect(lambda: _write(a.content, at, data))
            case 1:
                w.copy(q, a.buffer, at, b.buffer, to, n)
                self._take_effect(lambda: _write(b.content, to, a.content[at : at + n]))
                written, start = b, to
            case 2:
                unit = int(w.rng.choice([1, 2, 4]))
                pattern = w.bytes(unit).tobytes()
                start, n = at // unit * unit, n // unit * unit
                w.fill(q, a.buffer, start, n, pattern)
                data = np.frombuffer(pattern * (n // unit), np.uint8)
                self._take_effect(lambda: _write(a.content, start, data))
            case _:
                self._download(q, a, at, n)
        if self.captured is None and kind != DOWNLOAD:
            # Later commands may hide what is wrong with the ends.
            self._download(q, written, start - EDGE, 2 * EDGE)
            self._download(q, written, start + n - EDGE, 2 * EDGE)
        del w.program[:-MAX_HELD]

    def _download(self, q: Stream, own: ModelBuffer, at: int, n: int) -> None:
        first, end = max(0, at), min(self.nbytes, at + n)
        target = self.w.download(q, own.buffer, first, end - first)
        self.seen.append((target, own.content[first:end].copy()))

    def exchange(self, one: Lane, two: Lane) -> None:
        """Hand the buffers of two streams over to each other; needs ``events``."""
        w = self.w
        first, second = w.record(one.stream), w.record(two.stream)
        w.wait(two.stream, first)
        w.wait(one.stream, second)
        one.own, two.own = two.own, one.own

    def _region(self) -> tuple[int, int, int]:
        """Draw a length and two offsets: any byte, but often the ends and powers of two."""
        rng, room = self.w.rng, self.nbytes
        n = int((room + 1) ** rng.random())
        if n > self.left:
            n = int(rng.integers(1, 64))
        self.left -= n
        at, to = ((0, room - n, int(rng.integers(room - n + 1)))[rng.integers(3)] for _ in range(2))
        if rng.integers(2):
            n, at, to = (max(1, n // 16 * 16), at // 16 * 16, to // 16 * 16)
        return min(n, room - max(at, to)), at, to

    def _take_effect(self, effect: Callable[[], None]) -> None:
        if self.captured is None:
            effect()
        else:
            self.captured.append(effect)

    # --- the end ----------------------------------------------------------------------------

    def check(self, what: str) -> None:
        """Wait for all streams, and compare every byte."""
        w = self.w
        for lane in self.lanes:
            w.sync(lane.stream)
        for target, expected in self.seen:
            w.equal(target, expected, f"downloaded among {what}")
        self.seen.clear()
        for lane in self.lanes:
            for own in lane.own:
                w.equal(w.get(lane.stream, own.buffer), own.content, f"a buffer after {what}")


def _write(content: Bytes, at: int, data: Bytes) -> None:
    content[at : at + data.size] = data
