"""EVT-1, EVT-3, EVT-5, EVT-6: events that stand for something else."""

from collections.abc import Iterable
from contextlib import suppress

from ggsched.backend import checks
from ggsched.backend.base import BaseEvent, BaseStream
from ggsched.backend.events import lasting_wait
from ggsched.backend.progress import Progress
from ggsched.backend.protocols import Buffer, Event, HostMemory
from ggsched.errors import DeviceFault, GgschedError, SyncTimeout, UsageError
from ggsched_testing.sim import SimEvent, SimStream
from ggsched_testing.sim.engine import Task
from tests.mutants.baselines import CPU, SIM, SIM_TWO_QUEUES
from tests.mutants.mutant import breaks

# --- EVT-1 ------------------------------------------------------------------------------------


@breaks("EVT-1", "An event covers the launches and not the transfer queue.", SIM_TWO_QUEUES)
class EventCoversLaunches(SimStream):
    """It is recorded on the first of two internal queues."""

    def recorded(self) -> Iterable[Task | None]:
        return [self.queues[0].last]


@breaks("EVT-1", "An event covers the transfer queue and not the launches.", SIM_TWO_QUEUES)
class EventCoversTransfers(SimStream):
    """It is recorded on the second of two internal queues."""

    def recorded(self) -> Iterable[Task | None]:
        return [self.queues[1].last]


@breaks("EVT-1", "The record is taken before the last command.", CPU)
class RecordedTooEarly(BaseEvent):
    """Off by one."""

    __slots__ = ()

    def mark(self, progress: Progress) -> None:
        super().mark(progress)
        self._position -= 1


@breaks("EVT-1", "An event stands for whatever its stream has when it is queried.", CPU)
class EventStandsForTheStream(BaseEvent):
    """The record is not a point but the stream."""

    __slots__ = ()

    def sync(self, timeout_s: float) -> None:
        if self._progress is not None:
            self._position = self._progress.enqueued
        super().sync(timeout_s)


@breaks("EVT-1", "A fresh event is done.", CPU)
class FreshEventIsDone(BaseEvent):
    """As in a library where an event that was not recorded is complete."""

    __slots__ = ()

    @property
    def is_done(self) -> bool:
        return not self.is_recorded or super().is_done


# --- EVT-3 ------------------------------------------------------------------------------------


@breaks("EVT-3", "A wait for an event that was not recorded does nothing.", CPU)
class WaitBeforeRecordAccepted(BaseStream):
    """The wait is lost when the event is recorded after it."""

    def wait(self, event: Event) -> None:
        if event.is_recorded:
            super().wait(event)


@breaks("EVT-3", "Recording an event again moves it.", CPU)
class RecordedTwiceAccepted(BaseStream):
    """Who waits for it waits for something else now."""

    def record(self, event: Event) -> None:
        if isinstance(event, BaseEvent):
            event._progress = None
        super().record(event)


@breaks("EVT-3", "sync of an event that was not recorded returns.", CPU)
class SyncOfFreshEventReturns(BaseEvent):
    """Nothing was promised, so nothing is waited for."""

    __slots__ = ()

    def sync(self, timeout_s: float) -> None:
        if self.is_recorded:
            super().sync(timeout_s)


@breaks("EVT-3", "A wait records an event that was not.", SIM)
class WaitRecords(SimStream):
    """The stream waits for itself."""

    def wait(self, event: Event) -> None:
        if not event.is_recorded:
            self.record(event)
        super().wait(event)


# --- EVT-5 ------------------------------------------------------------------------------------


@breaks("EVT-5", "An event that was done is not any more when its stream goes on.", CPU)
class DoneEventForgets(BaseEvent):
    """It looks at the stream, not at its own position."""

    __slots__ = ()

    @property
    def is_done(self) -> bool:
        progress = self._progress
        return super().is_done and progress is not None and progress.done >= progress.enqueued


@breaks("EVT-5", "A timeout of an event's sync poisons its stream.", CPU)
class EventTimeoutPoisons(BaseEvent):
    """Who asks too early is punished."""

    __slots__ = ()

    def sync(self, timeout_s: float) -> None:
        try:
            super().sync(timeout_s)
        except SyncTimeout as error:
            if self._progress is not None:
                self._progress.fail("sync", error)
            raise


