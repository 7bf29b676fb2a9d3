"""The device: facts, logical devices, compiling."""

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np

from ggsched.backend import checks
from ggsched.backend.base import (
    BaseDevice,
    BaseProgram,
    BaseStream,
    host_facts,
)
from ggsched.backend.base_stream import writable_memory
from ggsched.backend.program import BoundNode
from ggsched.backend.protocols import Stream
from ggsched.backend.timeouts import EVENT_TIMEOUT_S, event_timeout
from ggsched.errors import OutOfDeviceMemory
from ggsched.topology.caps import DeviceFacts, WaitPath
from ggsched_cpu.kernels import supported_fusions, supported_ops
from ggsched_cpu.program import CallList, QuietSegment, compile_calls
from ggsched_cpu.stream import WorkerStream

MAX_DEVICES: Final = 64
"""Logical devices: each has buffers and streams of its own, all share memory and processors."""


@dataclass(frozen=True, slots=True)
class CpuSettings:
    """What can be set from outside.

    Attributes:
        sync: Run commands on the caller's thread instead of worker threads.
        timeout_s: How long a stream waits for an event before it fails.
    """

    sync: bool = False
    timeout_s: float = EVENT_TIMEOUT_S

    @classmethod
    def from_environment(cls) -> Self:
        """Read ``GGSCHED_CPU_SYNC`` and ``GGSCHED_TIMEOUT_S``.

        Raises:
            UsageError: the timeout is no positive number.
        """
        timeout = event_timeout()
        return cls(os.environ.get("GGSCHED_CPU_SYNC", "").strip() == "1", timeout)


def cpu_facts(index: int, settings: CpuSettings) -> DeviceFacts:
    """Return the facts of a logical device; all but the name are the same."""
    return host_facts(
        "cpu",
        supported_ops(),
        name=f"cpu:{index}",
        description=f"numpy on {os.cpu_count() or 1} x {platform.machine()}",
        is_async=not settings.sync,
        snapshots_uploads=settings.sync,
        imports_host_memory=True,
        fusions=supported_fusions(),
    )


class CpuDevice(BaseDevice):
    """Host memory and numpy kernels.

    Args:
        index: Number of the logical device.
        settings: See there.
    """

    def __init__(self, index: int = 0, settings: CpuSettings | None = None) -> None:
        self.settings = settings or CpuSettings()
        super().__init__(cpu_facts(index, self.settings), {})
        self.event_timeout_s = self.settings.timeout_s

    def fill_memory(self, memory: Any, offset: int, nbytes: int, pattern: bytes) -> None:
        """Set bytes of an array to a repeated pattern."""
        window = memory[offset : offset + nbytes].reshape(-1, len(pattern))
        window[:] = np.frombuffer(pattern, np.uint8)

    def make_stream(self, name: str) -> BaseStream:
        """Return a stream with a worker thread, or one that does everything at once."""
        return BaseStream(self, name) if self.settings.sync else WorkerStream(self, name)

    def compile(self, nodes: Sequence[BoundNode], stream: Stream) -> BaseProgram:
        """Resolve nodes to calls with arrays bound (LCH-3, LCH-5)."""
        self._require_open()
        checks.check_compile(self, nodes, stream)
        for node in nodes:
            writable_memory(node.output.buffer)
        try:
            calls, labels = compile_calls(nodes)
        except MemoryError as error:
            raise OutOfDeviceMemory("no memory for scratch", where=self.facts.name) from error
        segment = QuietSegment if self.settings.sync else CallList
        return BaseProgram(stream, segment(calls, labels))

    def wait_path(self, other: DeviceFacts) -> WaitPath:
        """Events of other backends are waited for by the worker thread (EVT-4).

        Without one only events that are done as soon as they are recorded can be waited for:
        the caller must not be blocked by a wait.
        """
        if self.settings.sync:
            return (
                "native" if other.backend == self.facts.backend and not other.is_async else "host"
            )
        return "native" if other.backend == self.facts.backend else "thread"
