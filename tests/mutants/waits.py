"""EVT-2, EVT-4: waits that do not hold what they should."""

from collections.abc import Callable, Iterable
from time import monotonic

from ggsched.backend.base import BaseEvent, BaseStream
from ggsched.backend.program_body import Command
from ggsched.backend.protocols import Event
from ggsched_testing.sim import SimDevice, SimEvent, SimStream
from ggsched_testing.sim.engine import Task
from tests.mutants.baselines import CPU, SIM, SIM_APART, SIM_BARRIER
from tests.mutants.mutant import breaks
from tests.mutants.mutate_calls import ChangedWaits
from tests.mutants.streams import SHORT_S

# --- EVT-2 ------------------------------------------------------------------------------------


@breaks("EVT-2", "A wait holds the launches and not the transfer queue.", SIM_BARRIER)
class WaitHoldsLaunches(SimStream):
    """It is enqueued on the first of two internal queues."""

    def _hold(self, task: Task, event: SimEvent, notice: Task | None) -> None:
        rest, self.queues = self.queues[1:], self.queues[:1]
        super()._hold(task, event, notice)
        self.queues += rest


@breaks("EVT-2", "A wait holds the transfer queue and not the launches.", SIM_BARRIER)
class WaitHoldsTransfers(SimStream):
    """It is enqueued on the second of two internal queues."""

    def _hold(self, task: Task, event: SimEvent, notice: Task | None) -> None:
        first, self.queues = self.queues[:1], self.queues[1:]
        super()._hold(task, event, notice)
        self.queues = first + self.queues


@breaks("EVT-2", "A wait for an event of this device does nothing.", CPU)
class WaitIgnored(BaseStream):
    """Streams of one device are taken for ordered."""

    def wait(self, event: Event) -> None:
        if not isinstance(event, BaseEvent) or not event.is_pending:
            super().wait(event)


@breaks("EVT-2", "The fallback for events forgot to wait: it looks once and goes on.", CPU)
class FallbackForgotToWait(ChangedWaits):
    """It polls for a millisecond."""

    def waiting_for(self, event: BaseEvent) -> Callable[[], None]:
        def look() -> None:
            deadline = monotonic() + 0.001
            while not event.is_done and monotonic() < deadline:
                pass

        return look


@breaks("EVT-2", "Of several waits in a row only the last one holds.", CPU)
class LastWaitWins(BaseStream):
    """There is one place for an event to wait for."""

    def begin(self) -> None:
        self.awaited: Event | None = None

    def wait(self, event: Event) -> None:
        if isinstance(event, BaseEvent) and event.is_recorded:
            self._require_usable()
            self.awaited = event
        else:
            super().wait(event)

    def _submit(self, command: Command, work: Callable[[], None]) -> None:
        event, self.awaited = self.awaited, None
        if event is not None:
            super().wait(event)
        super()._submit(command, work)

    def record(self, event: Event) -> None:
        if self.awaited is not None:
            self._submit("nothing", lambda: None)
        super().record(event)


@breaks("EVT-2", "An event does not stand for the waits before it.", SIM)
class WaitsAreNotPassedOn(SimStream):
    """It covers the last piece of work; a third stream overtakes the first."""

    work: Task | None = None

    def _enqueue(self, task: Task) -> None:
        super()._enqueue(task)
        self.work = self.queues[0].last

    def recorded(self) -> Iterable[Task | None]:
        return [self.work]


# --- EVT-4 ------------------------------------------------------------------------------------


@breaks("EVT-4", "Events of other backends are ignored.", CPU)
class ForeignEventsIgnored(BaseStream):
    """What it does not know it does not wait for."""

    def wait(self, event: Event) -> None:
        if isinstance(event, BaseEvent):
            super().wait(event)


@breaks("EVT-4", "A wait for another backend's event blocks the caller.", CPU)
class ForeignWaitBlocksTheCaller(BaseStream):
    """The path says 'thread', and the thread is the host's."""

    def wait(self, event: Event) -> None:
        if not isinstance(event, BaseEvent):
            event.sync(SHORT_S)
        super().wait(event)


@breaks("EVT-4", "Events of another device are accepted though the path says 'host'.", SIM_APART)
class PathHostIsNotRefused(SimDevice):
    """They are accepted, and ignored."""

    def make_stream(self, number: int) -> SimStream:
        stream = super().make_stream(number)
        wait = stream.wait

        def ignore(event: Event) -> None:
            if event.device is self:
                wait(event)

        stream.wait = ignore  # type: ignore[method-assign]
        return stream


@breaks("EVT-4", "Events of another device of the same kind are not waited for.", SIM)
class SiblingsAreIgnored(SimStream):
    """The wait looks the event up among the device's own."""

    def notice_of(self, event: SimEvent) -> Task | None:
        return super().notice_of(event) if event.device is self.device else None


@breaks("EVT-4", "A stream records events of another device.", CPU)
class ForeignRecordAccepted(BaseStream):
    """Nothing is signalled to anybody."""

    def record(self, event: Event) -> None:
        if event.device is self.device:
            super().record(event)


@breaks("EVT-4", "A stream closes another backend's event when it has waited for it.", CPU)
class ForeignEventClosed(BaseStream):
    """It tidies up what is not its own."""

    def wait(self, event: Event) -> None:
        super().wait(event)
        if not isinstance(event, BaseEvent):
            self._submit("nothing", event.close)
