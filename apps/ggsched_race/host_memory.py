"""Host memory that a device accesses: pinned tensors, by address.

Only memory that some copy has used from a device is followed. The host's own accesses are seen
where they go through PyTorch or through arrays of ``numpy()`` (``TracedArray``). A write by other
code, e.g. through an array that existed before the recording, shows by a checksum: the source of a
queued copy has other content than when the copy was queued.
"""

import ctypes
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import wraps
from typing import Any, Final, NamedTuple
from zlib import crc32

import numpy as np

from ggsched_race.byte_runs import Run, strided_runs
from ggsched_race.recording import Bytes

MAX_CHECKED_NBYTES: Final = 16 << 20
"""Of so many bytes that queued copies read the content is compared; of the latest copies."""


class _Range(NamedTuple):
    start: int
    end: int
    memory: int


class _Source(NamedTuple):
    """What a copy that is queued on a stream reads."""

    address: int
    nbytes: int
    checksum: int
    memory: int
    stream: int


class HostMemory:
    """Pinned memory that a device has accessed, and the sources of copies from it.

    Attributes:
        is_empty: Whether nothing is followed.
    """

    def __init__(self) -> None:
        self.is_empty = True
        self._ranges: list[_Range] = []
        self._begins: dict[int, int] = {}
        self._sources: list[_Source] = []

    def add(self, start: int, nbytes: int, memory: int) -> None:
        """Follow memory from now on."""
        insort(self._ranges, _Range(start, start + nbytes, memory))
        self._begins[memory] = start
        self.is_empty = False

    def remove(self, memory: int) -> None:
        """Stop following memory that ends."""
        start = self._begins.pop(memory, None)
        if start is not None:
            k = bisect_left(self._ranges, (start,))
            while self._ranges[k].memory != memory:
                k += 1
            del self._ranges[k]
            self.is_empty = not self._ranges
        if self._sources:
            self._sources = [s for s in self._sources if s.memory != memory]

    @property
    def has_sources(self) -> bool:
        """Whether queued copies read anything of which the content is compared."""
        return bool(self._sources)

    def find(self, address: int) -> tuple[int, int] | None:
        """Return the memory at an address, and where in it that is; None if it is not followed."""
        k = bisect_right(self._ranges, (address, 1 << 63)) - 1
        if k < 0 or self._ranges[k].end <= address:
            return None
        return self._ranges[k].memory, address - self._ranges[k].start

    def bytes_at(self, address: int, runs: Iterable[Run]) -> list[Bytes]:
        """Return what runs from an address on are in memory that is followed."""
        found = self.find(address)
        return [] if found is None else [(found[0], found[1] + a, found[1] + b) for a, b in runs]

    # --- writes that nobody has announced ---------------------------------------------------------

    def queued(self, reads: Iterable[Bytes], stream: int) -> None:
        """Note what a copy that is queued on a stream will read."""
        for memory, start, end in reads:
            address, nbytes = self._begins[memory] + start, end - start
            kept = [s for s in self._sources if (s.address, s.nbytes) != (address, nbytes)]
            while kept and sum(s.nbytes for s in kept) + nbytes > MAX_CHECKED_NBYTES:
                kept.pop(0)
            if nbytes <= MAX_CHECKED_NBYTES:
                kept.append(_Source(address, nbytes, _checksum(address, nbytes), memory, stream))
            self._sources = kept

    def written(self, writes: Iterable[Bytes]) -> None:
        """Note a write that is recorded: checksums of what it changes mean nothing any more."""
        for memory, start, end in writes:
            if memory not in self._begins:
                continue
            first, last = self._begins[memory] + start, self._begins[memory] + end
            self._sources = [
                s for s in self._sources if s.address >= last or first >= s.address + s.nbytes
            ]

    def changed(self, memories: Collection[int] | None = None) -> list[Bytes]:
        """Return sources whose content has changed since they were looked at.

        Args:
            memories: Those to look at; all if not given.
        """
        found = []
        for k, s in enumerate(self._sources):
            if memories is not None and s.memory not in memories:
                continue
            checksum = _checksum(s.address, s.nbytes)
            if checksum != s.checksum:
                self._sources[k] = s._replace(checksum=checksum)
                start = s.address - self._begins[s.memory]
                found.append((s.memory, start, start + s.nbytes))
        return found

    def waited(self, streams: Collection[int]) -> None:
        """Forget sources of streams whose copies are done."""
        self._sources = [s for s in self._sources if s.stream not in streams]


def _checksum(address: int, nbytes: int) -> int:
    return crc32((ctypes.c_char * nbytes).from_address(address))


# --- arrays of numpy on pinned memory -------------------------------------------------------------

Accessed = Callable[[str, list[np.ndarray[Any, Any]], list[np.ndarray[Any, Any]]], None]
"""Called with the name of a function and the arrays that it reads and writes."""


