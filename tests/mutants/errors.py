"""ERR: refusals that leave traces, failures that get lost, cleanup that does not end."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from ggsched.backend.base import BaseBuffer, BaseDevice, BaseEvent, BaseStream
from ggsched.backend.program_body import Command
from ggsched.backend.protocols import Buffer, Event, HostMemory, Program
from ggsched.errors import DeviceFault, SyncTimeout, UsageError
from ggsched_testing.sim import SimDevice, SimStream
from ggsched_testing.sim.engine import Task
from tests.mutants.baselines import CPU, SIM
from tests.mutants.mutant import breaks
from tests.mutants.mutate_calls import ChangedWaits, streams_beside

LOOK_S: Final = 1e-4

# --- ERR-1 ------------------------------------------------------------------------------------


@breaks("ERR-1", "A refused upload counts as enqueued, and is never complete.", CPU)
class RefusalLeavesTraces(BaseStream):
    """The counter is moved before the arguments are looked at."""

    def upload(self, source: HostMemory, buffer: Buffer, offset: int) -> None:
        self._require_usable()
        self.progress.enqueued += 1
        super().upload(source, buffer, offset)
        self.progress.enqueued -= 1


@breaks("ERR-1", "A refused copy poisons the stream.", CPU)
class RefusalPoisons(BaseStream):
    """A wrong argument is taken for a fault."""

    def copy(self, src: Buffer, src_offset: int, dst: Buffer, dst_offset: int, nbytes: int) -> None:
        try:
            super().copy(src, src_offset, dst, dst_offset, nbytes)
        except UsageError as error:
            self.progress.fail("copy", error)
            raise


@breaks("ERR-1", "A refusal does not say which command it was.", CPU)
class RefusalWithoutName(BaseStream):
    """One message for everything."""

    def download(self, buffer: Buffer, offset: int, target: HostMemory) -> None:
        try:
            super().download(buffer, offset, target)
        except UsageError as error:
            raise UsageError("bad argument") from error


@breaks("ERR-1", "A refused launch is a fault.", CPU)
class RefusalIsAFault(BaseStream):
    """It raises at once, something else."""

    def launch(self, program: Program) -> None:
        try:
            super().launch(program)
        except UsageError as error:
            raise DeviceFault("launch failed", where=self.progress.where) from error


# --- ERR-2 ------------------------------------------------------------------------------------


@breaks("ERR-2", "A failure is swallowed.", CPU)
class FailureIsSwallowed(BaseStream):
    """The worker goes on as if nothing had been."""

    def _submit(self, command: Command, work: Callable[[], None]) -> None:
        def run() -> None:
            with suppress(Exception):
                work()

        super()._submit(command, run)


@breaks("ERR-2", "A failure is reported once, and then the stream goes on.", CPU)
class FailureIsToldOnce(BaseStream):
    """sync clears it."""

    def sync(self, timeout_s: float) -> None:
        try:
            super().sync(timeout_s)
        except DeviceFault:
            self.progress.fault = None
            raise


@breaks("ERR-2", "A failure on one stream poisons all of its device.", CPU)
class FailurePoisonsTheDevice(BaseStream):
    """The library's context is lost."""

    def _require_usable(self) -> None:
        for stream in streams_beside(self):
            if stream.progress.fault is not None:
                raise stream.progress.fault.error()
        super()._require_usable()


@breaks("ERR-2", "A fault does not say which command failed.", CPU)
class FailureWithoutName(BaseStream):
    """Its name is that of the queue."""

    def _submit(self, command: Command, work: Callable[[], None]) -> None:
        super()._submit("a command", work)


@breaks("ERR-2", "What follows a failed command is never complete.", CPU)
class HangsAfterAFailure(BaseStream):
    """Nobody counts what was skipped."""

    @property
    def is_done(self) -> bool:
        return super().is_done and self.progress.fault is None


