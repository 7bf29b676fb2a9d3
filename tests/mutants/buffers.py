"""BUF: memory that is not what was requested, or somebody else's."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ggsched.backend import checks
from ggsched.backend.base import BaseBuffer, BaseDevice, BaseProgram, BaseStream
from ggsched.backend.base_buffer import writable_memory
from ggsched.backend.program import BoundNode, Operand
from ggsched.backend.protocols import Buffer, HostMemory, Stream
from ggsched.errors import OutOfDeviceMemory, UsageError
from ggsched_testing.sim import SimBuffer, SimDevice
from tests.mutants.baselines import CPU, SIM, SIM_SMALL
from tests.mutants.mutant import breaks
from tests.mutants.mutate_calls import give_back_on_close

# --- BUF-1 ------------------------------------------------------------------------------------


@breaks("BUF-1", "Lengths are rounded up to whole pages.", CPU)
class LengthsRoundedUp(BaseDevice):
    """The caller sees more than was requested."""

    def allocate(self, nbytes: int) -> BaseBuffer:
        return super().allocate(nbytes if nbytes < 0 else -(-nbytes // 64) * 64)


@breaks("BUF-1", "Small buffers overlap: each begins at the last word of the one before.", CPU)
class BuffersOverlap(BaseDevice):
    """A pool that is off by a word."""

    def acquire_memory(self, nbytes: int) -> Any:
        kept = self.__dict__
        if nbytes > 4096:
            return super().acquire_memory(nbytes)
        if "block" not in kept:
            kept["block"], kept["at"] = super().acquire_memory(1 << 20), 0
        start = kept["at"]
        kept["at"] += max(0, nbytes - 4)
        return kept["block"][start : start + nbytes]


@breaks("BUF-1", "After too much was requested, the device gives nothing any more.", CPU)
class OutOfMemoryForGood(BaseDevice):
    """One failure breaks the allocator."""

    def allocate(self, nbytes: int) -> BaseBuffer:
        if self.__dict__.get("is_exhausted"):
            raise self._out_of_memory(nbytes)
        try:
            return super().allocate(nbytes)
        except OutOfDeviceMemory:
            self.__dict__["is_exhausted"] = True
            raise


@breaks("BUF-1", "Too much raises MemoryError.", CPU)
class PlainMemoryError(BaseDevice):
    """It lets the error of its library through."""

    def allocate(self, nbytes: int) -> BaseBuffer:
        try:
            return super().allocate(nbytes)
        except OutOfDeviceMemory as error:
            raise MemoryError(str(error)) from error


@breaks("BUF-1", "Memory that was closed does not come back.", SIM_SMALL)
class MemoryLeaks(SimDevice):
    """It counts what it gave and never what it got."""

    @property
    def free_nbytes(self) -> int:
        return self.facts.memory_nbytes - int(self.__dict__.get("given", 0))

    def allocate(self, nbytes: int) -> SimBuffer:
        buffer = super().allocate(nbytes)
        self.__dict__["given"] = int(self.__dict__.get("given", 0)) + nbytes
        return buffer


# --- BUF-2 ------------------------------------------------------------------------------------


class _Pool(BaseDevice):
    """Hands closed memory out again. ``may_reuse`` says when; here is what the pools share."""

    def allocate(self, nbytes: int) -> BaseBuffer:
        """Take from the pool what has the right length."""
        pool: list[Any] = self.__dict__.setdefault("pool", [])
        found = next((m for m in pool if m.nbytes == nbytes and self.may_reuse()), None)
        if found is None:
            made = super().allocate(nbytes)
        else:
            pool[:] = [m for m in pool if m is not found]
            made = self._register(BaseBuffer(self, nbytes, found))
        return give_back_on_close(made, pool)

    def may_reuse(self) -> bool:
        """Whether nobody uses what is in the pool."""
        return True


@breaks("BUF-2", "Memory that was closed is handed out at once.", CPU)
class FreedMemoryIsHandedOut(_Pool):
    """Commands that are enqueued write into the next owner's memory."""


@breaks("BUF-2", "Memory is handed out again when any one stream is idle.", CPU)
class PoolAsksTheWrongStream(_Pool):
    """Reuse before the last reader is done."""

    def may_reuse(self) -> bool:
        return any(s.progress.done >= s.progress.enqueued for s in self._streams)


@breaks("BUF-2", "Memory is handed out again after two more allocations.", CPU)
class PoolCountsAllocations(_Pool):
    """By then it will surely be over."""

    def may_reuse(self) -> bool:
        count = int(self.__dict__.get("asked", 0)) + 1
        self.__dict__["asked"] = count
        return count > 2


