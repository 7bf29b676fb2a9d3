"""Files that are mapped: opened once, never copied, and watched for being cut short.

A page of a mapping that lies behind the end of the file raises SIGBUS, which ends the process
without a message. On Linux a handler replaces lost pages by zeros and notes the file, so that the
reader continues; ``require_unchanged`` then names the file, and the results are discarded. A file
that was rewritten in place is detected by its size and modification time.
Other systems have the second check alone.

The handler is the process's, as is the list of mappings that it needs. Faults at other addresses go
to the handler that was there before.
"""

import ctypes
import errno
import mmap
import os
import struct
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ggsched.errors import ModelError
from ggsched.files.reading import AnyPath, open_regular, reason

_AGAIN: Final = "do not write to a model that is in use; open it again"


@dataclass(frozen=True, slots=True)
class MappedFile:
    """A file of which every byte is mapped, read-only, as long as any array over it lives.

    Attributes:
        path: As it was given.
        start: Address of its first byte.
        nbytes: Its length when it was mapped.
        descriptor: An open file descriptor, closed when the mapping goes.
        written_ns: When it was written last, as of then.
    """

    path: str
    start: int
    nbytes: int
    descriptor: int
    written_ns: int

    @property
    def end(self) -> int:
        """The address after its last byte."""
        return self.start + self.nbytes

    def require_unchanged(self) -> None:
        """Raise if the file is not what was mapped.

        Raises:
            ModelError: it was cut short or written to, or its device failed.
        """
        now = os.fstat(self.descriptor)
        if now.st_size < self.nbytes:
            why = f"it had {self.nbytes} bytes when it was mapped and has {now.st_size} now"
            raise ModelError("the file was truncated", where=self.path, why=why, hint=_AGAIN)
        if self.start in MAPPINGS.lost:
            why = "a page that was mapped could not be read"
            raise ModelError("the file cannot be read", where=self.path, why=why, hint=_AGAIN)
        if (now.st_size, now.st_mtime_ns) != (self.nbytes, self.written_ns):
            why = "it was written to after it had been mapped"
            raise ModelError("the file was changed", where=self.path, why=why, hint=_AGAIN)

    def read_into(self, target: memoryview, offset: int) -> None:
        """Read bytes of the file, without its mapping: no page of that is touched.

        Raises:
            ModelError: the file is shorter than it was, or its device failed.
        """
        done = 0
        try:
            while done < target.nbytes:
                count = os.preadv(self.descriptor, [target[done:]], offset + done)
                if not count:
                    self.require_unchanged()
                    raise ModelError("the file ends too early", where=self.path, hint=_AGAIN)
                done += count
        except OSError as error:
            raise ModelError("cannot read the file", where=self.path, why=reason(error)) from error


def map_file(path: AnyPath) -> npt.NDArray[np.uint8]:
    """Map a file, read-only.

    Raises:
        OSError: as ``open_regular``, or it is empty.
    """
    with open_regular(path) as opened:
        found = os.fstat(opened)
        if not found.st_size:
            raise OSError(errno.EINVAL, "the file is empty")
        try:
            pages = mmap.mmap(opened, found.st_size, access=mmap.ACCESS_READ)
        except ValueError as error:  # it was cut short at this moment
            raise OSError(errno.EINVAL, str(error)) from error
        descriptor = os.dup(opened)
    data = np.frombuffer(pages, np.uint8)
    start: int = data.__array_interface__["data"][0]
    mapped = MappedFile(os.fspath(path), start, len(data), descriptor, found.st_mtime_ns)
    MAPPINGS.add(mapped)
    # Arrays over the mapping keep this object, and nothing else of the file, alive.
    weakref.finalize(pages, MAPPINGS.remove, mapped).atexit = False
    return data


def require_unchanged(arrays: Iterable[npt.NDArray[Any]]) -> None:
    """Raise if a file that one of some contiguous arrays lies in is not what was mapped.

    Raises:
        ModelError: as ``MappedFile.require_unchanged``.
    """
    for array in arrays:
        if (found := file_behind(array)) is not None:
            found[0].require_unchanged()


