"""Rendezvous: sums of several GPUs wait for each other inside their kernels, in a captured graph.

An event orders a row that one GPU computes before the sum of another GPU that reads it. As an edge
of a graph, such an event costs the host 1.4 us at each replay, before the GPUs begin, and the
kernel behind it cannot be launched with PDL. So if the sums of a group of GPUs read rows that
directly precede the sums of the others, their kernels use a *rendezvous* instead of edges. Each
kernel sets a word in the memory of each other GPU when all work before it on its stream is
complete, and reads nothing before the others have set the words in its own memory.

Kernels of a rendezvous have to run at the same time. They wait for nothing else, but kernels of one
replay may hold resources that those of another replay need, which would be a deadlock. So graphs
with a rendezvous run one at a time (``RendezvousTurns``).
"""

import ctypes
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from ggsched_cuda import driver
from ggsched_cuda.event import EventPool, Marker
from ggsched_cuda_kernels.decode.device_sums import MAX_PEERS

WORD_NBYTES: Final = 4
SPACING: Final = 128
"""Bytes from the words of one rendezvous to those of the next; a line of memory."""
PLACES: Final = 2 * MAX_PEERS + 1
"""Arguments of a kernel for a rendezvous."""

Words = tuple[int, int]
"""Addresses of words that a kernel waits for, and of those that it sets."""
MAX_RENDEZVOUS: Final = 512
"""Of a graph."""


class RendezvousLaunch(NamedTuple):
    """A launch that can meet those of other GPUs.

    Attributes:
        places: Its arguments for that: for each other one its own words and the other's, then
            nanoseconds of patience.
        words: Words of each; addresses are 0 where it does not meet.
    """

    places: tuple[ctypes.c_uint64, ...]
    words: int

    def launch(self, call: Callable[[], object], words: Sequence[Words], patience_s: float) -> None:
        """Call what enqueues it, with arguments for a rendezvous."""
        given = [address for pair in words for address in pair]
        values = [*given, *[0] * (PLACES - 1 - len(given)), int(patience_s * 1e9)]
        try:
            for place, value in zip(self.places, values, strict=True):
                place.value = value
            call()  # the driver takes the arguments as they are now
        finally:
            for place in self.places:
                place.value = 0


class RendezvousGpu(EventPool, Protocol):
    """What rendezvous use of a GPU, a ``CudaContext``."""

    def take_zeros(self, nbytes: int) -> int:
        """Return the address of device memory that holds zeros."""

    def free(self, address: int) -> None:
        """Free memory when all that is enqueued now is complete."""


class Guest(Protocol):
    """A stream of a capture that waits for other GPUs before its next launch.

    Attributes:
        last: What was recorded behind its last command, if nothing came since.
    """

    last: Marker | None

    @property
    def gpu(self) -> RendezvousGpu:
        """The GPU."""

    def launch_rendezvous(self, words: Sequence[Words]) -> None:
        """Enqueue the deferred launch, which meets others."""


class Waiting(NamedTuple):
    """A deferred launch.

    Attributes:
        guest: Whose.
        last: What its guest recorded last, which the others wait for.
        awaited: What it waits for, of other GPUs.
        words: Of the launch.
    """

    guest: Guest
    last: Marker
    awaited: frozenset[Marker]
    words: int

    def is_of(self, group: frozenset[Marker], words: int) -> bool:
        """Whether it waits for all of a group but itself, and nothing came since."""
        is_last = self.guest.last is self.last
        return is_last and self.words == words and self.awaited == group - {self.last}


class CaptureRendezvous:
    """The rendezvous of one capture."""

    def __init__(self) -> None:
        self._waiting: dict[Marker, Waiting] = {}  # by what the others wait for
        self._words: dict[RendezvousGpu, int] = {}
        self._count = 0

    @property
    def count(self) -> int:
        """How many there are."""
        return self._count

    def offer(self, guest: Guest, awaited: Sequence[Marker], words: int) -> bool:
        """Let a deferred launch meet those that wait for it, or remember it.

        Args:
            guest: Who has put the launch off.
            awaited: What it waits for, of other GPUs.
            words: Of the launch, for each of them.

        Returns:
            Whether somebody has to launch it later: no, if it cannot meet anybody.
        """
        last, group = guest.last, frozenset(awaited)
        if last is None or self._count == MAX_RENDEZVOUS or len(group) < len(awaited):
            return False
        if len(group) > MAX_PEERS or len(group) * words * WORD_NBYTES > SPACING:
            return False
        own = Waiting(guest, last, group, words)
        group |= {last}
        there = [self._waiting[m] for m in awaited if m in self._waiting]
        if not all(other.is_of(group, words) for other in there):
            return False
        if len(there) < len(awaited):
            self._waiting[last] = own
            return True
        for other in there:
            del self._waiting[other.last]
        self._launch([*there, own])
        return True

    def _launch(self, group: Sequence[Waiting]) -> None:
        """Launch those that meet; each has words for every other one, in the order of the group."""
        starts = [self._place(w.guest.gpu) for w in group]
        self._count += 1
        step = WORD_NBYTES * group[0].words
        for i, waiting in enumerate(group):
            others = [k for k in range(len(group)) if k != i]
            waiting.guest.launch_rendezvous(
                [
                    (starts[i] + step * (k - (k > i)), starts[k] + step * (i - (i > k)))
                    for k in others
                ]
            )

    def forget(self, guest: Guest) -> None:
        """Forget a launch that its guest enqueues otherwise."""
        self._waiting = {k: w for k, w in self._waiting.items() if w.guest is not guest}

    def free(self) -> None:
        """Give the words back, behind what is enqueued."""
        words, self._words = self._words, {}
        for gpu, address in words.items():
            gpu.free(address)

    def _place(self, gpu: RendezvousGpu) -> int:
        """Return the address of a GPU's words for the next rendezvous."""
        if gpu not in self._words:
            self._words[gpu] = gpu.take_zeros(SPACING * MAX_RENDEZVOUS)
        return self._words[gpu] + SPACING * self._count


class RendezvousTurns:
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
