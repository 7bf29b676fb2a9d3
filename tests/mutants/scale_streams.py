"""STR, EVT: streams and events that go wrong only from some number on, or while work is long."""

from collections import deque
from collections.abc import Callable
from time import monotonic, sleep
from typing import Any

from ggsched.backend.base import BaseDevice, BaseEvent, BaseStream
from ggsched.backend.program_body import Command
from ggsched.backend.protocols import Event
from ggsched.errors import DeviceFault, SyncTimeout, UsageError
from tests.mutants.baselines import CPU
from tests.mutants.mutant import breaks
from tests.mutants.mutate_calls import ChangedWaits, share_queue, streams_beside

LOOK_S = 1e-4

# --- queue depth ------------------------------------------------------------------------------


@breaks("STR-1", "With two thousand commands in flight, the next one runs at once.", CPU)
class FullRingRunsAtOnce(BaseStream):
    """A ring that is full is bypassed."""

    def _submit(self, command: Command, work: Callable[[], None]) -> None:
        if self.progress.enqueued - self.progress.done >= 2000:
            work()
            super()._submit(command, lambda: None)
        else:
            super()._submit(command, work)


@breaks("STR-2", "More than fifteen hundred commands in flight are refused.", CPU)
class RingOfFifteenHundred(BaseStream):
    """The ring is full, and nobody waits for room."""

    def _submit(self, command: Command, work: Callable[[], None]) -> None:
        if self.progress.enqueued - self.progress.done >= 1500:
            raise UsageError("the queue is full", where=self.progress.where)
        super()._submit(command, work)


@breaks("STR-2", "With a hundred transfers on the way the next one waits for room.", CPU)
class RingOfAHundredTransfers(BaseStream):
    """Each transfer holds a block of a pool until it is complete."""

    def begin(self) -> None:
        self._ends: deque[int] = deque()

    def _submit(self, command: Command, work: Callable[[], None]) -> None:
        if command in ("upload", "download"):
            while self._ends and self._ends[0] <= self.progress.done:
                self._ends.popleft()
            if len(self._ends) >= 100:
                self.progress.require(self._ends[0], 20.0)
            self._ends.append(self.progress.enqueued + 1)
        super()._submit(command, work)


@breaks("STR-4", "From the ninth stream on, streams share the queue of the first.", CPU)
class NinthStreamSharesAQueue(BaseDevice):
    """There are eight hardware queues."""

    def create_stream(self) -> BaseStream:
        stream = super().create_stream()
        open_ones = [s for s in self._streams if not s.is_closed]
        if len(open_ones) <= 8:
            return stream
        first = min(open_ones, key=lambda s: int(s.progress.where.rsplit(" ", 1)[1]))
        return share_queue(stream, first)


@breaks("STR-5", "sync waits for the next thousand commands at most.", CPU)
class SyncCountsToAThousand(BaseStream):
    """A counter of ten bits."""

    def sync(self, timeout_s: float) -> None:
        self._require_usable()
        self.progress.require(min(self.progress.enqueued, self.progress.done + 1000), timeout_s)


# --- numbers of events and waits --------------------------------------------------------------


def _count(kept: dict[str, object], name: str) -> int:
    count = kept[name] = int(str(kept.get(name, 0))) + 1
    return count


@breaks("EVT-1", "From the 256th event of a device on, events are done when recorded.", CPU)
class EventNumbersWrap(BaseStream):
    """A slot has a number of eight bits."""

    def record(self, event: Event) -> None:
        super().record(event)
        if _count(self.device.__dict__, "records") >= 256 and isinstance(event, BaseEvent):
            event._position = 0


@breaks("EVT-2", "Of many waits in a row, the ninth and later ones are dropped.", CPU)
class NinthWaitIsDropped(BaseStream):
    """A list of at most eight events."""

    waits = 0

    def wait(self, event: Event) -> None:
        if isinstance(event, BaseEvent) and event.is_recorded and self.waits >= 8:
            return
        before = self.progress.enqueued
        super().wait(event)
        self.waits += self.progress.enqueued - before

    def _submit(self, command: Command, work: Callable[[], None]) -> None:
        super()._submit(command, work)
        if command != "wait for an event":
            self.waits = 0


@breaks("EVT-2", "From the hundredth wait of a stream on, waits are dropped.", CPU)
class HundredthWaitIsDropped(BaseStream):
    """A pool of semaphores runs dry."""

    def wait(self, event: Event) -> None:
        held = isinstance(event, BaseEvent) and event.is_pending
        if not held or _count(self.__dict__, "waits") < 100:
            super().wait(event)