def array_runs(array: np.ndarray[Any, Any]) -> tuple[int, list[Run]]:
    """Return the address of an array's first byte in memory, and its bytes from there on."""
    low, _ = np.lib.array_utils.byte_bounds(array)
    size = max(array.itemsize, 1)
    strides = [abs(s) // size for s in array.strides]
    return low, strided_runs(array.shape, strides, 0, size).runs


_VIEWING: Final = (
    *("diagonal", "getfield", "ravel", "reshape", "setflags", "squeeze", "swapaxes"),
    *("to_device", "transpose", "view"),
)
"""Methods that return a view, some of them a copy where that cannot be."""
_CHANGING: Final = ("byteswap", "partition", "put", "setfield", "sort")
"""Methods that change the array, or may."""
_SIMPLE, _WRITABLE, _CONTIGUOUS = 0, 1, 8
"""Flags of the protocol of buffers."""
_FOR_SHAPE: Final = frozenset(
    {
        *(np.zeros_like, np.ones_like, np.empty_like, np.full_like),
        *(np.shape, np.ndim, np.size, np.result_type, np.shares_memory, np.may_share_memory),
    }
)
"""Functions that read shape, type or address of their first arguments, and no element."""


class TracedArray(np.ndarray[Any, Any]):
    """An array on pinned memory whose accesses are reported; so are those of its views.

    Attributes:
        accessed: Called before each access; None for an array with memory of its own.
    """

    accessed: Accessed | None = None

    def __array_finalize__(self, obj: Any) -> None:
        # Whatever has memory of its own is not reported, and neither is a view of that.
        accessed = getattr(obj, "accessed", None)
        self.accessed = accessed if accessed and _owner(self) is _owner(obj) else None

    def _report(self, name: str, reads: Iterable[Any] = (), writes: Iterable[Any] = ()) -> None:
        if self.accessed is not None:
            self.accessed(name, list(_traced(reads)), list(_traced(writes)))

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        if getattr(found, "accessed", None) is None:  # no view
            self._report("numpy getitem", [self._part(key), *_nested((key,))])
        return found

    def __setitem__(self, key: Any, value: Any) -> None:
        self._report("numpy setitem", [value, *_nested((key,))], [self._part(key)])
        super().__setitem__(key, value)

    def __buffer__(self, flags: int) -> memoryview:
        reports_buffer(self.touched, flags)
        return super().__buffer__(flags)  # type: ignore[misc,no-any-return]

    def touched(self, name: str, is_written: bool = False) -> None:
        """Report an access to all of it."""
        self._report(name, () if is_written else [self], [self] if is_written else ())

    @property
    def data(self) -> Any:
        """A view of the memory."""
        return memoryview(self)

    def _part(self, key: Any) -> Any:
        """Return what a key of ids selects as a view where it can be one, else the whole."""
        keys = key if isinstance(key, tuple) else (key,)
        slices = tuple(
            slice(k, k + 1 or None) if isinstance(k, int | np.integer) else k for k in keys
        )
        if all(isinstance(k, slice) or k is Ellipsis for k in slices):
            return np.ndarray.__getitem__(self, slices)
        return self

    def __array_ufunc__(
        self, ufunc: Any, method: str, *inputs: Any, out: Any = (), **kw: Any
    ) -> Any:
        writes = [*out] if method != "at" else [inputs[0]]
        self._report(f"numpy {ufunc.__name__}", [*inputs, kw.get("where")], writes)
        kw |= {"out": out} if out else {}
        plain = {k: _unwrapped(v) for k, v in kw.items()}
        result = getattr(ufunc, method)(*_unwrapped(inputs), **plain)
        return out[0] if len(out) == 1 else result

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        del types
        writes = [args[0]] if func in (np.copyto, np.put, np.place, np.putmask) else []
        writes += [kwargs["out"]] if kwargs.get("out") is not None else []
        found = [*_nested(args), *_nested(list(kwargs.values()))]
        reads = [x for x in found if all(x is not w for w in writes)]
        label, plain = f"numpy {func.__name__}", {k: _unwrapped(v) for k, v in kwargs.items()}
        if writes:
            self._report(label, reads, writes)
            return func(*_unwrapped(args), **plain)
        result = func(*_unwrapped(args), **plain)
        traced = {id(_owner(x)): x.accessed for x in _traced(reads)}
        arrays = [x for x in _nested([result]) if isinstance(x, np.ndarray)]
        if arrays and all(id(_owner(x)) in traced for x in arrays):  # views: nothing is read yet
            return _retraced(result, traced)
        self._report(label, reads if func not in _FOR_SHAPE else reads[1:])
        return result

    def __reduce__(self) -> Any:
        return self._whole("pickle").__reduce__()

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __bytes__(self) -> bytes:
        return bytes(self._whole("bytes"))

    @property
    def flat(self) -> Any:
        """An iterator over the elements."""
        return self._whole("flat").flat

    @flat.setter
    def flat(self, value: Any) -> None:
        self.fill(value)

    def fill(self, value: Any) -> None:
        """Set all elements."""
        self._report("numpy fill", (), [self])
        super().fill(value)

    def _whole(self, name: str) -> np.ndarray[Any, Any]:
        """Report a read of all; return the same as a plain array."""
        self._report(f"numpy {name}", [self])
        return self.view(np.ndarray)


def _method(name: str) -> Any:
    """Return a method of ``TracedArray`` that reports what the plain one touches."""
    native = getattr(np.ndarray, name)

    def viewing(self: TracedArray, *args: Any, **kwargs: Any) -> Any:
        found = native(self, *args, **kwargs)
        if isinstance(found, TracedArray) and found.accessed is None:
            self._report(f"numpy {name}", [self])
        return found

    def touching(self: TracedArray, *args: Any, **kwargs: Any) -> Any:
        writes = [self] if name in _CHANGING else [kwargs.get("out")]
        self._report(f"numpy {name.strip('_')}", [self, *_nested(args)], writes)
        plain = {k: _unwrapped(v) for k, v in kwargs.items()}
        return native(_plain(self), *_unwrapped(args), **plain)

    return viewing if name in _VIEWING else touching


for _name in (
    *(n for n in dir(np.ndarray) if not n.startswith("_") and callable(getattr(np.ndarray, n))),
    *("__repr__", "__float__", "__int__", "__bool__", "__index__", "__complex__"),
    *("__copy__", "__deepcopy__"),
):
    if _name not in vars(TracedArray):  # numpy has a hook for none of these
        setattr(TracedArray, _name, _method(_name))


def reports_buffer(touched: Callable[..., None], flags: int) -> None:
    """Report an access where code in C asks for bytes without a shape: it uses them at once.

    Whoever asks for a shape and strides makes a view, which is used later, or never.

    Args:
        touched: Called with a name and whether it is written.
        flags: What is asked for, as in the protocol of buffers.
    """
    if flags in (_SIMPLE, _CONTIGUOUS, _WRITABLE):
        touched("buffer", flags == _WRITABLE)


def _owner(array: Any) -> Any:
    """Return what the memory of an array belongs to."""
    while isinstance(array, np.ndarray) and array.base is not None:
        array = array.base
    return array


def converting(
    native: Callable[..., Any], tensor: type[Any], adopted: Callable[[Any], Any]
) -> Callable[..., Any]:
    """Return a function such as ``np.asarray`` that goes on tracing, or reports what it copies.

    Args:
        tensor: A class whose method ``numpy`` returns traced arrays.
        adopted: Returns an array of memory that something else owns, as a traced one if it is
            followed.
    """

    @wraps(native)
    def convert(*args: Any, **kwargs: Any) -> Any:
        key = next((k for k in ("object", "a", "x", "buffer") if k in kwargs), "")
        value: Any = args[0] if args else kwargs.get(key)
        if isinstance(value, tensor):
            value = value.numpy()
        is_traced = getattr(value, "accessed", None) is not None
        if is_traced or isinstance(value, np.ndarray):
            plain = value.view(np.ndarray) if is_traced else value
            args, kwargs = ((plain, *args[1:]), kwargs) if args else ((), {**kwargs, key: plain})
        found: Any = native(*args, **kwargs)
        for part in _traced(value) if isinstance(value, list | tuple) else ():
            part.touched(f"numpy {native.__name__}")
        if not is_traced:
            return adopted(found)
        if not isinstance(found, np.ndarray):
            return found
        if not np.may_share_memory(found, plain):
            value.touched(f"numpy {native.__name__}")
            return found
        found = found.view(TracedArray)
        found.accessed = value.accessed
        return found

    return convert


def _traced(values: Iterable[Any]) -> Iterator[TracedArray]:
    return (v for v in values if isinstance(v, TracedArray) and v.accessed is not None)


def _nested(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _nested(value)
        else:
            yield value


def _plain(value: Any) -> Any:
    return value.view(np.ndarray) if isinstance(value, TracedArray) else value


def _unwrapped(value: Any) -> Any:
    if isinstance(value, list | tuple):
        plain = [_unwrapped(v) for v in value]
        return plain if isinstance(value, list) else tuple(plain)  # its class may take other values
    return _plain(value)


def _retraced(result: Any, traced: dict[int, Accessed | None]) -> Any:
    """Return views, in lists and tuples, as arrays that are traced as those that they belong to."""
    if isinstance(result, list | tuple):
        views = [_retraced(x, traced) for x in result]
        return views if isinstance(result, list) else tuple(views)
    if isinstance(result, np.ndarray):
        result, accessed = result.view(TracedArray), traced[id(_owner(result))]
        result.accessed = accessed
    return result