@breaks("EVT-5", "sync of an event returns at once.", SIM)
class EventSyncReturnsAtOnce(SimEvent):
    """What it stands for may not have begun."""

    def sync(self, timeout_s: float) -> None:
        if self.task is None:
            super().sync(timeout_s)


@breaks("EVT-5", "A download is in host memory after the stream's sync, not after an event's.", CPU)
class DownloadLandsAtSync(BaseStream):
    """The library copies out of its staging memory in one place only."""

    def begin(self) -> None:
        self.staged: list[tuple[memoryview, HostMemory]] = []

    def download(self, buffer: Buffer, offset: int, target: HostMemory) -> None:
        if target.readonly:
            super().download(buffer, offset, target)
        staging = memoryview(bytearray(target.nbytes))
        super().download(buffer, offset, staging)
        self.staged.append((staging, target))

    def sync(self, timeout_s: float) -> None:
        super().sync(timeout_s)
        for staging, target in self.staged:
            target[:] = staging
        self.staged.clear()


@breaks("EVT-5", "Closing an event that is not done is refused.", CPU)
class CloseOfPendingEventRefused(BaseEvent):
    """The caller has to keep it and wait."""

    __slots__ = ()

    def close(self) -> None:
        if not self._is_closed and self.is_pending:
            raise UsageError("the event is not done", where=self.device.facts.name)
        super().close()


# --- EVT-6 ------------------------------------------------------------------------------------


@breaks("EVT-6", "sync of an event whose work failed returns as if nothing had been.", CPU)
class FailedEventLooksGood(BaseEvent):
    """The failure is swallowed."""

    __slots__ = ()

    def sync(self, timeout_s: float) -> None:
        with suppress(DeviceFault):
            super().sync(timeout_s)


@breaks("EVT-6", "An event whose work failed is never done.", CPU)
class FailedEventHangs(BaseEvent):
    """The command that would have signalled it did not run."""

    __slots__ = ()

    def sync(self, timeout_s: float) -> None:
        try:
            super().sync(timeout_s)
        except DeviceFault as error:
            raise SyncTimeout("the event is not done", where=self.device.facts.name) from error

    @property
    def is_done(self) -> bool:
        return super().is_done and not self.is_pending


@breaks("EVT-6", "A stream that waits for a failed event goes on.", CPU)
class WaiterIgnoresFailure(BaseStream):
    """It has waited; what for is not its business."""

    def wait(self, event: Event) -> None:
        self._require_usable()

        def wait() -> None:
            with suppress(DeviceFault):
                event.sync(self.device.event_timeout_s)

        if isinstance(event, BaseEvent) and event.is_recorded:
            self._submit("wait for an event", wait)
        else:
            super().wait(event)


@breaks("EVT-6", "Only the stream that waited for a foreign event learns that it failed.", CPU)
class ForeignFailureStays(BaseStream):
    """It is written down where ``sync`` looks, and events do not."""

    def wait(self, event: Event) -> None:
        if isinstance(event, BaseEvent):
            super().wait(event)
            return
        self._require_usable()
        checks.check_wait(self.device, event)
        kept, wait_for = self.__dict__, lasting_wait(event, self.device.event_timeout_s)

        def wait() -> None:
            try:
                wait_for()
            except GgschedError as error:
                kept["failure"] = error

        self._submit("wait for an event", wait)

    def sync(self, timeout_s: float) -> None:
        super().sync(timeout_s)
        failure = self.__dict__.get("failure")
        if failure is not None:
            raise DeviceFault("wait for an event failed", why=str(failure)) from failure


@breaks("EVT-6", "record on a poisoned stream raises and records nothing.", CPU)
class PoisonedRecordIsLost(BaseStream):
    """Whoever is to wait for the event never learns of the fault."""

    def record(self, event: Event) -> None:
        self._require_usable()
        super().record(event)


@breaks("EVT-6", "A fault reaches back to events that were recorded before it.", CPU)
class FaultReachesBack(BaseEvent):
    """It looks at the stream, not at its own position."""

    __slots__ = ()

    def sync(self, timeout_s: float) -> None:
        super().sync(timeout_s)
        if self._progress is not None and self._progress.fault is not None:
            raise self._progress.fault.error()