@breaks(
    "EVT-4", "A stream waits for four events of other backends at a time; more are dropped.", CPU
)
class FifthForeignWaitIsDropped(BaseStream):
    """There are four threads that wait."""

    def wait(self, event: Event) -> None:
        is_pending = not isinstance(event, BaseEvent) and not event.is_done
        if not is_pending or _count(self.__dict__, "foreign") <= 4:
            super().wait(event)


@breaks("EVT-5", "The slot of a done event is reused by the 256th event after it.", CPU)
class EventSlotsAreReused(BaseStream):
    """The old handle shows the new event."""

    def record(self, event: Event) -> None:
        super().record(event)
        slots: list[BaseEvent] = self.device.__dict__.setdefault("slots", [])
        if isinstance(event, BaseEvent):
            slots.append(event)
            if len(slots) > 256:
                old = slots[-257]
                old._progress, old._position = event._progress, event._position


@breaks("EVT-6", "An event far behind a failed command looks good.", CPU)
class FailureIsForgotten(BaseEvent):
    """Of what went wrong, the last sixteen commands are remembered."""

    __slots__ = ()

    def sync(self, timeout_s: float) -> None:
        try:
            super().sync(timeout_s)
        except DeviceFault:
            progress = self._progress
            fault = None if progress is None else progress.fault
            if fault is None or self._position - fault.position <= 16:
                raise


@breaks("EVT-6", "An event's failure is not found if more was enqueued behind it.", CPU)
class FailureIsHidden(BaseEvent):
    """It is read from what the stream will copy before it goes on."""

    __slots__ = ()

    def sync(self, timeout_s: float) -> None:
        try:
            super().sync(timeout_s)
        except DeviceFault:
            progress = self._progress
            if progress is None or progress.enqueued == self._position:
                raise


# --- done too early, while a long command runs ------------------------------------------------


class _SeesBeginnings(BaseStream):
    """Knows which commands have begun. Subclasses take that for their end."""

    def begin(self) -> None:
        """Count from what has been enqueued."""
        self.begun = self.progress.enqueued

    def _submit(self, command: Command, work: Callable[[], None]) -> None:
        def run() -> None:
            self.begun += 1
            work()

        super()._submit(command if isinstance(command, str) else "launch", run)

    def await_begun(self, position: int, timeout_s: float) -> None:
        """Wait until a command has begun."""
        deadline = monotonic() + timeout_s
        while self.begun < position and self.progress.done < position:
            if monotonic() >= deadline:
                raise SyncTimeout("not begun", where=self.progress.where)
            sleep(LOOK_S)


@breaks("STR-5", "sync returns when the last command has begun.", CPU)
class SyncSeesTheBeginning(_SeesBeginnings):
    """The queue is empty, and the device is not idle."""

    def sync(self, timeout_s: float) -> None:
        self._require_usable()
        self.await_begun(self.progress.enqueued, timeout_s)
        self._require_usable()


@breaks("STR-3", "is_done is true when the last command has begun.", CPU)
class IsDoneSeesTheBeginning(_SeesBeginnings):
    """It asks whether the queue is empty."""

    @property
    def is_done(self) -> bool:
        return super().is_done or self.begun >= self.progress.enqueued


class _Early:
    """The progress of a stream, as its events see it: a command counts when it has begun."""

    def __init__(self, stream: _SeesBeginnings) -> None:
        self.stream = stream
        self.enqueued = stream.progress.enqueued

    @property
    def done(self) -> int:
        """How many commands have begun."""
        return max(self.stream.begun, self.stream.progress.done)

    def is_good(self, position: int) -> bool:
        """Whether that number has begun, and none has failed."""
        return self.done >= position and self.stream.progress.failure_before(position) is None

    def require(self, position: int, timeout_s: float) -> None:
        """Wait for the beginning."""
        self.stream.await_begun(position, timeout_s)
        self.stream.progress.require(min(position, self.stream.progress.done), timeout_s)


@breaks("EVT-1", "An event is done when the command before it has begun.", CPU)
class EventMarksTheBeginning(_SeesBeginnings):
    """It is signalled by the queue, not by the device."""

    def record(self, event: Event) -> None:
        super().record(event)
        if isinstance(event, BaseEvent) and not self.sink.is_capturing:
            early: Any = _Early(self)
            event._progress = early


@breaks("EVT-2", "A wait holds until the other stream's command has begun.", CPU)
class WaitSeesTheBeginning(_SeesBeginnings, ChangedWaits):
    """The wait is over when the other queue is empty."""

    def waiting_for(self, event: BaseEvent) -> Callable[[], None]:
        position = event._position
        owner: Any = next(s for s in streams_beside(self) if s.progress is event._progress)
        return lambda: owner.await_begun(position, 1.0)
