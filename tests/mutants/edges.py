"""BUF-1, CAP-1, CAP-2, COL-2, ERR-2, ERR-3: empty buffers; captures and devices that are closed."""

from collections.abc import Callable, Sequence
from functools import partial
from time import sleep
from typing import Any

from ggsched.backend.base import BaseDevice, BaseEvent, BaseStream
from ggsched.backend.list_capture import RecordedGraph
from ggsched.backend.program import Operand
from ggsched.backend.program_body import Body
from ggsched.backend.protocols import Buffer, HostMemory, Stream
from ggsched.errors import DeviceFault, UsageError
from tests.mutants.baselines import CPU
from tests.mutants.mutant import breaks
from tests.mutants.peers import PeersAreReadWhenEnqueued


@breaks("BUF-1", "A buffer without bytes cannot be the end of a copy.", CPU)
class EmptyBuffersAreNull(BaseStream):
    """It has no address."""

    def copy(self, src: Buffer, src_offset: int, dst: Buffer, dst_offset: int, nbytes: int) -> None:
        if not (src.nbytes and dst.nbytes):
            raise UsageError("a null pointer", where="copy")
        super().copy(src, src_offset, dst, dst_offset, nbytes)


@breaks("CAP-1", "A graph is replayed as long as each of its streams is open.", CPU)
class GraphNeedsItsStreams(BaseDevice):
    """Commands of a closed stream are gone."""

    def begin_capture(self, streams: Sequence[Stream]) -> Any:
        capture = super().begin_capture(streams)
        end, others = capture.end, streams[1:]

        def end_with_streams() -> RecordedGraph:
            graph = end()
            body: Callable[[], Body] = graph.body

            def body_if_open() -> Body:
                if any(getattr(s, "is_closed") for s in others):  # noqa: B009
                    raise UsageError("a stream of the graph is closed")
                return body()

            graph.body = body_if_open  # type: ignore[method-assign]
            return graph

        capture.end = end_with_streams  # type: ignore[method-assign]
        return capture


@breaks("CAP-2", "A capture goes on when one of its streams is closed.", CPU)
class ClosingLeavesTheCapture(BaseStream):
    """Its end is a graph of commands that the stream was given."""

    def close(self) -> None:
        sink, self.sink = self.sink, _UNTOUCHED
        super().close()
        self.sink = sink


class _Untouched:
    def abort(self) -> None:
        """Do nothing."""


_UNTOUCHED: Any = _Untouched()


@breaks("CAP-2", "Events of a capture count as done once the capture is over.", CPU)
class EventsOfACaptureAreDone(BaseEvent):
    """All that they stand for has happened: nothing."""

    __slots__ = ()

    @property
    def is_done(self) -> bool:
        return bool(getattr(self.capture, "_is_over", False)) or super().is_done


@breaks("COL-2", "What peers hold is read when a launch is enqueued, where it is constant.", CPU)
class ConstantsOfPeersAreReadEarly(PeersAreReadWhenEnqueued):
    """As it may do with its own."""

    def is_copied(self, operand: Operand) -> bool:
        return operand.is_constant and super().is_copied(operand)


@breaks("ERR-2", "After a fault of one stream, those of others are not reported by sync.", CPU)
class SecondStreamDoesNotFail(BaseStream):
    """The library keeps one error for the device, until it is taken."""

    def sync(self, timeout_s: float) -> None:
        try:
            super().sync(timeout_s)
        except DeviceFault:
            if self.device.__dict__.setdefault("failed", self) is self:
                raise


@breaks("ERR-3", "What a closed device has enqueued runs on.", CPU)
class ClosedDeviceRunsOn(BaseDevice):
    """close does not wait for the threads of its streams."""

    def read_memory(self, memory: Any, offset: int, target: HostMemory) -> None:
        half = target.nbytes // 2
        if half > 1 << 12:
            super().read_memory(memory, offset, target[:half])
            sleep(2e-3)
        super().read_memory(memory, offset, target)

    def create_stream(self) -> BaseStream:
        stream = super().create_stream()
        stream.close = partial(BaseStream.close, stream)  # type: ignore[method-assign]
        return stream
