"""ERR: refusals that leave traces, failures that get lost, endings that do not end."""

from collections.abc import Callable
from contextlib import suppress

from ggsched.backend.base import BaseBuffer, BaseDevice, BaseStream
from ggsched.backend.program_body import Command
from ggsched.backend.protocols import Buffer, HostMemory, Program
from ggsched.errors import DeviceFault, UsageError
from ggsched.testing.sim import SimDevice, SimStream
from ggsched.testing.sim.engine import Task
from tests.mutants.baselines import CPU, SIM
from tests.mutants.mutant import breaks
from tests.mutants.mutate_calls import streams_beside

# --- ERR-1 ------------------------------------------------------------------------------------


@breaks("ERR-1", "A refused upload counts as enqueued, and is never complete.", CPU)
class RefusalLeavesTraces(BaseStream):
    """The counter is moved before the arguments are looked at."""

    def upload(self, source: HostMemory, buffer: Buffer, offset: int) -> None:
        """Count first."""
        self._require_usable()
        self.progress.enqueued += 1
        super().upload(source, buffer, offset)
        self.progress.enqueued -= 1


@breaks("ERR-1", "A refused copy poisons the stream.", CPU)
class RefusalPoisons(BaseStream):
    """A wrong argument is taken for a fault."""

    def copy(self, src: Buffer, src_offset: int, dst: Buffer, dst_offset: int, nbytes: int) -> None:
        """Fail for good."""
        try:
            super().copy(src, src_offset, dst, dst_offset, nbytes)
        except UsageError as error:
            self.progress.fail("copy", error)
            raise


@breaks("ERR-1", "A refusal does not say which command it was.", CPU)
class RefusalWithoutName(BaseStream):
    """One message for everything."""

    def download(self, buffer: Buffer, offset: int, target: HostMemory) -> None:
        """Forget the name."""
        try:
            super().download(buffer, offset, target)
        except UsageError as error:
            raise UsageError("bad argument") from error


@breaks("ERR-1", "A refused launch is a fault.", CPU)
class RefusalIsAFault(BaseStream):
    """It raises at once, something else."""

    def launch(self, program: Program) -> None:
        """Raise what is for failures."""
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


@breaks("ERR-2", "A failure is told once, and then the stream goes on.", CPU)
class FailureIsToldOnce(BaseStream):
    """sync clears it."""

    def sync(self, timeout_s: float) -> None:
        """Raise, and forget."""
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
        """Whether all is complete, and well."""
        return super().is_done and self.progress.fault is None


# --- ERR-3 ------------------------------------------------------------------------------------


@breaks("ERR-3", "Closing a stream twice raises.", CPU)
class SecondCloseRaises(BaseStream):
    """It was closed already."""

    def close(self) -> None:
        """Refuse the second time."""
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
        """Tell the fault once more."""
        super().close()
        if self.progress.fault is not None:
            raise self.progress.fault.error()


@breaks("ERR-3", "Closing a stream drops what was enqueued.", SIM)
class CloseDropsWork(SimStream):
    """Who waits for its events waits for ever."""

    def close(self) -> None:
        """Let nothing of it run any more."""
        for task in self.device.world.pending:
            if task.stream is self:
                task.hangs = True
                _hold_back(self, task)
        super().close()


def _hold_back(stream: SimStream, task: Task) -> None:
    ready = stream.device.world._ready
    if task in ready and task.at == len(task.steps) - 1:
        ready.remove(task)


@breaks("ERR-3", "Closing a device leaves its streams open.", CPU)
class DeviceLeavesStreamsOpen(BaseDevice):
    """They outlive it."""

    def close(self) -> None:
        """Close the buffers."""
        self.is_closed = True
        for buffer in list(self._buffers):
            buffer.close()


@breaks("ERR-3", "A closed device gives memory.", SIM)
class ClosedDeviceWorks(SimDevice):
    """close does not close the device."""

    def close(self) -> None:
        """Close what it made, and stay."""
        super().close()
        self.is_closed = False