class _GoesOn(BaseStream):
    """Runs what follows a failure, and reports the failure in the end."""

    def begin(self) -> None:
        """Remember nothing yet."""
        self.first: tuple[str, Exception] | None = None

    def _submit(self, command: Command, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                if self.first is None:
                    work()
                else:
                    self.follow(work)
            except Exception as error:
                name = command if isinstance(command, str) else command.failed_node(error)
                self.first = self.first or (name, error)

        super()._submit(command, run)

    def follow(self, work: Callable[[], None]) -> None:
        """Run a command behind the failure."""
        work()

    def sync(self, timeout_s: float) -> None:
        """Wait, and report."""
        super().sync(timeout_s)
        if self.first is not None:
            self.progress.fail(*self.first)
            super().sync(timeout_s)

    def record(self, event: Event) -> None:
        """Wait for the failure, so that the event fails."""
        super().record(event)
        if self.first is not None:
            self.progress.fail(*self.first)


@breaks("ERR-2", "What stands behind a wait that has failed runs.", CPU)
class GateOpensOnFailure(_GoesOn):
    """The queue is released so that it drains, and the failure is reported."""


@breaks("ERR-2", "What follows a failed command clears the buffers that it writes.", CPU)
class FailureClearsBuffers(_GoesOn):
    """A command that is skipped leaves zeros, in all of the buffer."""

    target: Buffer | None = None

    def upload(self, source: HostMemory, buffer: Buffer, offset: int) -> None:
        self.target = buffer
        super().upload(source, buffer, offset)

    def follow(self, work: Callable[[], None]) -> None:
        if self.target is not None:
            view = self.target.host_view()
            view[:] = bytes(view.nbytes)


@breaks("ERR-2", "A stream runs what stands behind a wait for an event that fails later.", CPU)
class WaiterDoesNotLookTwice(ChangedWaits):
    """It asks how the work ended before it waits for the end."""

    def waiting_for(self, event: BaseEvent) -> Callable[[], None]:
        wait = event.waiter(self.device.event_timeout_s)

        def until_ended() -> None:
            with suppress(DeviceFault):
                wait()

        return until_ended


# --- ERR-3 ------------------------------------------------------------------------------------


@breaks("ERR-3", "Closing a stream twice raises.", CPU)
class SecondCloseRaises(BaseStream):
    """It was closed already."""

    def close(self) -> None:
        if self.is_closed:
            raise UsageError("the stream is closed", where=self.progress.where)
        super().close()


@breaks("ERR-3", "A closed stream takes commands.", SIM)
class ClosedStreamWorks(SimStream):
    """close does nothing."""

    def close(self) -> None:
        """Forget it."""


@breaks("ERR-3", "A closed buffer is read as before.", CPU)
class ClosedBufferWorks(BaseBuffer):
    """close does nothing."""

    def close(self) -> None:
        """Forget it."""


@breaks("ERR-3", "Closing a stream after a fault raises the fault.", CPU)
class CloseAfterFaultRaises(BaseStream):
    """It syncs first."""

    def close(self) -> None:
        super().close()
        if self.progress.fault is not None:
            raise self.progress.fault.error()


@breaks("ERR-3", "Closing a stream drops what was enqueued.", SIM)
class CloseDropsWork(SimStream):
    """Who waits for its events waits for ever."""

    def close(self) -> None:
        for task in self.device.world.pending:
            if task.stream is self:
                task.hangs = True
                _hold_back(self, task)
        super().close()


def _hold_back(stream: SimStream, task: Task) -> None:
    ready = stream.device.world._ready
    if task in ready and task.at == len(task.steps) - 1:
        ready.remove(task)


@breaks("ERR-3", "Closing a stream takes what it waits for as done.", CPU)
class CloseOpensItsGates(BaseStream):
    """The queue has to drain, so its gates are opened."""

    def wait(self, event: Event) -> None:
        if isinstance(event, BaseEvent):
            super().wait(event)
            return
        self._require_usable()

        def hold() -> None:
            while not (event.is_done or self.is_closed):
                with suppress(SyncTimeout):
                    event.sync(LOOK_S)
            if event.is_done:
                event.sync(0.0)

        self._submit("wait for an event", hold)


@breaks("ERR-3", "Closing a stream drops what stands behind a wait that is not over.", CPU)
class CloseGivesUpItsWaits(CloseOpensItsGates):
    """The wait fails, as if it had come too late."""

    def wait(self, event: Event) -> None:
        super().wait(event)
        if not isinstance(event, BaseEvent):
            self._submit("wait for an event", self._require_event(event))

    def _require_event(self, event: Event) -> Callable[[], None]:
        return lambda: event.sync(0.0)


@breaks("ERR-3", "A closed device leaves work behind, which runs when its time comes.", CPU)
class ClosedDeviceWritesLater(BaseDevice):
    """It does not wait for its streams, and does not stop them."""

    def close(self) -> None:
        self.is_closed = True
        for stream in list(self._streams):
            stream.is_closed = True
            worker: Any = stream
            worker._queue.put(None)


@breaks("ERR-3", "Closing a device leaves its streams open.", CPU)
class DeviceLeavesStreamsOpen(BaseDevice):
    """They outlive it."""

    def close(self) -> None:
        self.is_closed = True
        for buffer in list(self._buffers):
            buffer.close()


@breaks("ERR-3", "A closed device gives memory.", SIM)
class ClosedDeviceWorks(SimDevice):
    """close does not close the device."""

    def close(self) -> None:
        super().close()
        self.is_closed = False
