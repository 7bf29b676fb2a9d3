"""FIL-1, FIL-2, FIL-3: other bytes, another queue, or no refusal."""

from collections.abc import Iterator

from ggsched.backend.base import BaseDevice, BaseStream
from ggsched.backend.base_buffer import writable_memory
from ggsched.backend.list_capture import EAGER
from ggsched.backend.protocols import Buffer
from ggsched_testing.sim import SimStream
from tests.mutants.baselines import CPU, SIM
from tests.mutants.mutant import breaks
from tests.mutants.mutate_calls import streams_beside


def _others(stream: BaseStream) -> Iterator[BaseStream]:
    streams = sorted(streams_beside(stream), key=lambda s: s.progress.where)
    return (s for s in streams if s is not stream and not s.is_closed)


# --- FIL-1 ------------------------------------------------------------------------------------


@breaks("FIL-1", "Fills write whole words.", CPU)
class FillOfWholeWords(BaseStream):
    """The library fills 32 bits at a time, and rounds up."""

    def fill(self, buffer: Buffer, offset: int, nbytes: int, pattern: bytes) -> None:
        room = (buffer.nbytes - offset) // max(1, len(pattern)) * len(pattern)
        more = -(-nbytes // 4) * 4 if nbytes > 0 else nbytes
        super().fill(buffer, offset, max(nbytes, min(more, room)), pattern)


@breaks("FIL-1", "Only the first byte of a pattern is used.", CPU)
class FillWithOneByte(BaseStream):
    """It calls memset."""

    def fill(self, buffer: Buffer, offset: int, nbytes: int, pattern: bytes) -> None:
        super().fill(buffer, offset, nbytes, pattern[:1] * len(pattern))


@breaks("FIL-1", "A long fill stops after a block.", CPU)
class FillOfOneBlock(BaseDevice):
    """The loop is missing."""

    def fill_memory(self, memory: object, offset: int, nbytes: int, pattern: bytes) -> None:
        super().fill_memory(memory, offset, min(nbytes, 1 << 20), pattern)


@breaks("FIL-1", "The pattern is looked at when the fill runs, and is the newest one by then.", CPU)
class PatternOfTheNewestFill(BaseStream):
    """The stream has one place for patterns."""

    def begin(self) -> None:
        self.newest = b""

    def fill(self, buffer: Buffer, offset: int, nbytes: int, pattern: bytes) -> None:
        if len(pattern) not in (1, 2, 4) or offset % len(pattern) or nbytes % len(pattern):
            super().fill(buffer, offset, nbytes, pattern)
            return
        BaseStream.fill(self, buffer, offset, 0, b"\0")  # checks
        if not 0 <= offset <= offset + nbytes <= buffer.nbytes:
            super().fill(buffer, offset, nbytes, pattern)
            return
        self.newest = pattern
        memory, fill = writable_memory(buffer), self.device.fill_memory
        self.sink.add(self, "fill", lambda: fill(memory, offset, nbytes, self.newest))


# --- FIL-2 ------------------------------------------------------------------------------------


@breaks("FIL-2", "A fill runs on another stream's queue.", CPU)
class FillOnAnotherQueue(BaseStream):
    """The library has a default stream for memsets."""

    def fill(self, buffer: Buffer, offset: int, nbytes: int, pattern: bytes) -> None:
        BaseStream.fill(next(_others(self), self), buffer, offset, nbytes, pattern)


@breaks("FIL-2", "A fill is made at once, past its own stream's queue.", CPU)
class FillAtOnce(BaseStream):
    """The library has a synchronous memset only."""

    def fill(self, buffer: Buffer, offset: int, nbytes: int, pattern: bytes) -> None:
        super().fill(buffer, offset, 0, pattern)
        if nbytes <= 0 or offset + nbytes > buffer.nbytes or nbytes % len(pattern):
            super().fill(buffer, offset, nbytes, pattern)
        else:
            self.device.fill_memory(writable_memory(buffer), offset, nbytes, pattern)


@breaks("FIL-2", "A capture does not see fills.", CPU)
class FillEscapesTheCapture(BaseStream):
    """It is enqueued although the stream is captured."""

    def fill(self, buffer: Buffer, offset: int, nbytes: int, pattern: bytes) -> None:
        sink, self.sink = self.sink, EAGER
        try:
            super().fill(buffer, offset, nbytes, pattern)
        finally:
            self.sink = sink


@breaks("FIL-2", "An event does not cover a fill before it.", SIM)
class EventsForgetFills(SimStream):
    """Fills are on a queue that events do not know."""

    def fill(self, buffer: Buffer, offset: int, nbytes: int, pattern: bytes) -> None:
        before = [queue.last for queue in self.queues]
        super().fill(buffer, offset, nbytes, pattern)
        for queue, last in zip(self.queues, before, strict=True):
            queue.last = last


# --- FIL-3 ------------------------------------------------------------------------------------


@breaks("FIL-3", "A pattern of any length is taken, cut to a length that is allowed.", CPU)
class AnyPatternTaken(BaseStream):
    """Three bytes become two."""

    def fill(self, buffer: Buffer, offset: int, nbytes: int, pattern: bytes) -> None:
        length = max((n for n in (1, 2, 4) if n <= len(pattern)), default=1)
        super().fill(buffer, offset, nbytes, (pattern or b"\0")[:length])


@breaks("FIL-3", "A range is rounded to whole patterns.", CPU)
class RangeIsRounded(BaseStream):
    """It divides, and drops the rest."""

    def fill(self, buffer: Buffer, offset: int, nbytes: int, pattern: bytes) -> None:
        length = max(1, len(pattern))
        super().fill(buffer, offset // length * length, nbytes // length * length, pattern)


@breaks("FIL-3", "A fill that ends outside the buffer is cut.", CPU)
class FillIsClipped(BaseStream):
    """What lies outside is left out, in silence."""

    def fill(self, buffer: Buffer, offset: int, nbytes: int, pattern: bytes) -> None:
        begin = min(max(0, offset), buffer.nbytes)
        end = min(max(begin, offset + nbytes), buffer.nbytes)
        super().fill(buffer, begin, end - begin, pattern)


@breaks("FIL-3", "A fill of zero bytes is refused.", CPU)
class EmptyFillRefused(BaseStream):
    """As some libraries do."""

    def fill(self, buffer: Buffer, offset: int, nbytes: int, pattern: bytes) -> None:
        super().fill(buffer, offset, nbytes or buffer.nbytes + len(pattern), pattern)
