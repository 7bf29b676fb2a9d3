"""A stream of the driver, and what the driver does not keep: host memory, faults, reasons."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final

from ggsched.backend.protocols import Event, HostMemory
from ggsched.backend.queued.command_queue import CommandQueue, Launchable
from ggsched.backend.queued.polling import Polling
from ggsched.backend.timeouts import late_error
from ggsched.errors import DeviceFault
from ggsched_cuda import driver, transfers
from ggsched_cuda.async_errors import LOST, FaultWords, IdCheck
from ggsched_cuda.cuda_context import CudaContext, is_busy
from ggsched_cuda.deferred import Move
from ggsched_cuda.driver import CudaError, Step
from ggsched_cuda.event import POLLING, CudaEvent, Marker, Point
from ggsched_cuda.pinned import PinnedBlock, Quad
from ggsched_cuda.small_kernels import take_snapshot
from ggsched_cuda.times import CudaTimes
from ggsched_cuda_kernels.blas.driver import Product

STAGED_NBYTES: Final = 256 << 20
"""With more than this on the way a stream waits for its oldest piece, for at most ``PATIENCE_S``;
then it takes more memory, lest it waits for a stream that is held."""

MAX_STAGED: Final = 16
"""Pieces on the way, behind which commands wait in the backlog. The driver's queue is finite, and
who finds no room is blocked (STR-2): a held stream took hundreds of launches, but of uploads, each
a call of the host and a copy behind it, 56 (H100, driver 580)."""

ROOM_POLLING: Final = Polling(spin_s=0.0, share=1 / 16)  # of a thread that nobody waits for
PATIENCE_S: Final = 1.0
STAGED_OFTEN: Final = 8
OFTEN: Final = 64  # transfers, after which the stream looks which of them are complete


class Held:
    """What transfers need until a marker is done: host memory of the caller, staging blocks."""

    __slots__ = ("blocks", "memory", "nbytes")

    def __init__(self) -> None:
        self.memory: list[Any] = []
        self.blocks: list[PinnedBlock] = []
        self.nbytes = 0


class CudaQueue(CommandQueue[Point]):
    """Hands commands to the driver.

    Args:
        handle: The driver's stream.
        words: Fault words of the stream. They stay with it for good: a kernel of a program that is
            still enqueued may write there.
        name: Name of the stream.
        timeout_s: How long it waits for an event of another backend before it fails.
    """

    polling = POLLING

    def __init__(
        self, gpu: CudaContext, handle: int, words: FaultWords, name: str, timeout_s: float
    ) -> None:
        super().__init__(name, timeout_s)
        self.gpu = gpu
        self.handle = handle
        self.patience_s = timeout_s
        self.words = words
        self.unchecked: set[FaultWords] = set()  # words that some command since may have written
        self.is_current = True  # whether the driver's stream may be given commands that run
        self._has_ended = False
        self._blas: tuple[int, int] | None = None
        self._now = Held()
        self._past: deque[tuple[Marker, Held]] = deque()
        self._staged = 0
        self._pieces = 0

    def enter(self) -> None:
        """Make the GPU's context current on this thread."""
        driver.enter(self.gpu.context)

    def blas(self) -> int:
        """Return the stream's own handle of cuBLAS."""
        if self._blas is None:
            self._blas = self.gpu.take_blas(self.handle)
        return self._blas[0]

    def load_kernels(self, product: Product) -> None:
        """Load the kernels of a product with the stream's handle."""
        assert self._blas is not None
        self.gpu.blas_kernels.load(product, self._blas[1], self.handle)

    # --- commands ------------------------------------------------------------------------------

    def await_room(self) -> None:
        """Keep a command in the backlog until the driver has room, also behind others there."""
        if self.backlog.is_pending or not self._has_places():
            self.backlog.wait_for("wait for room", self._require_places)

    def upload(self, source: HostMemory, memory: int, offset: int) -> None:
        """Copy host bytes to the device."""
        transfers.upload(self, source, memory + offset)

    def download(self, memory: int, offset: int, target: HostMemory) -> None:
        """Copy bytes of the device to the host."""
        transfers.download(self, memory + offset, target)

    def copy(self, src: int, src_offset: int, dst: int, dst_offset: int, nbytes: int) -> None:
        """Copy between GPUs that reach each other, or within one."""
        driver.enqueue_copy(dst + dst_offset, src + src_offset, nbytes, self.handle)

    def fill(self, memory: int, offset: int, nbytes: int, pattern: bytes) -> None:
        """Set bytes of the device to a repeated pattern."""
        driver.enqueue_fill(memory + offset, nbytes, pattern, self.handle)

    def launch(self, program: Launchable, steps: Sequence[Step]) -> None:
        """Run the steps of a program; one that fails poisons the stream."""
        if program.checks_ids:
            self.note_ids(self.words)
        if isinstance(self.times, CudaTimes):
            steps = self.times.around(steps, program.labels)
        self.run_steps(steps, program.labels)

    def run_steps(self, steps: Sequence[Step], labels: Sequence[str]) -> bool:
        """Hand steps to the driver; return whether it has taken all of them."""
        done = 0
        try:
            for call, arguments in steps:
                result = call(*arguments)
                if result[0]:
                    driver.check(result, "cuLaunchKernel")
                done += 1
        except Exception as error:  # cuBLAS has errors of its own
            # Some of the nodes are enqueued, so this is no refusal (ERR-1) but a fault (ERR-2).
            self.refused(labels[done], error)
            return False
        return True

    def replay(self, executable: Any, every: Iterable[FaultWords], *, meets: bool) -> None:
        """Launch a graph whose kernels may write fault words, and may meet those of a peer."""
        for words in every:
            self.note_ids(words)
        self.enter()  # the words may be another GPU's

        def launch() -> None:
            result = driver.launch_graph(executable, self.handle)
            if result[0]:
                self.refused("replay", CudaError("cuGraphLaunch", int(result[0]), str(result[0])))

        if meets:
            self.gpu.turns.run(self.gpu, self, self.handle, launch)
        else:
            launch()

    def native(self, event: Event) -> CudaEvent | None:
        """Return an event of this backend, which the driver can wait for."""
        return event if isinstance(event, CudaEvent) else None

    def enqueue_wait(self, point: Point) -> None:
        """Let the driver's stream wait."""
        assert point.marker is not None  # else it is done
        try:
            driver.enqueue_wait(self.handle, point.marker.handle)
        except CudaError as error:
            raise self.refused("wait", error) from error

    def point(self) -> Point:
        """Return the present end of the stream."""
        statuses = self.faults.statuses()
        try:
            marker = self.marker()
            if self.unchecked:
                pinned = self.gpu.pinned
                made = [
                    IdCheck(words, marker.is_done, partial(self._copied, words), pinned)
                    for words in self.unchecked
                ]
                self.unchecked.clear()
                self.faults.add(made)
                statuses += made
        except CudaError as error:
            raise self.refused("record", error) from error
        return Point(marker, statuses, self.name, self.behind(marker))

    def marker(self) -> Marker:
        """Record an event of the driver here."""
        return Marker.behind(self.gpu, self.handle)

    def unfinished(self) -> list[Marker]:
        """Return a marker behind all that is enqueued, if some of that is not complete.

        What is in the backlog is not enqueued yet.
        """
        if self._has_ended:
            return []
        self.gpu.enter()
        return [self.marker()] if is_busy(self.handle) else []

    def errors(self) -> type[Exception]:
        """Return what the driver's calls raise."""
        return CudaError

    def refused(self, command: str, error: Exception) -> DeviceFault:
        """Poison the stream; return the fault."""
        fault = DeviceFault(f"{command} failed", where=self.name, why=str(error), hint=LOST)
        self.faults.poison(fault)
        return fault

    def is_idle(self) -> bool:
        """Whether everything that the driver was given is complete; never blocks."""
        return not is_busy(self.handle)

    def complete(self, timeout_s: float) -> None:
        """Block until everything that the driver was given is complete (STR-5)."""
        if not POLLING.wait_until(self.is_idle, timeout_s):
            raise late_error(self.name, timeout_s)
        self.all_done()
        result = driver.query_stream(self.handle)
        if result[0]:
            error = CudaError("stream", int(result[0]), str(result[0]))
            raise self.refused("a command", error)
        for words in self.unchecked:
            self.faults.poison(words.fault())
        self.unchecked.clear()

    def end(self) -> None:
        """Release the driver's stream; what it needs is kept until it is through."""
        self.times = None
        self.gpu.enter()
        marker = Marker(self.gpu)
        driver.record_event(marker.handle, self.handle)  # a lost GPU refuses, which is an end too
        self.gpu.drain_later(marker, self.all_done, self._blas)
        self._has_ended = True
        self.is_current = False
        driver.close_stream(self.handle)

    def make_times(self) -> CudaTimes:
        """Take times of the GPU from now on."""
        return CudaTimes(self.gpu.clock, self.handle)

    def note_ids(self, words: FaultWords) -> None:
        """Remember that commands from here on may write fault words."""
        words.before_writing()
        self.unchecked.add(words)

    def _copied(self, words: FaultWords) -> tuple[Quad, Callable[[], bool]]:
        """Copy fault words in the order of the stream."""
        quad = self.gpu.pinned.take_quad()
        if not self.is_current:
            return quad, lambda: True
        self.gpu.enter()
        take_snapshot(self.gpu, self.handle, words.quad, quad)
        return quad, self.marker().is_done

    # --- transfers -----------------------------------------------------------------------------

    def takes(self, move: Move, memory: Any) -> bool:
        """Leave a transfer to a kernel: not here."""
        return False

    def hold(self, memory: Any) -> None:
        """Keep host memory of the transfer that comes next until that is complete."""
        # A marker here is behind the transfers so far and in front of the next one.
        if len(self._now.memory) >= OFTEN:
            self.behind(self.marker())
        self._now.memory.append(memory)

    def call(self, to: int, source: int, nbytes: int, holds: Any) -> None:
        """Let a thread of the driver copy host memory."""
        self.gpu.host_calls.enqueue(self.handle, to, source, nbytes, holds, often=False)

    def stage(self, nbytes: int) -> PinnedBlock:
        """Return a pinned block for the transfer that comes next."""
        # As in ``hold``: a marker in front of the use of the new block must not release it.
        is_too_much = self._staged + nbytes > STAGED_NBYTES
        if is_too_much or len(self._now.blocks) >= STAGED_OFTEN:
            self.behind(self.marker())
        if is_too_much:
            POLLING.wait_until(self._has_room, PATIENCE_S)
        block = self.gpu.pinned.take(nbytes)
        self._now.blocks.append(block)
        self._now.nbytes += block.nbytes
        self._staged += block.nbytes
        self._pieces += 1
        self.is_full = self._pieces >= MAX_STAGED
        return block

    def behind(self, marker: Marker) -> Held:
        """Keep what transfers so far need until a marker is done; return it."""
        held, self._now = self._now, Held()
        if held.memory or held.blocks:
            self._past.append((marker, held))
        self._sweep()
        return held

    def all_done(self) -> None:
        """Release everything: all is complete."""
        for held in (*(h for _, h in self._past), self._now):
            self._release(held)
        self._past.clear()
        self._now = Held()

    def _has_places(self) -> bool:
        if self.is_full:
            self.enter()
            self._sweep()
        return not self.is_full

    def _require_places(self, timeout_s: float) -> None:
        if not ROOM_POLLING.wait_until(self._has_places, timeout_s):
            raise late_error(self.name, timeout_s)

    def _has_room(self) -> bool:
        self._sweep()
        return self._staged <= STAGED_NBYTES // 2

    def _sweep(self) -> None:
        while self._past and self._past[0][0].is_done():
            self._release(self._past.popleft()[1])

    def _release(self, held: Held) -> None:
        for block in held.blocks:
            self.gpu.pinned.give(block)
        self._staged -= held.nbytes
        self._pieces -= len(held.blocks)
        self.is_full = self._pieces >= MAX_STAGED
        held.memory, held.blocks, held.nbytes = [], [], 0
