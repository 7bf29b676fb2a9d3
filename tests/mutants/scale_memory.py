"""BUF, CPY, FIL: memory that is treated well up to some length, offset or number."""

from collections.abc import Callable

import numpy as np

from ggsched.backend import checks
from ggsched.backend.base import BaseBuffer, BaseDevice, BaseStream
from ggsched.backend.base_buffer import own_buffer, writable_memory
from ggsched.backend.program_body import Command
from ggsched.backend.protocols import Buffer, HostMemory
from ggsched.errors import UsageError
from ggsched_testing.sim import SimStream
from tests.mutants.baselines import CPU, SIM
from tests.mutants.mutant import breaks

KIB64 = 1 << 16
MIB = 1 << 20

# --- BUF --------------------------------------------------------------------------------------


@breaks("BUF-1", "The 257th buffer that is open lies on the first one.", CPU)
class BufferNumbersWrap(BaseDevice):
    """A table of 256 places."""

    def allocate(self, nbytes: int) -> BaseBuffer:
        buffer = super().allocate(nbytes)
        table: list[BaseBuffer] = self.__dict__.setdefault("table", [])
        table[:] = [b for b in table if not b.is_closed]
        table.append(buffer)
        if len(table) > 256 and table[-257].nbytes >= nbytes:
            buffer._memory = table[-257].memory[:nbytes]
        return buffer


@breaks("BUF-3", "The end of a region is computed in 64 bits, and wraps.", CPU)
class RegionEndsWrap(BaseStream):
    """An offset just below 2 to the 64 with a small length lies inside, as it seems."""

    def upload(self, source: HostMemory, buffer: Buffer, offset: int) -> None:
        if offset >= 0 and (offset + source.nbytes) % (1 << 64) <= buffer.nbytes < offset:
            self._require_usable()
            return
        super().upload(source, buffer, offset)


@breaks("BUF-3", "The length of a copy is taken in 32 bits.", CPU)
class CopyLengthsOf32Bits(BaseStream):
    """Four gibibytes and a few bytes are a few bytes."""

    def copy(self, src: Buffer, src_offset: int, dst: Buffer, dst_offset: int, nbytes: int) -> None:
        super().copy(src, src_offset, dst, dst_offset, nbytes % (1 << 32) if nbytes > 0 else nbytes)


@breaks("BUF-4", "The view of a large buffer is a copy.", CPU)
class LargeViewsAreCopies(BaseBuffer):
    """What does not fit the window is staged."""

    def host_view(self) -> HostMemory:
        view = super().host_view()
        return view if self.nbytes < MIB else memoryview(bytearray(view))


# --- CPY --------------------------------------------------------------------------------------


