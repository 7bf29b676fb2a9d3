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

Rows are *pushed* if each product of the group can also write its row into the memory of every GPU,
and each program has an alternative (``PushedLaunch``) that reads rows there. In the alternative the
sum has no kernel of its own. Each rendezvous has its own memory for the rows, and replays of a
graph do not overlap, so no row is overwritten before it is read.

Thread blocks of such a kernel occupy all multiprocessors of their GPU while they wait. Two things
would be a deadlock, and rows are not pushed there: work of another stream of this GPU that another
GPU waits for first, and the kernels of another rendezvous that wait at the same time.
"""

import ctypes
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from ggsched_cuda import driver
from ggsched_cuda.deferred import MirroredLaunch
from ggsched_cuda.driver import Step
from ggsched_cuda.event import EventPool, Marker
from ggsched_kernels.calls import MAX_PEERS

WORD_NBYTES: Final = 4
SPACING: Final = 128
"""Bytes from the words of one rendezvous to those of the next; a line of memory."""
PLACES: Final = 2 * MAX_PEERS + 1
"""Arguments of a kernel for a rendezvous."""

Words = tuple[int, int]
"""Addresses of words that a kernel waits for, and of those that it sets."""
MAX_RENDEZVOUS: Final = 512
"""Of a graph."""
STAGED_NBYTES: Final = 1 << 20
"""Memory for rows is allocated by this, if rows are not longer."""


class Staged(NamedTuple):
    """Addresses of pushed rows, side by side, and of a word that is 0 between two replays."""

    rows: int
    word: int


class RendezvousLaunch(NamedTuple):
    """A launch that can meet those of other GPUs.

    Attributes:
        places: Its arguments for that: for each other one its own words and the other's, then
            nanoseconds of patience.
        words: Words of each; addresses are 0 where it does not meet.
    """

    places: tuple[ctypes.c_uint64, ...]
    words: int


class PushedLaunch(NamedTuple):
    """A launch that replaces the first ones of a program, if rows are pushed.

    Attributes:
        step: The call of the driver, and its arguments.
        places: Its arguments for that: the address of the rows, that of a word, then as those of a
            launch that meets others.
        covered: How many launches it replaces.
        rows: Addresses of the rows, as their products write them, in the order of the sum.
        nbytes: Length of a row.
    """

    step: Step
    places: tuple[ctypes.c_uint64, ...]
    covered: int
    rows: tuple[int, ...]
    nbytes: int


class RendezvousGpu(EventPool, Protocol):
    """What rendezvous use of a GPU, a ``CudaContext``."""

    def take_zeros(self, nbytes: int) -> int:
        """Return the address of device memory that holds zeros."""

    def free(self, address: int) -> None:
        """Free memory when all that is enqueued now is complete."""


class Participant(Protocol):
    """A stream of a capture that waits for other GPUs before its next launch.

    Attributes:
        last: What was recorded behind its last command, if nothing came since.
    """

    last: Marker | None

    @property
    def gpu(self) -> RendezvousGpu:
        """The GPU."""

    @property
    def seen(self) -> Mapping["Participant", int]:
        """How many records of each stream are before what was recorded last, that one included."""

    @property
    def pushed(self) -> PushedLaunch | None:
        """The alternative of the deferred launch, if it has one."""

    @property
    def producer(self) -> MirroredLaunch | None:
        """The launch in front of what was recorded last, if it can write to other GPUs too."""

    def launch_producer(self, places: Sequence[int]) -> None:
        """Enqueue that launch, which writes its result to other places too."""

    def launch_rendezvous(self, words: Sequence[Words], staged: Staged | None) -> None:
        """Enqueue the deferred launch, which meets others; the alternative if rows are pushed."""


class Waiting(NamedTuple):
    """A deferred launch.

    Attributes:
        last: What its participant recorded last, which the others wait for.
        awaited: What it waits for, of other GPUs.
        words: Of the launch.
    """

    participant: Participant
    last: Marker
    awaited: frozenset[Marker]
    words: int

    def is_of(self, group: frozenset[Marker], words: int) -> bool:
        """Whether it waits for all of a group but itself, and nothing came since."""
        is_last = self.participant.last is self.last
        return is_last and self.words == words and self.awaited == group - {self.last}


class CaptureRendezvous:
    """The rendezvous of one capture."""

    def __init__(self) -> None:
        self._waiting: dict[Marker, Waiting] = {}  # by what the others wait for
        self._words: dict[RendezvousGpu, int] = {}
        self._rooms: dict[RendezvousGpu, tuple[int, int]] = {}  # the rest: address and bytes
        self._owned: list[tuple[RendezvousGpu, int]] = []
        # Whose launch with pushed rows was the last of a GPU, and which record of it is behind it.
        self._occupied: dict[RendezvousGpu, tuple[Participant, int]] = {}
        self._count = 0

    @property
    def count(self) -> int:
        """How many there are."""
        return self._count

    def offer(self, participant: Participant, awaited: Sequence[Marker], words: int) -> bool:
        """Let a deferred launch meet those that wait for it, or remember it.

        Args:
            participant: Who has put the launch off.
            awaited: What it waits for, of other GPUs.
            words: Of the launch, for each of them.

        Returns:
            Whether somebody has to launch it later: no, if it cannot meet anybody.
        """
        last, group = participant.last, frozenset(awaited)
        if last is None or self._count == MAX_RENDEZVOUS or len(group) < len(awaited):
            return False
        if len(group) > MAX_PEERS or len(group) * words * WORD_NBYTES > SPACING:
            return False
        own = Waiting(participant, last, group, words)
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
        starts = [self._place(w.participant.gpu) for w in group]
        self._count += 1
        step = WORD_NBYTES * group[0].words
        staged = self._push(group, starts)
        for i, waiting in enumerate(group):
            others = [k for k in range(len(group)) if k != i]
            words = [
                (starts[i] + step * (k - (k > i)), starts[k] + step * (i - (i > k))) for k in others
            ]
            waiting.participant.launch_rendezvous(words, staged[i] if staged else None)

    def _push(self, group: Sequence[Waiting], starts: Sequence[int]) -> list[Staged]:
        """Launch the products of a group so that each GPU gets all rows; return where these are.

        If rows cannot be pushed, nothing is launched and the list is empty.

        Args:
            group: The launches that meet.
            starts: The address of the words of each.
        """
        participants = [waiting.participant for waiting in group]
        wanted = [participant.pushed for participant in participants]
        made = [participant.producer for participant in participants]
        first = wanted[0]
        if first is None or len(first.rows) != len(group) or group[0].words != 1:
            return []
        if any(p is None or (p.rows, p.nbytes) != (first.rows, first.nbytes) for p in wanted):
            return []
        rows = [(p.source, p.nbytes) for p in made if p is not None]
        if sorted(rows) != sorted((row, first.nbytes) for row in first.rows):
            return []
        if not all(self._may_occupy(participant, participants) for participant in participants):
            return []
        nbytes = len(group) * first.nbytes
        staged = [
            Staged(self._stage(participant.gpu, nbytes), start + SPACING - WORD_NBYTES)
            for participant, start in zip(participants, starts, strict=True)
        ]
        for participant, (row, _) in zip(participants, rows, strict=True):
            at = first.rows.index(row) * first.nbytes
            participant.launch_producer([place.rows + at for place in staged])
            self._occupied[participant.gpu] = participant, participant.seen[participant] + 1
        return staged

    def _may_occupy(self, participant: Participant, participants: Sequence[Participant]) -> bool:
        """Return whether a kernel may occupy a whole GPU while it waits for the other participants.

        All work of the GPU's other streams that the others wait for has to be complete when the
        kernel begins, and so has another stream's kernel with pushed rows.
        """
        behind = participant.seen
        last, number = self._occupied.get(participant.gpu, (participant, 0))
        if last is not participant and behind.get(last, 0) < number:
            return False
        return all(
            count <= behind.get(stream, 0)
            for other in participants
            for stream, count in other.seen.items()
            if stream.gpu is participant.gpu and stream is not participant
        )

    def forget(self, participant: Participant) -> None:
        """Forget a launch that its participant enqueues otherwise."""
        self._waiting = {k: w for k, w in self._waiting.items() if w.participant is not participant}

    def free(self) -> None:
        """Give all memory back, behind what is enqueued."""
        owned, self._owned = self._owned, []
        self._words, self._rooms = {}, {}
        for gpu, address in owned:
            gpu.free(address)

    def _place(self, gpu: RendezvousGpu) -> int:
        """Return the address of a GPU's words for the next rendezvous."""
        if gpu not in self._words:
            self._words[gpu] = self._take(gpu, SPACING * MAX_RENDEZVOUS)
        return self._words[gpu] + SPACING * self._count

    def _stage(self, gpu: RendezvousGpu, nbytes: int) -> int:
        """Return the address of memory of a GPU for the rows of one rendezvous."""
        nbytes = -(-nbytes // SPACING) * SPACING
        start, room = self._rooms.get(gpu, (0, 0))
        if room < nbytes:
            room = max(nbytes, STAGED_NBYTES)
            start = self._take(gpu, room)
        self._rooms[gpu] = start + nbytes, room - nbytes
        return start

    def _take(self, gpu: RendezvousGpu, nbytes: int) -> int:
        address = gpu.take_zeros(nbytes)
        self._owned.append((gpu, address))
        return address


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