@breaks("BUF-2", "A simulated device hands closed memory out at once.", SIM)
class SimFreedMemoryIsHandedOut(SimDevice):
    """The same without threads, so that any order can be had."""

    def allocate(self, nbytes: int) -> SimBuffer:
        buffer = super().allocate(nbytes)
        closed: dict[int, Any] = self.__dict__.setdefault("closed", {})
        if nbytes in closed:
            buffer.array = closed.pop(nbytes)
        close = buffer.close

        def give_back() -> None:
            closed[nbytes] = buffer.array
            close()

        buffer.close = give_back  # type: ignore[method-assign]
        return buffer


# --- BUF-3 ------------------------------------------------------------------------------------


@breaks("BUF-3", "What does not fit a buffer is left out of an upload.", CPU)
class UploadIsClipped(BaseStream):
    """It writes what there is room for."""

    def upload(self, source: HostMemory, buffer: Buffer, offset: int) -> None:
        offset = min(max(offset, 0), buffer.nbytes)
        super().upload(source[: buffer.nbytes - offset], buffer, offset)


@breaks("BUF-3", "Negative offsets count from the end.", CPU)
class NegativeOffsetsCountFromTheEnd(BaseStream):
    """As in Python."""

    def download(self, buffer: Buffer, offset: int, target: HostMemory) -> None:
        start = offset % buffer.nbytes if buffer.nbytes and offset < 0 else offset
        super().download(buffer, min(start, max(0, buffer.nbytes - target.nbytes)), target)


@breaks("BUF-3", "Copies that do not fit copy what fits.", CPU)
class CopyIsClipped(BaseStream):
    """Each end is clipped."""

    def copy(self, src: Buffer, src_offset: int, dst: Buffer, dst_offset: int, nbytes: int) -> None:
        a, b = (min(max(o, 0), x.nbytes) for o, x in ((src_offset, src), (dst_offset, dst)))
        fits = min(nbytes, src.nbytes - a, dst.nbytes - b)
        super().copy(src, a, dst, b, max(0, fits))


@breaks("BUF-3", "Operands outside their buffer are moved into it.", CPU)
class OperandsAreMoved(BaseDevice):
    """compile does not look."""

    def compile(self, nodes: Sequence[BoundNode], stream: Stream) -> BaseProgram:
        return super().compile([_inside(node) for node in nodes], stream)


def _inside(node: BoundNode) -> BoundNode:
    def moved(o: Operand) -> Operand:
        return replace(o, offset=min(max(o.offset, 0), max(0, o.buffer.nbytes - o.nbytes)))

    return replace(node, inputs=tuple(map(moved, node.inputs)), output=moved(node.output))


@breaks("BUF-3", "Operands before the start of their buffer are moved to it.", CPU)
class NegativeOperandsAreMoved(BaseDevice):
    """An unsigned offset would not have come so far."""

    def compile(self, nodes: Sequence[BoundNode], stream: Stream) -> BaseProgram:
        early = [n for n in nodes if any(o.offset < 0 for o in (*n.inputs, n.output))]
        return super().compile([_inside(n) if n in early else n for n in nodes], stream)


@breaks("BUF-3", "A region outside the buffer is noticed when the command runs.", CPU)
class OutsideIsAFault(BaseStream):
    """The call is accepted, and the stream poisoned."""

    def upload(self, source: HostMemory, buffer: Buffer, offset: int) -> None:
        self._require_usable()
        checks.check_host_memory(source, "upload")
        memory = writable_memory(buffer)

        def write() -> None:
            checks.check_region(buffer, offset, source.nbytes, "upload")
            self.device.write_memory(memory, offset, source)

        self._submit("upload", write)


# --- BUF-4 ------------------------------------------------------------------------------------


@breaks("BUF-4", "A host view is a copy of the memory.", CPU)
class HostViewIsACopy(BaseBuffer):
    """Neither side sees what the other one writes."""

    def host_view(self) -> HostMemory:
        view: HostMemory = np.array(self.memory).data
        return view


@breaks("BUF-4", "A host view shows what was there when it was first requested.", CPU)
class HostViewIsCached(BaseBuffer):
    """A cache that nobody empties."""

    def host_view(self) -> HostMemory:
        if "view" not in self.__dict__:
            self.__dict__["view"] = np.array(self.memory)
        view: HostMemory = self.__dict__["view"].data
        return view


@breaks("BUF-4", "A host view is longer than its buffer.", CPU)
class HostViewIsTooLong(BaseBuffer):
    """It shows the padding, too."""

    def host_view(self) -> HostMemory:
        longer = np.zeros(self.nbytes + 64, np.uint8)
        longer[: self.nbytes] = self.memory
        view: HostMemory = longer.data
        return view


@breaks("BUF-4", "A device whose memory is not host memory offers a view nevertheless.", SIM)
class ViewOfDeviceMemory(SimBuffer):
    """It gives out what nobody may touch."""

    def host_view(self) -> HostMemory:
        if self.is_closed:
            raise UsageError("the buffer is closed")
        view: HostMemory = self.array.data
        return view
