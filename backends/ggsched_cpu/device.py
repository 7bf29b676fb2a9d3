"""The device: facts, logical devices, compiling."""

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np

from ggsched.backend import checks
from ggsched.backend.arrays import aligned_zeros
from ggsched.backend.base import BaseBuffer, BaseDevice, BaseProgram, BaseStream, host_facts
from ggsched.backend.base_buffer import writable_memory
from ggsched.backend.precision import Activations, activations
from ggsched.backend.program import BoundNode
from ggsched.backend.protocols import Stream
from ggsched.backend.settings import setting
from ggsched.backend.timeouts import EVENT_TIMEOUT_S, event_timeout
from ggsched.errors import OutOfDeviceMemory
from ggsched.topology.caps import HOST_PROCESSOR, DeviceFacts, WaitPath
from ggsched_cpu.native import KernelChoice, Kernels, kernels_for, library
from ggsched_cpu.pages import SMALL_PAGES_NBYTES, take_small_pages
from ggsched_cpu.program import compile_steps, segment
from ggsched_cpu.runner import Runner
from ggsched_cpu.stream import WorkerStream
from ggsched_cpu.supported import FUSIONS, reference_ops, supported_ops
from ggsched_cpu.threads import default_threads

MAX_DEVICES: Final = 64
"""Logical devices: each has buffers and streams of its own, all share memory and processors."""


@dataclass(frozen=True, slots=True)
class CpuSettings:
    """What can be set from outside.

    Attributes:
        sync: Run commands on the caller's thread instead of worker threads.
        timeout_s: How long a stream waits for an event before it fails.
        threads: How many compute, for the whole process; None for a physical core each.
        kernels: ``numpy`` for the reference arithmetic alone.
        activations: ``auto`` rounds them to 8 bits beside packed weights.
    """

    sync: bool = False
    timeout_s: float = EVENT_TIMEOUT_S
    threads: int | None = None
    kernels: KernelChoice = "auto"
    activations: Activations = "f32"

    @classmethod
    def from_environment(cls) -> Self:
        """Read the variables of this plug-in, which ``ggsched.config`` lists.

        Raises:
            UsageError: one of them has an invalid value.
        """
        return cls(
            setting("cpu_sync"),
            event_timeout(),
            setting("threads"),
            setting("cpu_kernels"),
            activations(),
        )

    @property
    def computing_threads(self) -> int:
        """How many threads share a task."""
        if self.sync:
            return 1
        return default_threads() if self.threads is None else self.threads


def cpu_facts(index: int, settings: CpuSettings) -> DeviceFacts:
    """Return the facts of a logical device; all but the name are the same."""
    is_compiled = _is_compiled(settings)
    return host_facts(
        "cpu",
        supported_ops(is_compiled=is_compiled),
        name=f"cpu:{index}",
        description=_description(settings),
        processor=HOST_PROCESSOR,
        is_async=not settings.sync,
        snapshots_uploads=settings.sync,
        takes_expert_ranges=True,
        imports_host_memory=True,
        reads_peers=True,
        rounds_to_8_bits=settings.activations == "auto" and is_compiled,
        fusions=FUSIONS,
        reference_ops=reference_ops(is_compiled=is_compiled),
    )


def _is_compiled(settings: CpuSettings) -> bool:
    return settings.kernels == "auto" and library() is not None


def _description(settings: CpuSettings) -> str:
    opened = library() if _is_compiled(settings) else None
    if opened is None:
        return f"reference arithmetic in numpy on {os.cpu_count() or 1} x {platform.machine()}"
    threads = settings.computing_threads
    plural = "" if threads == 1 else "s"
    return f"LLVM kernels for {opened.target.title}, {threads} thread{plural}"


class CpuDevice(BaseDevice):
    """Host memory, compiled kernels, the reference arithmetic for the rest.

    Args:
        index: Number of the logical device.
        settings: See there.
    """

    def __init__(self, index: int = 0, settings: CpuSettings | None = None) -> None:
        self.settings = settings or CpuSettings()
        super().__init__(cpu_facts(index, self.settings), {})
        self.event_timeout_s = self.settings.timeout_s
        self._zeros: Any = None
        self.kernels_used: Kernels | None = kernels_for(
            self.settings.computing_threads, self.settings.activations, self.settings.kernels
        )

    def acquire_memory(self, nbytes: int) -> Any:
        """Return zeros, whose pages are there when they are first used."""
        self._zeros = aligned_zeros(nbytes, self.facts.alignment)
        return self._zeros

    def make_buffer(self, nbytes: int, memory: Any) -> BaseBuffer:
        """Return a buffer over fresh memory, which it knows to be zeros."""
        is_zero, self._zeros = memory is self._zeros, None
        return BaseBuffer(self, nbytes, memory, is_zero=is_zero)

    def leave_zero(self, memory: Any) -> None:
        """Let a state take small pages: it is used a few rows at a time."""
        if memory.nbytes < SMALL_PAGES_NBYTES:
            take_small_pages(memory)

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
            steps = compile_steps(nodes, self.kernels_used)
            runner = self._runner(stream)
            body = segment(steps, runner)
        except MemoryError as error:
            raise OutOfDeviceMemory("no memory for scratch", where=self.facts.name) from error
        by_reference = frozenset(step.label for step in steps if step.by_reference)
        return BaseProgram(stream, body, by_reference)

    def _runner(self, stream: Stream) -> Runner | None:
        """Return what runs tables on a stream."""
        if self.kernels_used is None:
            return None
        if not isinstance(stream, WorkerStream):
            return Runner(stream, 1)
        if stream.runner is None:
            stream.runner = Runner(stream, self.kernels_used.threads)
        return stream.runner

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