def file_behind(array: npt.NDArray[Any] | memoryview) -> tuple[MappedFile, int] | None:
    """Return the mapped file that contiguous bytes lie in and where they begin, or None."""
    view = np.asarray(array)
    start: int = view.__array_interface__["data"][0]
    mapped = MAPPINGS.find(start)
    if mapped is None or start + view.nbytes > mapped.end:
        return None
    return mapped, start - mapped.start


class _Mappings:
    """The mappings of the process. Both attributes are replaced, never changed in place.

    Attributes:
        files: What is mapped.
        lost: Addresses of mappings of which pages could not be read.
    """

    def __init__(self) -> None:
        self.files: tuple[MappedFile, ...] = ()
        self.lost: frozenset[int] = frozenset()
        self._lock = threading.Lock()
        self._handler: object | None = None

    def add(self, file: MappedFile) -> None:
        """Watch a mapping."""
        with self._lock:
            self.files = (*self.files, file)
            if self._handler is None and _HAS_HANDLER:
                self._handler = _install(self._replace_lost)

    def remove(self, file: MappedFile) -> None:
        """Forget a mapping that is gone, and close its file."""
        self.files = tuple(f for f in self.files if f is not file)
        self.lost -= {file.start}
        os.close(file.descriptor)

    def find(self, address: int) -> MappedFile | None:
        """Return the file that is mapped at an address."""
        for file in self.files:
            if file.start <= address < file.end:
                return file
        return None

    def _replace_lost(self, address: int, replace: Callable[[int, int], bool]) -> bool:
        """Replace the rest of a mapping by zeros; return whether the address is in a mapping."""
        file = self.find(address)
        if file is None:
            return False
        self.lost |= {file.start}
        first = address & -mmap.PAGESIZE
        return replace(first, file.end - first)


_HAS_HANDLER: Final = sys.platform == "linux" and struct.calcsize("P") == 8

_SIGBUS: Final = 7
_SA_SIGINFO: Final = 4
_MAP_FIXED: Final = 0x10
_MAP_ANONYMOUS: Final = 0x20
_FAILED: Final = ctypes.c_void_p(-1).value
_ADDRESS_AT: Final = 16  # of ``si_addr`` in ``siginfo_t``, with pointers of 64 bits

_Handler: Final = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class _Action(ctypes.Structure):
    """``struct sigaction`` of Linux's C libraries, with pointers of 64 bits."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ubyte * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


def _install(replace_lost: Callable[[int, Callable[[int, int], bool]], bool]) -> object:
    """Let a call handle SIGBUS; return what must live as long as the process.

    The fault comes in the middle of an instruction that reads the mapping: of numpy, of a kernel,
    of a thread that Python has never seen. None of them holds a lock of the memory allocator
    there, so that the handler may be written in Python.
    """
    library = ctypes.PyDLL(None)  # keeps the GIL: nothing else runs in the middle of the handler
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = (
        ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long
    )  # fmt: skip
    before = _Action()

    def replace(start: int, nbytes: int) -> bool:
        flags = mmap.MAP_PRIVATE | _MAP_FIXED | _MAP_ANONYMOUS
        found = library.mmap(start, nbytes, mmap.PROT_READ, flags, -1, 0)
        return bool(found != _FAILED)

    def handle(number: int, info: int, context: int) -> None:
        address = ctypes.c_uint64.from_address(info + _ADDRESS_AT).value
        if not replace_lost(address, replace):
            library.sigaction(number, ctypes.byref(before), None)  # the fault comes again

    handler = _Handler(handle)
    action = _Action(ctypes.cast(handler, ctypes.c_void_p), (), _SA_SIGINFO, None)
    library.sigaction(_SIGBUS, ctypes.byref(action), ctypes.byref(before))
    return handler, action


MAPPINGS: Final = _Mappings()
"""All files that the process has mapped here."""
