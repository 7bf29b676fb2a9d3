"""CPY-4, CPY-5: host memory that is used too early, too late, or not kept."""

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from ggsched.backend.base import BaseDevice, BaseStream
from ggsched.backend.base_buffer import own_buffer, writable_memory
from ggsched.backend.base_stream import MemoryDevice
from ggsched.backend.checks import check_upload
from ggsched.backend.program_body import Command
from ggsched.backend.protocols import Buffer, HostMemory
from tests.mutants.baselines import CPU
from tests.mutants.mutant import breaks

# --- CPY-4 ------------------------------------------------------------------------------------


@breaks("CPY-4", "An upload keeps no reference to its source.", CPU)
class SourceIsNotKept(BaseStream):
    """It has the address only; here a weak reference stands for it, and dead memory for zeros."""

    def upload(self, source: HostMemory, buffer: Buffer, offset: int) -> None:
        self._require_usable()
        check_upload(self.device, source, buffer, offset)
        if not isinstance(owner_of(source), np.ndarray):
            super().upload(source, buffer, offset)
            return
        self._submit("upload", forgetful_upload(self.device, source, buffer, offset))


def forgetful_upload(
    device: MemoryDevice, source: HostMemory, buffer: Buffer, offset: int
) -> Callable[[], None]:
    """Return an upload that does not keep the array that its source belongs to."""
    owner, memory, nbytes = owner_of(source), writable_memory(buffer), source.nbytes
    start = np.frombuffer(source, np.uint8).ctypes.data - owner.ctypes.data if nbytes else 0
    watch = weakref.ref(owner)

    def write() -> None:
        alive = watch()
        data = np.zeros(nbytes, np.uint8)
        if alive is not None:
            data[:] = alive.reshape(-1).view(np.uint8)[start : start + nbytes]
        device.write_memory(memory, offset, data.data)

    return write


def owner_of(memory: Any) -> Any:
    """Return what the bytes of a view belong to."""
    while True:
        inner = memory.obj if isinstance(memory, memoryview) else getattr(memory, "base", None)
        if inner is None:
            return memory
        memory = inner


@breaks(
    "CPY-4", "Snapshots are declared, and the source is read later.", CPU, snapshots_uploads=True
)
class SnapshotsClaimed(BaseStream):
    """The host reuses the source at once, as it may."""


@breaks("CPY-4", "A source is read at the call, though a download into it comes before.", CPU)
class SourceIsReadAtTheCall(BaseStream):
    """As drivers do that stage memory which is not pinned."""

    def upload(self, source: HostMemory, buffer: Buffer, offset: int) -> None:
        staged = np.frombuffer(source, np.uint8).copy() if source.nbytes else np.zeros(0, np.uint8)
        super().upload(staged.data, buffer, offset)


@breaks("CPY-4", "An upload never releases its source.", CPU)
class SourceIsKeptForever(BaseStream):
    """A list that grows."""

    def upload(self, source: HostMemory, buffer: Buffer, offset: int) -> None:
        super().upload(source, buffer, offset)
        self.__dict__.setdefault("sources", []).append(source)


@breaks("CPY-4", "An upload counts as complete before the source is read.", CPU)
class SourceIsReadTooLate(BaseStream):
    """It is read when the next command begins."""

    def begin(self) -> None:
        self.late: list[Callable[[], None]] = []

    def _submit(self, command: Command, work: Callable[[], None]) -> None:
        def run() -> None:
            while self.late:
                self.late.pop()()
            if command == "upload":
                self.late.append(work)
            else:
                work()

        super()._submit(command if isinstance(command, str) else "launch", run)

    def sync(self, timeout_s: float) -> None:
        if self.progress.done >= self.progress.enqueued and self.late:
            self._submit("nothing", lambda: None)
        super().sync(timeout_s)


@breaks(
    "CPY-4",
    "Uploads of a stream share one piece of staging memory.",
    CPU,
    snapshots_uploads=True,
)
class StagingIsShared(BaseStream):
    """The second upload overwrites what the first one has not read yet."""

    def begin(self) -> None:
        self.staging = np.zeros(1 << 20, np.uint8)

    def upload(self, source: HostMemory, buffer: Buffer, offset: int) -> None:
        check_upload(self.device, source, buffer, offset)
        if source.nbytes > self.staging.nbytes:
            self.staging = np.zeros(source.nbytes, np.uint8)
        staged = self.staging[: source.nbytes]
        if source.nbytes:
            staged[:] = np.frombuffer(source, np.uint8)
        super().upload(staged.data, buffer, offset)


# --- CPY-5 ------------------------------------------------------------------------------------


@breaks("CPY-5", "A target with gaps is accepted, and filled without them.", CPU)
class TargetWithGapsAccepted(BaseStream):
    """It writes where the gaps are."""

    def download(self, buffer: Buffer, offset: int, target: HostMemory) -> None:
        if not getattr(target, "c_contiguous", True):
            target = memoryview(target.obj)[: target.nbytes]
        super().download(buffer, offset, target)


@breaks("CPY-5", "A download writes its target once more when the next command runs.", CPU)
class TargetIsWrittenAgain(BaseStream):
    """It is sent twice, to be on the safe side."""

    def begin(self) -> None:
        self.again: list[Callable[[], None]] = []

    def download(self, buffer: Buffer, offset: int, target: HostMemory) -> None:
        super().download(buffer, offset, target)
        memory, read = own_buffer(buffer).memory, self.device.read_memory
        self.again.append(lambda: read(memory, offset, target))

    def _submit(self, command: Command, work: Callable[[], None]) -> None:
        repeats, self.again = self.again, []

        def run() -> None:
            for repeat in repeats:
                repeat()
            work()

        super()._submit(command if isinstance(command, str) else "launch", run)


@breaks("CPY-5", "A read-only target is accepted, and nothing is written.", CPU)
class ReadOnlyTargetAccepted(BaseStream):
    """The caller goes on with what was there."""

    def download(self, buffer: Buffer, offset: int, target: HostMemory) -> None:
        if not getattr(target, "readonly", False):
            super().download(buffer, offset, target)


@breaks("CPY-5", "Memory from allocate_host is as long as a page.", CPU)
class PinnedMemoryIsTooLong(BaseDevice):
    """The caller does not learn where it ends."""

    def allocate_host(self, nbytes: int) -> HostMemory:
        return super().allocate_host(-(-max(nbytes, 1) // 4096) * 4096)
