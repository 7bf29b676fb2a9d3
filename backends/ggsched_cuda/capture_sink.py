"""Where commands of a captured stream go: into the graph of the capture."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol

from ggsched.backend.capture_errors import capturing_error, outside_error
from ggsched.backend.protocols import Event, HostMemory
from ggsched.backend.queued.command_queue import CommandSink, Launchable
from ggsched_cuda import driver, transfers
from ggsched_cuda.async_errors import FaultWords
from ggsched_cuda.deferred import DeferredCommands, MirroredLaunch, Move, holding
from ggsched_cuda.driver import CudaError, Step
from ggsched_cuda.event import CudaEvent, Marker, Point
from ggsched_cuda.pinned import PinnedBlock
from ggsched_cuda.queue import CudaQueue
from ggsched_cuda.rendezvous import (
    PLACES,
    CaptureRendezvous,
    Participant,
    PushedLaunch,
    RendezvousLaunch,
    Staged,
    Words,
)
from ggsched_cuda.small_kernels import make_transfers

MOVED_NBYTES: Final = 4 << 20
"""Shorter captured transfers are made by kernels."""


class Captured:
    """What the graph of a capture uses.

    Args:
        before: Markers behind what the streams were given before.
        abort: Aborts the capture.

    Attributes:
        keeps: Host memory and buffers.
        forgets: Calls that forget what the graph's host calls need, and give their memory back.
        words: Fault words that the graph's kernels may write.
        rendezvous: Of its kernels.
        owed: Events behind the deferred first launch of a program, and its stream.
        unrecorded: Markers behind the deferred last launch of a program, and its stream.
        seen: How many records of each stream are before each marker, its own included.
    """

    def __init__(self, before: list[Marker], abort: Callable[[], None]) -> None:
        self.before = before
        self.abort = abort
        self.keeps: list[Any] = []
        self.forgets: list[Callable[[], None]] = []
        self.words: set[FaultWords] = set()
        self.rendezvous = CaptureRendezvous()
        self.owed: dict[CudaEvent, CapturingSink] = {}
        self.unrecorded: dict[Marker, CapturingSink] = {}
        self.seen: dict[Marker, dict[Participant, int]] = {}
        self.forgets.append(self.rendezvous.free)


class MirrorProgram(Launchable, Protocol):
    """A program whose last call may write its result to the host or to other GPUs too.

    Its first call may be launched with PDL or in turn, and may meet one of another GPU.
    """

    sending: MirroredLaunch | None
    in_turn: Step | None
    rendezvous: RendezvousLaunch | None
    pushed: PushedLaunch | None


class CapturingSink(CommandSink):
    """Writes the commands of one stream into the graph of a capture.

    Args:
        queue: Where they go otherwise.
        captured: What the graph uses; the same for all streams of the capture.

    Attributes:
        last: What was recorded behind the last command, if nothing but short transfers came since.
        seen: How many records of each stream are before what was recorded last, that one included.
    """

    is_capturing = True

    def __init__(self, queue: CudaQueue, captured: Captured) -> None:
        self.name = queue.name
        self.captured = captured
        self.gpu, self.handle = queue.gpu, queue.handle
        self._queue = queue
        self._is_behind_peer = False  # whether the next command is the first behind another GPU
        self._behind: list[Marker] = []  # of other GPUs, that the next command waits for
        self._held: tuple[MirrorProgram, Sequence[Step]] | None = None  # may meet another launch
        self.last: Marker | None = None
        self.seen: dict[Participant, int] = {}
        self._awaited: dict[Participant, int] = {}  # the same of all that the stream waits for
        self._records = 0
        self._deferred = DeferredCommands(
            partial(make_transfers, queue.gpu, queue.handle), queue.refused
        )

    def give(self, command: str, enqueue: Callable[[], None], *, is_timed: bool = True) -> None:
        """Capture a command; the backlog is paused, and nothing of a capture has times."""
        self.gpu.enter()  # another GPU's stream may be part of the capture
        if self._queue.times is not None:
            self._queue.times.latest()
        try:
            enqueue()
        except CudaError as error:
            raise self._queue.refused(command, error) from error

    def upload(self, source: HostMemory, memory: int, offset: int) -> None:
        """Copy host bytes to the device."""
        transfers.upload(self, source, memory + offset)

    def download(self, memory: int, offset: int, target: HostMemory) -> None:
        """Copy bytes of the device to the host."""
        transfers.download(self, memory + offset, target)

    def copy(self, src: int, src_offset: int, dst: int, dst_offset: int, nbytes: int) -> None:
        """Copy between GPUs that reach each other, or within one."""
        self.flush()
        self._queue.copy(src, src_offset, dst, dst_offset, nbytes)

    def fill(self, memory: int, offset: int, nbytes: int, pattern: bytes) -> None:
        """Set bytes of the device to a repeated pattern, by a memset node."""
        self.flush()
        self._queue.fill(memory, offset, nbytes, pattern)

    def launch(self, program: "MirrorProgram", steps: Sequence[Step]) -> None:
        """Run the steps of a program.

        The last one is deferred if it can send its result, all of them if the first one may meet
        the launches of other GPUs that it waits for.
        """
        if (
            program.rendezvous is not None
            and self._behind
            and self._held is None
            and not self._is_behind_peer
        ):
            self._held = program, steps
            if self.captured.rendezvous.offer(self, self._behind, program.rendezvous.words):
                return
            self._held = None
        self.flush()
        self._launch(program, steps)

    @property
    def pushed(self) -> PushedLaunch | None:
        """The alternative of the deferred first launch, if it has one."""
        return self._held[0].pushed if self._held is not None else None

    @property
    def producer(self) -> MirroredLaunch | None:
        """The deferred launch in front of what was recorded last, if GPUs can have its result."""
        return self._deferred.producer

    def launch_producer(self, places: Sequence[int]) -> None:
        """Enqueue that launch, which writes its result to memory of GPUs too."""
        self.gpu.enter()
        self._deferred.launch_now(places)

    def launch_rendezvous(self, words: Sequence[Words], staged: Staged | None) -> None:
        """Enqueue the deferred launch, which meets other GPUs' by words in memory.

        Args:
            staged: Where rows have been pushed to; the program's alternative is launched. None if
                they have not been pushed.
        """
        assert self._held is not None
        (program, steps), self._held = self._held, None
        self._behind = []
        self.last = None
        self.settle()
        self._deferred.flush()
        given = [address for pair in words for address in pair]
        given += [0] * (PLACES - 1 - len(given))
        given.append(int(self._queue.patience_s * 1e9))
        if staged is None:
            assert program.rendezvous is not None
            with holding(program.rendezvous.places, given):
                self._launch(program, steps)
        else:
            assert program.pushed is not None
            with holding(program.pushed.places, [*staged, *given]):
                self._launch_pushed(program, program.pushed, steps)
        self.last = self._record_owed()

    def _launch_pushed(
        self, program: MirrorProgram, pushed: PushedLaunch, steps: Sequence[Step]
    ) -> None:
        self.captured.words.add(self._queue.words)
        labels = program.labels[pushed.covered - 1 :]
        if self._queue.run_steps([pushed.step], labels):
            self._run(steps[pushed.covered :], labels[1:], program.sending)

    def _launch(self, program: "MirrorProgram", steps: Sequence[Step]) -> None:
        if program.checks_ids:
            self.captured.words.add(self._queue.words)
        sending = program.sending
        if self._is_behind_peer and program.in_turn is not None:
            # A launch with PDL is ordered with its predecessor by an edge of a kind that is for
            # kernels of one GPU.
            if sending is not None and len(steps) == 1:
                sending = sending._replace(step=program.in_turn)
            steps = (program.in_turn, *steps[1:])
        self._is_behind_peer = False
        self._run(steps, program.labels, sending)

    def _run(
        self, steps: Sequence[Step], labels: Sequence[str], sending: MirroredLaunch | None
    ) -> None:
        """Enqueue steps, and defer the last one if its result may go to other places."""
        now = steps if sending is None else steps[:-1]
        if self._queue.run_steps(now, labels) and sending is not None:
            self._deferred.launch(sending)

    def require_eager(self, what: str) -> None:
        """Refuse what a captured stream cannot do (CAP-2)."""
        raise capturing_error(what, self.name)

    def abort(self) -> None:
        """Abort the capture."""
        self.captured.abort()

    def record(self, event: CudaEvent) -> None:
        """Let an event stand for everything captured so far; later, if a launch is deferred."""
        if self._held is not None:
            self.captured.owed[event] = self
            event.mark(Point(None, (), self.name), self.captured)
            return
        if self._behind or self.producer is None:
            self.flush()
        self.last = marker = self._marker()
        event.mark(Point(marker, (), self.name), self.captured)

    def wait(self, event: Event) -> None:
        """Wait for an event that was recorded in this capture.

        Raises:
            UsageError: an event from outside (CAP-2).
        """
        if not isinstance(event, CudaEvent) or event.capture is not self.captured:
            raise outside_error(self.name)
        if event in self.captured.owed:
            self.captured.owed[event].flush()
        point = event.recorded
        assert isinstance(point, Point)  # it was recorded in a capture
        marker = point.marker
        assert marker is not None
        self.captured.keeps.append(marker)
        if marker.gpu is not self.gpu:
            if self.last is None or self._held is not None:
                self.flush()
            self._behind.append(marker)
        else:
            self.flush()
            self._enqueue_wait(marker)
        for stream, count in self.captured.seen[marker].items():
            self._awaited[stream] = max(count, self._awaited.get(stream, 0))

    def _enqueue_wait(self, marker: Marker) -> None:
        """Let later commands wait for a marker, which is recorded first if it was deferred."""
        owner = self.captured.unrecorded.get(marker)
        if owner is not None:
            owner.settle()
            self.gpu.enter()
        driver.enqueue_wait(self.handle, marker.handle)

    def settle(self) -> None:
        """Record the markers that were deferred, and enqueue the launch before them."""
        self.gpu.enter()
        if self.captured.unrecorded and self in self.captured.unrecorded.values():
            self._deferred.flush()
            self._record_all()

    def _marker(self) -> Marker:
        """Return a marker behind the last command; recorded later, if that is deferred."""
        if self.producer is None:
            marker = Marker.behind(self.gpu, self.handle)
        else:
            marker = Marker(self.gpu)
            self.captured.unrecorded[marker] = self
        self._records += 1
        self.seen = {**self._awaited, self: self._records}
        self.captured.seen[marker] = self.seen
        return marker

    def _record_all(self) -> None:
        """Record the deferred markers of this stream, behind all that is enqueued."""
        for marker in [m for m, sink in self.captured.unrecorded.items() if sink is self]:
            del self.captured.unrecorded[marker]
            marker.record(self.handle)

    def unfinished(self) -> list[Marker]:
        """Return markers behind what is not complete: nothing of the capture runs."""
        return [m for m in self.captured.before if not m.is_done()]

    def flush(self) -> None:
        """Hand over what was deferred, before something else."""
        self.settle()
        self.last = None
        self._deferred.flush()
        behind, self._behind = self._behind, []
        for marker in behind:
            self._enqueue_wait(marker)
            self._is_behind_peer = True
        if self._held is not None:
            self.captured.rendezvous.forget(self)
            (program, steps), self._held = self._held, None
            self._launch(program, steps)
            self._record_owed()
            self.settle()
            self._deferred.flush()

    def _record_owed(self) -> Marker | None:
        """Record what was deferred behind a launch; return the point, if anything was."""
        owed = [event for event, sink in self.captured.owed.items() if sink is self]
        if not owed:
            return None
        if self.producer is None:
            self._deferred.flush()
        marker = self._marker()
        for event in owed:
            del self.captured.owed[event]
            event.mark(Point(marker, (), self.name), self.captured)
        return marker

    def takes(self, move: Move, memory: Any) -> bool:
        """Leave a transfer to a kernel, if it is short.

        A graph of kernels alone is launched quicker than one with copies, and several transfers
        in a row are one kernel, or none (``ggsched_cuda.deferred``).
        """
        if move.nbytes > MOVED_NBYTES:
            self.flush()
            return False
        if self._behind or self._held is not None:
            self.flush()
        # What was recorded last stays: the transfer waits for no other stream, so that a rendezvous
        # behind it reports more to others than they wait for, and never in a circle.
        self.captured.keeps.append(memory)
        self._deferred.move(move)
        return True

    def hold(self, memory: Any) -> None:
        """Keep host memory as long as the graph is open."""
        self.captured.keeps.append(memory)

    def call(self, to: int, source: int, nbytes: int, holds: Any) -> None:
        """Let a thread of the driver copy host memory at each replay."""
        self.flush()
        forget = self.gpu.host_calls.enqueue(self.handle, to, source, nbytes, holds, often=True)
        self.captured.forgets.append(forget)

    def stage(self, nbytes: int) -> PinnedBlock:
        """Return a pinned block; nobody else uses it until the graph has gone or is another one."""
        self.flush()
        block = self.gpu.pinned.take(nbytes)
        self.captured.forgets.append(partial(self.gpu.pinned.give, block))
        return block
