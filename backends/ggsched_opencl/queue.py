"""An in-order queue of OpenCL. The newest command stands for all before it."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, Protocol

from ggsched.backend.protocols import Device, Event, HostMemory
from ggsched.backend.queued.command_queue import CommandQueue, Launchable
from ggsched.errors import DeviceFault, UsageError
from ggsched_kernels import TuningProfile
from ggsched_kernels.calls import i64
from ggsched_kernels.fault_words import FAULT_WORDS, FaultCodes
from ggsched_opencl import driver
from ggsched_opencl.async_errors import IdCheck
from ggsched_opencl.command_count import CommandCount
from ggsched_opencl.driver import COMPLETE, Handle, place_of, status_of
from ggsched_opencl.event import GPU_POLLING, POLLING, OpenClEvent, Point
from ggsched_opencl.landings import Landings
from ggsched_opencl.times import OpenClTimes

FILL_END: Final = 1 << 31
"""Fills that end behind this byte are made by a kernel.

The command of NVIDIA's OpenCL fails there, and the context is lost for the rest of the process, so
nothing can find out whether a driver is one of those.
"""
KERNELS_PER_MARK: Final = 16
"""Kernels of which one event is kept, on devices that are not the processor.

Each takes some 15 us there, events kept; without them 9 (98 kernels of a decoding step, H100). A
report on slow work names the first of them.
"""
_WORDS_PER_LANE: Final = 64
_MAX_GROUPS: Final = 1 << 16


class QueueOwner(Device, Protocol):
    """What queues use of their device."""

    context: Any
    profile: TuningProfile
    event_timeout_s: float
    landings: Landings | None

    def drain_later(self, queue: Handle, newest: Handle, held: deque[Handle]) -> None:
        """Keep the queue of a closed stream until its commands are complete."""

    def host_memory(self, nbytes: int) -> HostMemory:
        """Return host memory, also while the device is being closed."""

    def distrust(self) -> None:
        """Let no other device take the context: a command failed."""

    def take_kernel(self, name: str, defines: tuple[tuple[str, str], ...], kernel: str) -> Handle:
        """Return a kernel object that nobody else uses until it is given back."""

    def give_back(self, kernels: Iterable[tuple[tuple[object, ...], Handle]]) -> None:
        """Take kernel objects back."""


class OpenClQueue(CommandQueue[Point]):
    """Hands commands to OpenCL.

    Args:
        name: Name of the stream.

    Attributes:
        newest: The newest command, if any.
    """

    polling = POLLING

    def __init__(self, device: QueueOwner, name: str) -> None:
        self._counted = CommandCount()
        super().__init__(name, device.event_timeout_s)
        self._device = device
        self.context = device.context
        self._handle = driver.make_queue(device.context)
        self.newest: Handle = None
        self._own_times: OpenClTimes | None = None
        self._kernels_per_mark = 1 if device.landings is None else KERNELS_PER_MARK
        self.codes = FaultCodes(name)
        self._words: Handle = None
        self._ids_unchecked = False
        self._held: deque[Handle] = deque()  # transfers, which hold host memory (CPY-4, CPY-5)

    @property
    def fault_words(self) -> Handle:
        """Device memory where kernels leave the code of a node that met a bad id."""
        if self._words is None:
            self._words = driver.make_filled_buffer(self.context, bytes(4 * FAULT_WORDS))
        return self._words

    # --- commands ------------------------------------------------------------------------------

    def await_source(self, source: HostMemory) -> None:
        """Hold an upload until downloads into its source are complete (CPY-4)."""
        landings = self._device.landings
        if landings is not None and (self.backlog.is_pending or landings.meet(source)):
            self.backlog.wait_for("upload", partial(landings.require, source, self.name))

    def upload(self, source: HostMemory, memory: Any, offset: int) -> None:
        """Copy host bytes to the device."""
        self._hold(driver.enqueue_upload(self._handle, source, memory, offset))

    def download(self, memory: Any, offset: int, target: HostMemory) -> None:
        """Copy bytes of the device to the host."""
        event = driver.enqueue_download(self._handle, *place_of(memory, offset), target)
        self._hold(event)
        if self._device.landings is not None:
            self._device.landings.add(event, target)

    def copy(self, src: Any, src_offset: int, dst: Any, dst_offset: int, nbytes: int) -> None:
        """Copy within the device."""
        source = place_of(src, src_offset)
        self._take(driver.enqueue_copy(self._handle, *source, dst, dst_offset, nbytes))

    def fill(self, memory: Any, offset: int, nbytes: int, pattern: bytes) -> None:
        """Set bytes of the device to a repeated pattern."""
        if offset + nbytes <= FILL_END:
            self._take(driver.enqueue_fill(self._handle, memory, offset, nbytes, pattern))
        else:
            self._fill_far(memory, offset, offset + nbytes, pattern * (4 // len(pattern)))

    def _fill_far(self, memory: Any, first: int, end: int, word: bytes) -> None:
        """Fill by a kernel; the word is what lies at multiples of four bytes of the buffer."""
        lanes = self._device.profile.lanes
        words = -(-end // 4) - first // 4
        span = max(lanes * _WORDS_PER_LANE, -(-words // _MAX_GROUPS))
        key = ("fill", (("LANES", str(lanes)), ("VW", str(self._device.profile.vector))), "fill")
        kernel = self._device.take_kernel(*key)
        for i, value in enumerate((memory, i64(first), i64(end), word, i64(span))):
            driver.set_argument(kernel, i, value)
        groups = -(-words // span)
        self._take(driver.enqueue_kernel(self._handle, kernel, (groups * lanes,), (lanes,)))
        self._device.give_back([(key, kernel)])

    def launch(self, program: Launchable, steps: Sequence[Any]) -> None:
        """Run the steps of a program."""
        handle, newest, done, marked = self._handle, self.newest, 0, 0
        times = self._own_times
        timed = None if times is None else times.commands
        count = self._counted.launch()
        try:
            for enqueue, kernel, items, group in steps:
                newest = enqueue(handle, kernel, items, group)
                if timed is not None:
                    timed.append((program.labels[done], newest))
                done += 1
                if done - marked == self._kernels_per_mark or done == len(steps):
                    count((newest, program.labels[marked]))
                    marked = done
        except Exception as error:  # functions of user-defined ops have errors of their own
            # Some of the nodes are enqueued, so this is no refusal (ERR-1) but a fault (ERR-2).
            self._device.distrust()
            self.faults.poison(driver.fault_of(error, program.labels[done], self.name))
        self._ids_unchecked |= program.checks_ids
        self.newest = newest
        driver.flush(handle)

    def progress(self) -> Callable[[], object]:
        """Return a function of how far the queue is: its backlog, and what is complete."""
        behind, count = self.backlog.progress(), self._counted
        return lambda: count.mark(behind())

    def enqueue_wait(self, point: Point) -> None:
        """Let the queue wait."""
        self.hold(point.handle)

    def hold(self, gate: Handle) -> None:
        """Hold the queue until an event of OpenCL is complete."""
        self._take(driver.enqueue_wait(self._handle, gate))

    def native(self, event: Event) -> OpenClEvent | None:
        """Return an event of this device, which the queue can wait for."""
        if isinstance(event, OpenClEvent) and event.device is self._device:
            return event
        return None

    def point(self) -> Point:
        """Return the present end of the queue."""
        if self._ids_unchecked:
            check = IdCheck(self.codes, self._device.host_memory(4 * FAULT_WORDS))
            words = check.words.data.cast("B")
            check.copied = driver.enqueue_download(self._handle, self.fault_words, 0, words)
            self._hold(check.copied)
            self._ids_unchecked = False
            self.faults.add([check])
        polling = POLLING if self._device.landings is None else GPU_POLLING
        return Point(self.newest, self.faults.statuses(), self.name, polling)

    # --- the rest ------------------------------------------------------------------------------

    def errors(self) -> type[Exception]:
        """Return what OpenCL raises where it refuses a command."""
        return driver.errors()

    def refused(self, command: str, error: Exception) -> DeviceFault:
        """Let a refusal name the command; the stream is as before (ERR-1)."""
        self._device.distrust()
        return driver.fault_of(error, command, self.name)

    def is_idle(self) -> bool:
        """Whether everything that the queue was given is complete; never blocks."""
        return self.newest is None or status_of(self.newest) <= COMPLETE

    def complete(self, timeout_s: float) -> None:
        """Block until everything that the queue was given is complete (STR-5)."""
        super().complete(timeout_s)
        self.newest = None
        self._held.clear()
        self._counted.clear()

    def end(self) -> None:
        """Release the queue, which keeps its commands until they are complete."""
        self._device.drain_later(self._handle, self.newest, self._held)
        self.newest = None
        self._held = deque()
        self._words = None

    def make_times(self) -> OpenClTimes:
        """Take times, on a queue that has them.

        Raises:
            UsageError: something was enqueued before.
        """
        if self.newest is not None:
            raise UsageError(
                "the stream has been used",
                where=self.name,
                hint="call it right after create_stream",
            )
        self._handle = driver.make_queue(self.context, is_timed=True)
        self._own_times = OpenClTimes()
        return self._own_times

    def _take(self, newest: Handle) -> None:
        self.newest = newest
        if self._own_times is not None:
            self._own_times.commands.append(("", newest))
        driver.flush(self._handle)

    def _hold(self, event: Handle) -> None:
        """Keep a transfer until it is complete: dropping it earlier would block."""
        held = self._held
        while held and status_of(held[0]) <= COMPLETE:
            held.popleft()
        held.append(event)
        self._take(event)
