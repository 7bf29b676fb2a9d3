"""What breaks with many commands, events, threads or devices, behind failures, or elsewhere."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from time import sleep
from typing import Any

import numpy as np

from ggsched.backend.base import BaseBuffer, BaseDevice, BaseEvent, BaseStream
from ggsched.backend.list_capture import RecordedCapture
from ggsched.backend.program import Operand
from ggsched.backend.program_body import Command
from ggsched.backend.protocols import Buffer, HostMemory, Stream
from tests.mutants.baselines import CPU
from tests.mutants.capture import Lost
from tests.mutants.mutant import breaks
from tests.mutants.peers import PeersAreCopiedWhenCompiled
from tests.mutants.racing import MOMENT_S

FAR_BEHIND = 40
CROWD = 8


@breaks("STR-2", "Every two hundred and fifty-sixth fill of a stream is lost.", CPU)
class FillsWrap(BaseStream):
    """Its slot in a ring is that of the next one."""

    def begin(self) -> None:
        self.fills = 0

    def fill(self, buffer: Buffer, offset: int, nbytes: int, pattern: bytes) -> None:
        self.fills += 1
        if self.fills % 256 or not nbytes:
            super().fill(buffer, offset, nbytes, pattern)


@breaks("STR-6", "More than eight streams share the memory that uploads go through.", CPU)
class CrowdsShareMemory(BaseDevice):
    """Each has a piece of its own, as long as there are any."""

    def write_memory(self, memory: Any, offset: int, source: HostMemory) -> None:
        if sum(not s.is_closed for s in self._streams) > CROWD:
            shared = self.__dict__.setdefault("shared", bytearray(1 << 20))
            shared[: len(source)] = source[: len(shared)]
            sleep(MOMENT_S)
            source = memoryview(shared)[: len(source)]
        super().write_memory(memory, offset, source)


@breaks("EVT-1", "From the fortieth event of a stream on, events stand for one command less.", CPU)
class LateEventsMissOne(BaseStream):
    """The number of the command is not that of the event."""

    def begin(self) -> None:
        self.events = 0

    def record(self, event: Any) -> None:
        super().record(event)
        self.events += 1
        if self.events > FAR_BEHIND and isinstance(event, BaseEvent):
            event._position = max(0, event._position - 1)


@breaks("EVT-6", "Events behind a failure after forty commands are good.", CPU)
class FarFailuresAreForgotten(BaseEvent):
    """The list of failures holds forty places."""

    __slots__ = ()

    def sync(self, timeout_s: float) -> None:
        fault = None if self._progress is None else self._progress.fault
        if self._is_closed or fault is None or fault.position <= FAR_BEHIND:
            super().sync(timeout_s)


@breaks("BUF-5", "A fill of an import is accepted, and does nothing.", CPU)
class ImportsAreFilled(BaseStream):
    """Whether memory may be written is looked at by copies only."""

    def fill(self, buffer: Buffer, offset: int, nbytes: int, pattern: bytes) -> None:
        if not (isinstance(buffer, BaseBuffer) and buffer.readonly and not buffer.is_closed):
            super().fill(buffer, offset, nbytes, pattern)


@breaks("CPY-6", "Memory of another backend is read when a copy is enqueued.", CPU)
class ForeignMemoryIsReadAtOnce(BaseStream):
    """As the source of an upload."""

    def copy(self, src: Buffer, src_offset: int, dst: Buffer, dst_offset: int, nbytes: int) -> None:
        is_far = src.device.facts.backend != self.device.facts.backend
        if is_far and dst.device is self.device and 0 <= src_offset <= src.nbytes - nbytes:
            piece = np.frombuffer(src.host_view(), np.uint8)[src_offset : src_offset + nbytes]
            self.upload(piece.copy().data, dst, dst_offset)
        else:
            super().copy(src, src_offset, dst, dst_offset, nbytes)


@breaks("COL-2", "What a third device holds is read when a program is compiled.", CPU)
class ThirdDeviceIsReadEarly(PeersAreCopiedWhenCompiled):
    """It has another address space."""

    def is_copied(self, operand: Operand) -> bool:
        return super().is_copied(operand) and operand.buffer.device.facts.name.endswith(":2")


@breaks("COL-4", "What the third stream of a capture is given is lost.", CPU)
class TwoStreamsOnly(BaseDevice):
    """A capture has places for two."""

    def begin_capture(self, streams: Sequence[Stream]) -> RecordedCapture:
        capture = super().begin_capture(streams)
        for stream in streams[2:]:
            other: Any = stream
            other.sink = Lost()
        return capture


@breaks("COL-4", "A command of a peer that fails in a replay is passed over.", CPU)
class FailuresOfPeersAreLost(BaseDevice):
    """The first device looks at its own commands."""

    def begin_capture(self, streams: Sequence[Stream]) -> RecordedCapture:
        capture = super().begin_capture(streams)
        add = capture.add

        def add_safely(stream: Any, command: Command, work: Callable[[], None]) -> None:
            def run() -> None:
                with suppress(Exception):
                    work()

            add(stream, command, work if stream.device is self else run)

        capture.add = add_safely  # type: ignore[method-assign]
        return capture
