"""BUF-5, BUF-6: imported memory that is not the host's, and host memory that is not one's own."""

import weakref
from ctypes import memset
from typing import Any

import numpy as np

from ggsched.backend.arrays import aligned_bytes
from ggsched.backend.base import BaseBuffer, BaseDevice
from ggsched.backend.protocols import HostMemory
from ggsched_testing.sim import SimBuffer, SimDevice
from tests.mutants.baselines import CPU, SIM_HOST
from tests.mutants.mutant import breaks

# --- BUF-5 ------------------------------------------------------------------------------------


@breaks("BUF-5", "An import is a copy.", CPU)
class ImportIsACopy(BaseDevice):
    """What the host writes later is not seen."""

    def import_host(self, memory: HostMemory) -> BaseBuffer:
        super().import_host(memory)
        return super().import_host(memory if memory.nbytes == 0 else memoryview(bytes(memory)))


@breaks("BUF-5", "Long imports at addresses that are no multiple of 128 are copies.", CPU)
class OddImportsAreCopies(BaseDevice):
    """As in the OpenCL runtime of a vendor."""

    def import_host(self, memory: HostMemory) -> BaseBuffer:
        if memory.nbytes <= 4096 or not np.frombuffer(memory, np.uint8).ctypes.data % 128:
            return super().import_host(memory)
        return super().import_host(memoryview(bytes(memory)))


def _owner(memory: HostMemory) -> Any:
    owner: Any = memory.obj if isinstance(memory, memoryview) else memory
    while isinstance(getattr(owner, "base", None), np.ndarray):
        owner = owner.base
    return owner


@breaks("BUF-5", "An import of a part of some memory begins where the memory begins.", CPU)
class ImportsBeginAtTheirOwner(BaseDevice):
    """The object is imported, not the view."""

    def import_host(self, memory: HostMemory) -> BaseBuffer:
        buffer = super().import_host(memory)
        owner = _owner(memory)
        if isinstance(owner, np.ndarray) and owner.flags.c_contiguous:
            buffer._memory = owner.reshape(-1).view(np.uint8)[: memory.nbytes]
        return buffer


@breaks("BUF-5", "Imported memory counts as memory of the device.", SIM_HOST)
class ImportsCount(SimDevice):
    """The planner believes that less is free."""

    @property
    def free_nbytes(self) -> int:
        imports = sum(b.nbytes for b in self.buffers if not b.is_closed and b.is_imported)
        return super().free_nbytes - imports


@breaks("BUF-5", "Closing an import clears the host's memory.", SIM_HOST)
class ClosedImportIsCleared(SimDevice):
    """It is poisoned as other memory is."""

    def import_host(self, memory: HostMemory) -> SimBuffer:
        made = super().import_host(memory)
        close, address = made.close, made.array.ctypes.data

        def close_and_clear() -> None:
            if not made.is_closed and made.nbytes:
                memset(address, 0xFF, made.nbytes)
            close()

        setattr(made, "close", close_and_clear)  # noqa: B010
        return made


@breaks("BUF-5", "Memory that is imported twice is closed with the first import.", CPU)
class ImportsAreShared(BaseDevice):
    """A table by address, without a count."""

    def import_host(self, memory: HostMemory) -> BaseBuffer:
        buffer = super().import_host(memory)
        if not memory.nbytes:
            return buffer
        table: dict[Any, BaseBuffer] = self.__dict__.setdefault("imports", {})
        key = np.frombuffer(memory, np.uint8).ctypes.data, memory.nbytes
        known = table.get(key)
        if known is None or known.is_closed:
            table[key] = known = buffer
        return known


@breaks("BUF-5", "An import does not keep the host's memory.", CPU)
class ImportIsNotKept(BaseDevice):
    """It has the address only; zeros stand for memory that is gone."""

    def import_host(self, memory: HostMemory) -> BaseBuffer:
        buffer = super().import_host(memory)
        owner = _owner(memory)
        if isinstance(owner, np.ndarray):
            buffer._memory = _Weak.of(owner, buffer._memory)
        return buffer


class _Weak(np.ndarray):
    """An array of its own that is cleared when the owner of the original is gone."""

    @staticmethod
    def of(owner: Any, memory: Any) -> Any:
        """Return a mirror of memory, which shows zeros once its owner is gone."""
        made = memory.copy()
        weakref.finalize(owner, made.fill, 0)
        made.flags.writeable = True
        return made


# --- BUF-6 ------------------------------------------------------------------------------------


class _Staging(BaseDevice):
    """Gives host memory out of a block."""

    def block(self) -> Any:
        """Return the block."""
        kept = self.__dict__
        if "staging" not in kept:
            kept["staging"] = aligned_bytes(1 << 22, 64)
        return kept["staging"]


@breaks("BUF-6", "Two pieces of host memory of a device share their bytes.", CPU)
class HostMemoryIsShared(_Staging):
    """There is one block for staging."""

    def allocate_host(self, nbytes: int) -> HostMemory:
        super().allocate_host(nbytes)
        view: HostMemory = self.block()[:nbytes].data
        return view


@breaks("BUF-6", "Host memory is reused while a view of it is left.", CPU)
class HostMemoryIsReusedEarly(_Staging):
    """The first view is watched, and not those that were made of it."""

    def allocate_host(self, nbytes: int) -> HostMemory:
        memory = super().allocate_host(nbytes)
        kept = self.__dict__
        if not 0 < nbytes <= 1 << 20:
            return memory
        if kept.get("user") is None or kept["user"]() is None:
            array = self.block()[:nbytes]
            kept["user"] = weakref.ref(array)
            view = memoryview(self.block())[:nbytes]
            kept["user"] = weakref.ref(view)
            return view
        return memory


@breaks("BUF-6", "Host memory cannot be written.", CPU)
class HostMemoryIsReadOnly(BaseDevice):
    """It is what imports are."""

    def allocate_host(self, nbytes: int) -> HostMemory:
        return super().allocate_host(nbytes).toreadonly()


@breaks("BUF-6", "Host memory is gone when its device is closed.", CPU)
class HostMemoryGoesWithTheDevice(BaseDevice):
    """It is cleared with all the rest."""

    def allocate_host(self, nbytes: int) -> HostMemory:
        view = super().allocate_host(nbytes)
        self.__dict__.setdefault("given", []).append(view)
        return view

    def close(self) -> None:
        super().close()
        for view in self.__dict__.pop("given", []):
            view[:] = bytes(view.nbytes)


@breaks("BUF-6", "Host memory is not aligned as the device declares.", CPU)
class HostMemoryIsUnaligned(BaseDevice):
    """It comes from the heap."""

    def allocate_host(self, nbytes: int) -> HostMemory:
        view = super().allocate_host(nbytes + 1 if nbytes >= 0 else nbytes)
        return view[1:]


@breaks("BUF-6", "Host memory of a negative length is empty.", CPU)
class NegativeHostMemoryIsEmpty(BaseDevice):
    """Nothing is checked."""

    def allocate_host(self, nbytes: int) -> HostMemory:
        return super().allocate_host(max(nbytes, 0))


@breaks("BUF-6", "Too much host memory raises MemoryError.", CPU)
class PlainHostMemoryError(BaseDevice):
    """The error of the library gets through."""

    def allocate_host(self, nbytes: int) -> HostMemory:
        if nbytes > 1 << 50:
            raise MemoryError
        return super().allocate_host(nbytes)
