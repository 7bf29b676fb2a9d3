"""STR-6: devices whose own methods are for one thread at a time."""

import threading
from collections.abc import Sequence
from time import sleep
from typing import Any

from ggsched.backend.base import BaseBuffer, BaseDevice, BaseEvent, BaseProgram, BaseStream
from ggsched.backend.program import BoundNode
from ggsched.backend.protocols import HostMemory, Stream
from tests.mutants.baselines import CPU
from tests.mutants.mutant import breaks

MOMENT_S = 2e-4
"""How long a thread is interrupted at the wrong place."""


@breaks("STR-6", "allocate of two threads at once raises.", CPU)
class AllocateOfOneThread(BaseDevice):
    """It walks over a set that the other one changes."""

    def allocate(self, nbytes: int) -> BaseBuffer:
        kept = self.__dict__
        before = kept["changes"] = int(kept.get("changes", 0)) + 1
        sleep(MOMENT_S)
        if kept["changes"] != before:
            raise RuntimeError("set changed size during iteration")
        return super().allocate(nbytes)


@breaks("STR-6", "allocate of two threads at once gives both the same memory.", CPU)
class PoolOfOneThread(BaseDevice):
    """It reads where the pool ends, and writes it back a moment later."""

    def allocate(self, nbytes: int) -> BaseBuffer:
        made = super().allocate(nbytes)
        if nbytes > 4096:
            return made
        kept = self.__dict__
        if "block" not in kept:
            kept["block"], kept["at"] = self.acquire_memory(1 << 22), 0
        at = kept["at"]
        sleep(MOMENT_S)
        kept["at"] = at + -(-max(nbytes, 1) // 64) * 64
        made._memory = kept["block"][at : at + nbytes]
        return made

    def write_memory(self, memory: Any, offset: int, source: HostMemory) -> None:
        super().write_memory(memory, offset, source)
        sleep(MOMENT_S)


@breaks("STR-6", "Programs that two threads compile at once are mixed up.", CPU)
class CompilerOfOneThread(BaseDevice):
    """The nodes under way are kept with the device."""

    def compile(self, nodes: Sequence[BoundNode], stream: Stream) -> BaseProgram:
        program = super().compile(nodes, stream)
        kept = self.__dict__
        kept["body"] = program.body
        sleep(MOMENT_S)
        if nodes:
            program.body = kept["body"]
        return program


@breaks("STR-6", "Threads that make streams at once get streams of one queue.", CPU)
class StreamsOfOneThread(BaseDevice):
    """The number of the stream is read twice."""

    def create_stream(self) -> BaseStream:
        stream = super().create_stream()
        kept = self.__dict__
        kept["newest"] = stream
        sleep(MOMENT_S)
        newest: BaseStream = kept["newest"]
        return newest


@breaks("STR-6", "Threads that make events at once get the same event.", CPU)
class EventsOfOneThread(BaseDevice):
    """A pool without a lock."""

    def create_event(self) -> BaseEvent:
        event = super().create_event()
        kept = self.__dict__
        kept["event"] = event
        sleep(MOMENT_S)
        newest: BaseEvent = kept["event"]
        return newest


@breaks("STR-6", "While one thread allocates, the device is busy for all others.", CPU)
class DeviceIsBusy(BaseDevice):
    """A lock that is tried, and not waited for."""

    def allocate(self, nbytes: int) -> BaseBuffer:
        lock = self.__dict__.setdefault("lock", threading.Lock())
        if not lock.acquire(timeout=0.0):
            raise RuntimeError("the device is busy")
        try:
            sleep(MOMENT_S)
            return super().allocate(nbytes)
        finally:
            lock.release()
