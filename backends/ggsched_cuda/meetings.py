"""Sums of two GPUs that wait for each other themselves, in a captured graph.

Between a row that a GPU makes and the sum that another one reads it for stands an event. As an edge
of a graph such an event costs the host 1.4 us at each replay, before the GPUs begin, and the
kernel behind it cannot be launched early. So where two sums read from each other what stands
right before the other one, they *meet* in the place of both edges: each kernel tells the other, by
a word in the other GPU's memory, that all before it on its stream is complete, and reads nothing
before it was told.

Two kernels that meet have to run at the same time. Each waits for nothing else, but the kernels of
a replay may keep what those of another replay need, which then wait for each other in a circle. So
of the graphs whose kernels meet one runs at a time (``MeetingTurns``).
"""

import ctypes
import threading
import weakref
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

from ggsched_cuda import driver
from ggsched_cuda.event import EventPool, Marker

WORD_NBYTES: Final = 4
SPACING: Final = 128
"""Bytes from the words of one meeting to those of the next; a line of memory."""
PLACES: Final = 3
"""Arguments of a kernel for a meeting."""
MAX_MEETINGS: Final = 512
"""Of a graph."""


class MeetingLaunch(NamedTuple):
    """A launch that can meet one of another GPU.

    Attributes:
        places: Its arguments for that: its own words, the other's, nanoseconds of patience.
        words: Words of each; their addresses are 0 where it does not meet.
    """

    places: tuple[ctypes.c_uint64, ...]
    words: int

    def launch(self, call: Callable[[], object], own: int, peer: int, patience_s: float) -> None:
        """Call what enqueues it, with arguments for a meeting."""
        values = own, peer, int(patience_s * 1e9)
        try:
            for place, value in zip(self.places, values, strict=True):
                place.value = value
            call()  # the driver takes the arguments as they are now
        finally:
            for place in self.places:
                place.value = 0


class MeetingGpu(EventPool, Protocol):
    """What meetings use of a GPU, a ``CudaContext``."""

    def take_zeros(self, nbytes: int) -> int:
        """Return the address of device memory that holds zeros."""

    def free(self, address: int) -> None:
        """Free memory when all that is enqueued now is complete."""


class Guest(Protocol):
    """A stream of a capture that waits for another GPU before its next launch.

    Attributes:
        last: What was recorded behind its last command, if nothing came since.
    """

    last: Marker | None

    @property
    def gpu(self) -> MeetingGpu:
        """The GPU."""

    def launch_meeting(self, own: int, peer: int) -> None:
        """Enqueue the launch that was put off, which meets another one."""


class Meetings:
    """The meetings of one capture."""

    def __init__(self) -> None:
        self._waiting: dict[Marker, tuple[Guest, Marker, int]] = {}  # by what the other waits for
        self._words: dict[MeetingGpu, int] = {}
        self._count = 0

    @property
    def count(self) -> int:
        """How many there are."""
        return self._count

    def offer(self, guest: Guest, awaited: Marker, words: int) -> bool:
        """Let a launch that was put off meet the one that waits for it, or remember it.

        Args:
            guest: Who has put the launch off.
            awaited: What it waits for, of another GPU.
            words: Of the launch.

        Returns:
            Whether somebody has to launch it later: no, if it cannot meet anybody.
        """
        last = guest.last
        if last is None or self._count == MAX_MEETINGS or words * WORD_NBYTES > SPACING:
            return False
        other, wanted, count = self._waiting.get(awaited, (None, None, 0))
        if other is None:
            self._waiting[last] = guest, awaited, words
            return True
        if wanted is not last or count != words or other.last is not awaited:
            return False
        del self._waiting[awaited]
        own, peer = self._place(guest.gpu), self._place(other.gpu)
        self._count += 1
        other.launch_meeting(peer, own)
        guest.launch_meeting(own, peer)
        return True

    def forget(self, guest: Guest) -> None:
        """Forget a launch that its guest enqueues otherwise."""
        self._waiting = {k: entry for k, entry in self._waiting.items() if entry[0] is not guest}

    def free(self) -> None:
        """Give the words back, behind what is enqueued."""
        words, self._words = self._words, {}
        for gpu, address in words.items():
            gpu.free(address)

    def _place(self, gpu: MeetingGpu) -> int:
        """Return the address of a GPU's words for the next meeting."""
        if gpu not in self._words:
            self._words[gpu] = gpu.take_zeros(SPACING * MAX_MEETINGS)
        return self._words[gpu] + SPACING * self._count


class MeetingTurns:
    """Lets graphs whose kernels meet run one after another, whatever their streams."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stream: Callable[[], object | None] = lambda: None
        self._marker: Marker | None = None

    def run(self, gpu: EventPool, stream: Any, handle: int, launch: Callable[[], object]) -> None:
        """Enqueue a graph on a stream, behind the last one of another stream."""
        with self._lock:
            if self._marker is not None and self._stream() is not stream:
                driver.enqueue_wait(handle, self._marker.handle)
            launch()
            self._stream, self._marker = weakref.ref(stream), Marker.behind(gpu, handle)
