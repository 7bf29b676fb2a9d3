"""Where commands of a stream go: to the driver's stream, or into the graph of a capture."""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from ggsched.backend.capture_errors import capturing_error, outside_error
from ggsched.backend.protocols import Event
from ggsched.backend.queued.backlog import Drop
from ggsched.backend.queued.command_queue import CommandQueue
from ggsched.errors import DeviceFault
from ggsched_cuda import driver
from ggsched_cuda.async_errors import LOST, FaultWords, IdCheck
from ggsched_cuda.cuda_context import CudaContext, is_busy
from ggsched_cuda.deferred import DeferredCommands, MirroredLaunch, Move
from ggsched_cuda.driver import CudaError
from ggsched_cuda.event import CudaEvent, Marker, Point
from ggsched_cuda.pinned import PinnedBlock, Quad
from ggsched_cuda.polling import POLLING
from ggsched_cuda.small_kernels import make_transfers, take_snapshot

STAGED_NBYTES: Final = 256 << 20
"""With more than this on the way a stream waits for its oldest piece, for at most ``PATIENCE_S``;
then it takes more memory, lest it waits for a stream that is held."""

PATIENCE_S: Final = 1.0
OFTEN: Final = 64  # transfers, after which the stream looks which of them are complete

MOVED_NBYTES: Final = 4 << 20
"""Shorter captured transfers are made by kernels."""


class Held:
    """What transfers need until a marker is done: host memory of the caller, staging blocks."""

    __slots__ = ("blocks", "memory", "nbytes")

    def __init__(self) -> None:
        self.memory: list[Any] = []
        self.blocks: list[PinnedBlock] = []
        self.nbytes = 0


class EagerSink(CommandQueue[Point]):
    """Hands commands to the driver at once, or behind the backlog.

    Args:
        gpu: The GPU.
        handle: The driver's stream.
        name: Name of the stream.
        timeout_s: How long it waits for an event of another backend before it fails.
    """

    def __init__(self, gpu: CudaContext, handle: int, name: str, timeout_s: float) -> None:
        super().__init__(name, timeout_s)
        self._gpu = gpu
        self._handle = handle
        self.unchecked: set[FaultWords] = set()  # words that some command since may have written
        self.is_current = True  # whether the driver's stream may be given commands that run
        self._now = Held()
        self._past: deque[tuple[Marker, Held]] = deque()
        self._staged = 0

    is_capturing = False

    @property
    def is_behind(self) -> bool:
        """Whether commands have to stay behind those in the backlog."""
        return self.backlog.is_pending

    def require_eager(self, what: str) -> None:
        """Refuse what a captured stream cannot do."""

    def abort(self) -> None:
        """Abort the capture, if there is one."""

    # --- queue ----------------------------------------------------------------------------------

    def later(self, command: str, enqueue: Callable[[], None], drop: Drop | None = None) -> None:
        """Put a command into the backlog, whose thread enters the GPU's context for it."""

        def run() -> None:
            self._gpu.enter()
            enqueue()

        super().later(command, run, drop)

    def native(self, event: Event) -> CudaEvent | None:
        """Return an event of this backend, which the driver can wait for."""
        return event if isinstance(event, CudaEvent) else None

    def enqueue_wait(self, point: Point) -> None:
        """Let the driver's stream wait."""
        assert point.marker is not None  # else it is done
        try:
            driver.enqueue_wait(self._handle, point.marker.handle)
        except CudaError as error:
            raise self.failed("wait", error) from error

    def point(self) -> Point:
        """Return the present end of the stream."""
        verdicts = self.faults.verdicts()
        try:
            marker = self.marker()
            if self.unchecked:
                pinned = self._gpu.pinned
                made = [
                    IdCheck(words, marker.is_done, partial(self._copied, words), pinned)
                    for words in self.unchecked
                ]
                self.unchecked.clear()
                self.faults.add(made)
                verdicts += made
        except CudaError as error:
            raise self.failed("record", error) from error
        return Point(marker, verdicts, self.name, self.behind(marker))

    def marker(self) -> Marker:
        """Record an event of the driver here."""
        return Marker.behind(self._gpu, self._handle)

    def unfinished(self) -> list[Marker]:
        """Return a marker behind all that is enqueued, if some of that is not complete."""
        self._gpu.enter()
        return [self.marker()] if is_busy(self._handle) else []

    def failed(self, command: str, error: Exception) -> DeviceFault:
        """Poison the stream; return the fault."""
        fault = DeviceFault(f"{command} failed", where=self.name, why=str(error), hint=LOST)
        self.faults.poison(fault)
        return fault

    def note_ids(self, words: FaultWords) -> None:
        """Remember that commands from here on may write fault words."""
        words.before_writing()
        self.unchecked.add(words)

    def _copied(self, words: FaultWords) -> tuple[Quad, Callable[[], bool]]:
        """Copy fault words in the order of the stream."""
        quad = self._gpu.pinned.take_quad()
        if not self.is_current:
            return quad, lambda: True
        self._gpu.enter()
        take_snapshot(self._gpu, self._handle, words.quad, quad)
        return quad, self.marker().is_done

    # --- launches and transfers -------------------------------------------------------------------

    def flush(self) -> None:
        """Hand over what was put off: nothing."""

    def deferrable(self, launch: MirroredLaunch | None) -> MirroredLaunch | None:
        """Return a launch that ``defer`` would take: none."""
        return None

    def defer(self, launch: MirroredLaunch) -> None:
        """Put off a launch."""
        raise AssertionError("not deferrable")

    def takes(self, move: Move, memory: Any) -> bool:
        """Leave a transfer to a kernel: not here."""
        return False

    def hold(self, memory: Any) -> None:
        """Keep host memory until the transfers so far are complete."""
        self._now.memory.append(memory)
        if len(self._now.memory) >= OFTEN:
            self.behind(self.marker())

    def call(self, to: int, source: int, nbytes: int, holds: Any) -> None:
        """Let a thread of the driver copy host memory."""
        self._gpu.host_calls.enqueue(self._handle, to, source, nbytes, holds, often=False)

    def stage(self, nbytes: int) -> PinnedBlock:
        """Return a pinned block for a transfer."""
        if self._staged + nbytes > STAGED_NBYTES:
            self.behind(self.marker())
            POLLING.wait_until(self._has_room, PATIENCE_S)
        block = self._gpu.pinned.take(nbytes)
        self._now.blocks.append(block)
        self._now.nbytes += block.nbytes
        self._staged += block.nbytes
        if len(self._now.blocks) >= 8:
            self.behind(self.marker())
        return block

    def behind(self, marker: Marker) -> Held:
        """Keep what transfers so far need until a marker is done; return it."""
        held, self._now = self._now, Held()
        if held.memory or held.blocks:
            self._past.append((marker, held))
        self._sweep()
        return held

    def all_done(self) -> None:
        """Let go of everything: all is complete."""
        for held in (*(h for _, h in self._past), self._now):
            self._release(held)
        self._past.clear()
        self._now = Held()

    def _has_room(self) -> bool:
        self._sweep()
        return self._staged <= STAGED_NBYTES // 2

    def _sweep(self) -> None:
        while self._past and self._past[0][0].is_done():
            self._release(self._past.popleft()[1])

    def _release(self, held: Held) -> None:
        for block in held.blocks:
            self._gpu.pinned.give(block)
        self._staged -= held.nbytes
        held.memory, held.blocks, held.nbytes = [], [], 0


