"""ERR-1, ERR-2, EVT-6: failures that do not go far enough, and errors that are worn out."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ggsched.backend.base import BaseEvent, BaseStream
from ggsched.backend.program_body import Command
from ggsched.backend.protocols import Event
from ggsched.errors import DeviceFault, GgschedError, UsageError
from tests.mutants.baselines import CPU
from tests.mutants.errors import _GoesOn
from tests.mutants.mutant import breaks
from tests.mutants.mutate_calls import ChangedWaits

# --- ERR-2: the error objects -----------------------------------------------------------------


@breaks("ERR-2", "Each report of a fault raises one and the same object.", CPU)
class OneErrorObject(BaseStream):
    """It is kept, and grows a longer traceback each time."""

    def sync(self, timeout_s: float) -> None:
        try:
            super().sync(timeout_s)
        except DeviceFault as error:
            raise self.__dict__.setdefault("kept", error) from error.__cause__


@breaks("ERR-2", "A fault does not say what caused it.", CPU)
class FaultWithoutCause(BaseStream):
    """Its text is all that is left."""

    def sync(self, timeout_s: float) -> None:
        try:
            super().sync(timeout_s)
        except DeviceFault as error:
            raise DeviceFault(error.what, where=error.where, why=error.why) from None


@breaks("ERR-2", "The second report of a fault has another cause than the first.", CPU)
class CausesPileUp(BaseStream):
    """Each report is caused by the one before."""

    def sync(self, timeout_s: float) -> None:
        try:
            super().sync(timeout_s)
        except DeviceFault as error:
            last = self.__dict__.get("last")
            self.__dict__["last"] = error
            raise error from (last or error.__cause__)


@breaks("ERR-2", "Of two failures the later one is named.", CPU)
class LastFailureIsNamed(_GoesOn):
    """The place for a failure is overwritten."""

    def _submit(self, command: Command, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            except Exception as error:
                name = command if isinstance(command, str) else command.failed_node(error)
                self.first = (name, error)

        _submit_plainly(self, command, run)


def _submit_plainly(stream: Any, command: Command, work: Callable[[], None]) -> None:
    """Submit as the unbroken stream does."""
    super(_GoesOn, stream)._submit(command, work)


# --- ERR-2: lanes -----------------------------------------------------------------------------


class _SomeRun(_GoesOn):
    """Behind a failure some commands run."""

    def runs(self, command: Command) -> bool:
        """Whether a command runs."""
        return False

    def _submit(self, command: Command, work: Callable[[], None]) -> None:
        runs = self.runs(command)

        def run() -> None:
            try:
                if self.first is None or runs:
                    work()
            except Exception as error:
                name = command if isinstance(command, str) else command.failed_node(error)
                self.first = self.first or (name, error)

        _submit_plainly(self, command, run)


@breaks("ERR-2", "Replays behind a wait that has failed run.", CPU)
class ReplaysRunBehindAFailure(_SomeRun):
    """The graph is a queue of its own."""

    def runs(self, command: Command) -> bool:
        return type(command).__name__ == "_Replay"


@breaks("ERR-2", "Downloads behind a wait that has failed run.", CPU)
class DownloadsRunBehindAFailure(_SomeRun):
    """They have a queue of their own."""

    def runs(self, command: Command) -> bool:
        return command == "download"


@breaks("ERR-2", "The hundredth command behind a wait that has failed runs.", CPU)
class FailureEndsAfterAWhile(_GoesOn):
    """What is dropped is counted, and the counter is small."""

    dropped = 0

    def follow(self, work: Callable[[], None]) -> None:
        self.dropped += 1
        if self.dropped > 99:
            work()


# --- EVT-6 ------------------------------------------------------------------------------------


@breaks("EVT-6", "The failure of a stream goes as far as the next stream, and no further.", CPU)
class FailureTravelsOnce(BaseEvent):
    """Who has failed by waiting looks good to others."""

    __slots__ = ()

    def sync(self, timeout_s: float) -> None:
        try:
            super().sync(timeout_s)
        except DeviceFault as error:
            if "wait for an event" not in error.what:
                raise

    def waiter(self, timeout_s: float) -> Callable[[], None]:
        wait = super().waiter(timeout_s)

        def forgiving() -> None:
            try:
                wait()
            except DeviceFault as error:
                if "wait for an event" not in error.what:
                    raise

        return forgiving


@breaks("EVT-6", "Of several events waited for, a failure of the first counts.", CPU)
class FirstFailureOnly(ChangedWaits):
    """The status of the others is not looked at."""

    waits = 0

    def waiting_for(self, event: BaseEvent) -> Callable[[], None]:
        wait, first = event.waiter(self.device.event_timeout_s), self.waits == 0
        self.waits += 1

        def until_ended() -> None:
            with suppress(*() if first else (DeviceFault,)):
                wait()

        return until_ended


# --- ERR-1 ------------------------------------------------------------------------------------


@breaks("ERR-1", "A refused wait holds the stream once its event is recorded.", CPU)
class RefusedWaitHolds(BaseStream):
    """It was put on the list before the event was looked at."""

    def wait(self, event: Event) -> None:
        try:
            super().wait(event)
        except UsageError:
            self.__dict__.setdefault("refused", []).append(event)
            raise

    def _submit(self, command: Command, work: Callable[[], None]) -> None:
        for event in self.__dict__.pop("refused", []):
            with suppress(GgschedError):
                if event.device is self.device:
                    super().wait(event)
        super()._submit(command, work)


@breaks("ERR-1", "A refused launch spoils the program.", CPU)
class RefusedLaunchSpoilsTheProgram(BaseStream):
    """Its arguments are set before its stream is looked at."""

    def launch(self, program: Any) -> None:
        try:
            super().launch(program)
        except UsageError:
            body = getattr(program, "body", None)
            if body is not None:
                body.run = lambda: None
            raise


@breaks("ERR-1", "A refused record leaves the event recorded.", CPU)
class RefusedRecordIsKept(BaseStream):
    """On the stream of another device it is marked, and then refused."""

    def record(self, event: Event) -> None:
        try:
            super().record(event)
        except UsageError:
            if isinstance(event, BaseEvent) and event.device is not self.device:
                event.mark(self.progress)
            raise