@breaks("CPY-2", "An upload in blocks of 64 KiB leaves out the last one unless it is whole.", CPU)
class UploadOfWholeBlocks(BaseStream):
    """A loop without a tail."""

    def upload(self, source: HostMemory, buffer: Buffer, offset: int) -> None:
        checks.check_upload(self.device, source, buffer, offset)
        n = source.nbytes
        super().upload(source[: n // KIB64 * KIB64] if n > KIB64 else source, buffer, offset)


@breaks("CPY-2", "A download of more than a mebibyte ends there.", CPU)
class DownloadOfAMebibyte(BaseStream):
    """The staging memory is that long."""

    def download(self, buffer: Buffer, offset: int, target: HostMemory) -> None:
        checks.check_download(self.device, buffer, offset, target)
        super().download(buffer, offset, target[:MIB])


@breaks("CPY-2", "A copy of 64 KiB or more copies one byte less.", CPU)
class LongCopyIsShort(BaseStream):
    """The length is kept minus one, in sixteen bits."""

    def copy(self, src: Buffer, src_offset: int, dst: Buffer, dst_offset: int, nbytes: int) -> None:
        checks.check_copy(self.device, src, src_offset, dst, dst_offset, nbytes)
        super().copy(src, src_offset, dst, dst_offset, nbytes - (nbytes >= KIB64))


@breaks("CPY-2", "A copy takes its source's offset in sixteen bits.", CPU)
class CopyOffsetsOf16Bits(BaseStream):
    """What lies further behind is read from the front."""

    def copy(self, src: Buffer, src_offset: int, dst: Buffer, dst_offset: int, nbytes: int) -> None:
        checks.check_copy(self.device, src, src_offset, dst, dst_offset, nbytes)
        start = src_offset % KIB64
        if src is dst and start < dst_offset + nbytes and dst_offset < start + nbytes:
            start = src_offset
        super().copy(src, start, dst, dst_offset, nbytes)


@breaks("CPY-2", "An upload behind the first mebibyte of a buffer goes to its start.", CPU)
class UploadOffsetsOf20Bits(BaseStream):
    """The offset has twenty bits."""

    def upload(self, source: HostMemory, buffer: Buffer, offset: int) -> None:
        checks.check_upload(self.device, source, buffer, offset)
        super().upload(source, buffer, offset % MIB)


@breaks("CPY-3", "Overlap of 64 KiB and more is accepted.", CPU)
class LongOverlapAccepted(BaseStream):
    """Long copies take another way, without the check."""

    def copy(self, src: Buffer, src_offset: int, dst: Buffer, dst_offset: int, nbytes: int) -> None:
        try:
            super().copy(src, src_offset, dst, dst_offset, nbytes)
        except UsageError as error:
            if "overlap" not in error.what or nbytes < KIB64:
                raise


@breaks(
    "CPY-4",
    "Sources of 64 KiB and more are read when the upload runs.",
    CPU,
    snapshots_uploads=True,
)
class LargeSourcesAreBorrowed(BaseStream):
    """Only what fits the staging memory is copied in the call."""

    def upload(self, source: HostMemory, buffer: Buffer, offset: int) -> None:
        small = isinstance(source, memoryview) and source.nbytes < KIB64 and source.c_contiguous
        kept = not self.sink.is_capturing and small
        super().upload(memoryview(bytes(source)) if kept else source, buffer, offset)


@breaks("CPY-5", "The end of a large target is written after the download counts as complete.", CPU)
class LargeTargetsEndLate(BaseStream):
    """The last piece is written by the next command."""

    def begin(self) -> None:
        self.rest: list[Callable[[], None]] = []

    def download(self, buffer: Buffer, offset: int, target: HostMemory) -> None:
        checks.check_download(self.device, buffer, offset, target)
        n = target.nbytes
        if n < MIB or self.sink.is_capturing:
            super().download(buffer, offset, target)
            return
        super().download(buffer, offset, target[: n - 8])
        memory, read = own_buffer(buffer).memory, self.device.read_memory
        self.rest.append(lambda: read(memory, offset + n - 8, target[n - 8 :]))

    def _submit(self, command: Command, work: Callable[[], None]) -> None:
        rest, self.rest = self.rest, []
        for piece in rest:
            super()._submit("download", piece)
        super()._submit(command, work)


# --- FIL --------------------------------------------------------------------------------------


@breaks("FIL-1", "A fill behind the first 64 KiB of a buffer begins at a block.", CPU)
class FarFillsBeginAtABlock(BaseStream):
    """The address is aligned downwards."""

    def fill(self, buffer: Buffer, offset: int, nbytes: int, pattern: bytes) -> None:
        checks.check_fill(self.device, buffer, offset, nbytes, pattern)
        start = offset // 16 * 16 if offset >= KIB64 and nbytes else offset
        super().fill(buffer, start, nbytes + offset - start, pattern)


@breaks("FIL-1", "A fill of more than a mebibyte fills the first mebibyte.", CPU)
class FillOfAMebibyte(BaseStream):
    """A grid of a bounded number of blocks."""

    def fill(self, buffer: Buffer, offset: int, nbytes: int, pattern: bytes) -> None:
        checks.check_fill(self.device, buffer, offset, nbytes, pattern)
        writable_memory(buffer)
        super().fill(buffer, offset, min(nbytes, MIB), pattern)


# --- CPY: staging memory ----------------------------------------------------------------------


@breaks("CPY-4", "The eighth staging block of a stream is released before its copy.", SIM)
class BlocksReleasedEarly(SimStream):
    """Uploads are staged through blocks that the streams of a device share."""

    def begin(self) -> None:
        self.staged = 0

    def upload(self, source: HostMemory, buffer: Buffer, offset: int) -> None:
        self._require_usable()
        checks.check_upload(self.device, source, buffer, offset)
        target, n = self._writable(buffer), source.nbytes
        task = self._task("upload", f"upload {n} B to {target.label(offset, n)}", (), 0.0, [target])
        self._admit(task)
        self.staged += 1
        idle: list[bytearray] = self.device.__dict__.setdefault("idle", [])
        held: list[bytearray] = []

        is_early, size = self.staged % 8 == 0, 1 << n.bit_length()

        def stage() -> None:
            at = next((i for i, b in enumerate(idle) if len(b) == size), None)
            held.append(bytearray(size) if at is None else idle.pop(at))
            held[0][:n] = source
            if is_early:
                idle.append(held[0])

        def write() -> None:
            target.array[offset : offset + n] = np.frombuffer(held[0], np.uint8, n)
            if not is_early:
                idle.append(held[0])

        task.steps = [stage, write]
        self._enqueue(task)