class Captured:
    """What the graph of a capture uses.

    Args:
        before: Markers behind what the streams were given before.
        abort: Aborts the capture.

    Attributes:
        keeps: Host memory and buffers.
        forgets: Calls that forget what the graph's host calls need, and give their memory back.
        words: Fault words that the graph's kernels may write.
    """

    def __init__(self, before: list[Marker], abort: Callable[[], None]) -> None:
        self.before = before
        self.abort = abort
        self.keeps: list[Any] = []
        self.forgets: list[Callable[[], None]] = []
        self.words: set[FaultWords] = set()


class CapturingSink:
    """Writes the commands of one stream into the graph of a capture.

    Args:
        eager: Where they go otherwise.
        gpu: The GPU.
        handle: The driver's stream.
        captured: What the graph uses; the same for all streams of the capture.
    """

    def __init__(self, eager: EagerSink, gpu: CudaContext, handle: int, captured: Captured) -> None:
        self.name = eager.name
        self.captured = captured
        self._gpu = gpu
        self._handle = handle
        self._deferred = DeferredCommands(partial(make_transfers, gpu, handle), eager.failed)

    is_behind = False  # the backlog is paused
    is_capturing = True

    def require_eager(self, what: str) -> None:
        """Refuse what a captured stream cannot do (CAP-2)."""
        raise capturing_error(what, self.name)

    def abort(self) -> None:
        """Abort the capture."""
        self.captured.abort()

    def record(self, event: CudaEvent) -> None:
        """Let an event stand for everything captured so far."""
        self.flush()
        marker = Marker.behind(self._gpu, self._handle)
        event.mark(Point(marker, (), self.name), self.captured)

    def wait(self, event: Event) -> None:
        """Wait for an event that was recorded in this capture.

        Raises:
            UsageError: an event from outside (CAP-2).
        """
        if not isinstance(event, CudaEvent) or event.capture is not self.captured:
            raise outside_error(self.name)
        self.flush()
        point = event.recorded
        assert isinstance(point, Point)  # it was recorded in a capture
        marker = point.marker
        assert marker is not None
        self.captured.keeps.append(marker)
        driver.enqueue_wait(self._handle, marker.handle)

    def unfinished(self) -> list[Marker]:
        """Return markers behind what is not complete: nothing of the capture runs."""
        return [m for m in self.captured.before if not m.is_done()]

    def note_ids(self, words: FaultWords) -> None:
        """Remember that commands of the graph may write fault words."""
        self.captured.words.add(words)

    def flush(self) -> None:
        """Hand over what was put off, before something else."""
        self._deferred.flush()

    def deferrable(self, launch: MirroredLaunch | None) -> MirroredLaunch | None:
        """Return a launch that ``defer`` takes."""
        return launch

    def defer(self, launch: MirroredLaunch) -> None:
        """Put off a launch; everything before it has been handed over."""
        self._deferred.launch(launch)

    def takes(self, move: Move, memory: Any) -> bool:
        """Leave a transfer to a kernel, if it is short.

        A graph of kernels alone is launched quicker than one with copies, and several transfers
        in a row are one kernel, or none (``ggsched_cuda.deferred``).
        """
        if move.nbytes > MOVED_NBYTES:
            self.flush()
            return False
        self.captured.keeps.append(memory)
        self._deferred.move(move)
        return True

    def hold(self, memory: Any) -> None:
        """Keep host memory as long as the graph is open."""
        self.captured.keeps.append(memory)

    def call(self, to: int, source: int, nbytes: int, holds: Any) -> None:
        """Let a thread of the driver copy host memory at each replay."""
        forget = self._gpu.host_calls.enqueue(self._handle, to, source, nbytes, holds, often=True)
        self.captured.forgets.append(forget)

    def stage(self, nbytes: int) -> PinnedBlock:
        """Return a pinned block; nobody else uses it until the graph has gone or is another one."""
        block = self._gpu.pinned.take(nbytes)
        self.captured.forgets.append(partial(self._gpu.pinned.give, block))
        return block


Sink = EagerSink | CapturingSink
