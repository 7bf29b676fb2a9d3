"""Ways to the memory of an array beside numpy: ``memoryview``, ``struct`` and ``ctypes``.

Code in C asks an object for its buffer. From Python 3.12 on an array says so (see
``TracedArray.__buffer__``); before that only what is replaced here is seen.
"""

import builtins
import ctypes
import struct
import sys
from collections.abc import Callable
from functools import wraps
from operator import contains
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from ggsched_race.host_memory import Accessed, TracedArray, reports_buffer
from ggsched_race.patches import Patches

_memoryview: Final[Any] = memoryview
_as_array: Final = np.asarray
_BUFFERS: Final = {
    "unpack": False, "unpack_from": False, "iter_unpack": False, "pack_into": True,
}  # fmt: skip
"""Functions of ``struct`` whose second argument is a buffer, and whether they write to it."""


def patch_buffers(patches: Patches, accessed: Accessed) -> None:
    """Report accesses through what is no array.

    Args:
        accessed: Called before each access.
    """
    patches.set(builtins, "memoryview", _standing(_memoryview))
    for name, is_written in _BUFFERS.items() if sys.version_info < (3, 12) else ():
        patches.set(struct, name, _packing(getattr(struct, name), is_written))
    moved, filled, read = ctypes.memmove, ctypes.memset, ctypes.string_at

    def memmove(dst: Any, src: Any, count: int) -> Any:
        accessed("ctypes memmove", _at(src, count), _at(dst, count))
        return moved(dst, src, count)

    def memset(dst: Any, value: int, count: int) -> Any:
        accessed("ctypes memset", [], _at(dst, count))
        return filled(dst, value, count)

    def string_at(ptr: Any, size: int = -1) -> bytes:
        found = read(ptr, size)
        accessed("ctypes string_at", _at(ptr, len(found)), [])
        return found

    for function in (memmove, memset, string_at):
        patches.set(ctypes, function.__name__, function)


def _at(pointer: Any, nbytes: int) -> list[np.ndarray[Any, Any]]:
    """Return the bytes from where a pointer of ``ctypes`` points to as an array, if there are."""
    address = ctypes.cast(pointer, ctypes.c_void_p).value
    if not address or nbytes <= 0:
        return []
    facts = {"data": (address, False), "shape": (nbytes,), "typestr": "|u1", "version": 3}
    return [_as_array(SimpleNamespace(__array_interface__=facts))]


def _packing(native: Callable[..., Any], is_written: bool) -> Callable[..., Any]:
    @wraps(native)
    def call(form: Any, *args: Any, **kwargs: Any) -> Any:
        buffer = args[0] if args else kwargs.get("buffer")
        if isinstance(buffer, TracedArray | TracedMemory):
            buffer.touched(f"struct {native.__name__}", is_written)
        return native(form, *args, **kwargs)

    return call


class TracedMemory(np.ndarray[Any, Any]):
    """Stands for a ``memoryview`` of a traced array; an array, so that code in C takes it.

    Attributes:
        memory: The native view.
        accessed: Called before each access.
    """

    memory: memoryview
    accessed: Accessed

    def touched(self, name: str, is_written: bool = False) -> None:
        """Report an access to all of it."""
        self._traced().touched(name, is_written)

    def _traced(self) -> TracedArray:
        found = self.view(TracedArray)
        found.accessed = self.accessed
        return found

    def __getitem__(self, key: Any) -> Any:
        found = self.memory[key]
        if isinstance(found, _memoryview):
            return _traced_memory(found, self.accessed)
        self._traced()[key]
        return found

    def __setitem__(self, key: Any, value: Any) -> None:
        array = self._traced()
        array._report("memoryview setitem", (), [array._part(key)])
        self.memory[key] = value

    def __buffer__(self, flags: int) -> memoryview:
        reports_buffer(self.touched, flags)
        return self.memory.__buffer__(flags)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        arrays = (x._traced() if isinstance(x, TracedMemory) else x for x in inputs)
        return getattr(ufunc, method)(*arrays, **kwargs)

    def __enter__(self) -> "TracedMemory":
        return self

    def __exit__(self, *error: object) -> None:
        self.memory.release()

    # A memoryview is no index; ``bytearray`` asks for that first.
    __index__ = None  # type: ignore[assignment]


def _traced_memory(memory: memoryview, accessed: Accessed) -> TracedMemory:
    found = _as_array(memory).view(TracedMemory)
    found.memory, found.accessed = memory, accessed
    return found


def _forwarded(name: str) -> Any:
    """Return a member of ``TracedMemory`` that does as the native view."""
    if not callable(getattr(_memoryview, name)):
        return property(lambda self: getattr(self.memory, name))

    def call(self: TracedMemory, *args: Any, **kwargs: Any) -> Any:
        if name not in ("cast", "toreadonly", "release", "__len__", "__repr__"):
            self.touched(f"memoryview {name.strip('_')}")
        found = getattr(self.memory, name)(*args, **kwargs)
        return _traced_memory(found, self.accessed) if isinstance(found, _memoryview) else found

    return call


def _of_whole(function: Callable[..., Any]) -> Any:
    def call(self: TracedMemory, *args: Any) -> Any:
        self.touched(f"memoryview {function.__name__}")
        return function(self.memory, *args)

    return call


for _name in (
    *(n for n in dir(_memoryview) if not n.startswith("_")),
    *("__eq__", "__ne__", "__len__", "__repr__", "__hash__"),
):
    setattr(TracedMemory, _name, _forwarded(_name))
for _whole in (iter, bytes, reversed, bool, contains):
    setattr(TracedMemory, f"__{_whole.__name__}__", _of_whole(_whole))


def _standing(native: Any) -> Any:
    """Return a class that makes a memory view, and is the class of all of them."""

    class Standing(type):
        """The class of the class."""

        def __call__(cls, object: Any) -> Any:
            if isinstance(object, TracedMemory):
                return _traced_memory(native(object.memory), object.accessed)
            if isinstance(object, TracedArray) and object.accessed is not None:
                return _traced_memory(native(object.view(np.ndarray)), object.accessed)
            return native(object)

        def __instancecheck__(cls, value: Any) -> bool:
            return isinstance(value, native | TracedMemory)

        def __subclasscheck__(cls, kind: type) -> bool:
            return issubclass(kind, native | TracedMemory)

        def __getattr__(cls, name: str) -> Any:
            return getattr(native, name)

    return Standing("memoryview", (), {})
