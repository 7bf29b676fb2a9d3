"""Reads the header of a GGUF file without ever believing it.

Why not ``gguf.GGUFReader``: it takes counts, lengths and offsets from the file at their word, so
a damaged file ends in an ``IndexError`` deep inside numpy, in an allocation of whatever size the
damage spells, or in a loop over 2**60 elements. Here a count is compared with the bytes that are
left *before* anything is allocated or looped over, so time and memory are bounded by the size of
the file, and every failure is one ``ModelError``.

Layout (little-endian, versions 2 and 3)::

    "GGUF"  u32 version  u64 tensor count  u64 metadata count
    metadata:  string key, u32 type, value          (string: u64 length, bytes)
    tensors:   string name, u32 axes, u64 extent per axis (innermost first), u32 type, u64 offset
    padding to ``general.alignment`` (32), then the data; offsets count from there
"""

import struct
from dataclasses import dataclass
from typing import Final

from ggsched.errors import ModelError

MetaValue = int | float | bool | str | tuple[int, ...] | tuple[float, ...] | tuple[str, ...]

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
MAX_KEY: Final = 65535
MAX_TENSOR_NAME: Final = 64
MAX_STRING: Final = 1 << 24
MAX_QUOTED: Final = 90
MAX_AXES: Final = 4
# The largest vocabularies have some 260,000 tokens and 500,000 merges.
MAX_ARRAY_ELEMENTS: Final = 1 << 22
MIN_META_NBYTES: Final = 8 + 4 + 1
MIN_TENSOR_NBYTES: Final = 8 + 4 + 4 + 8
INCOMPLETE: Final = "the file is incomplete or damaged; fetch or convert it again"

_SCALARS: Final = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_U32: Final = _SCALARS[4]
_U64: Final = _SCALARS[10]
_STRING: Final = 8
_ARRAY: Final = 9


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One entry of the tensor table, as it stands in the file.

    Attributes:
        name: Name of the tensor.
        extents: Length of each axis, innermost first (ggml's ``ne``).
        type_code: Number of the element type.
        offset: First byte, from the start of the data.
    """

    name: str
    extents: tuple[int, ...]
    type_code: int
    offset: int


@dataclass(frozen=True, slots=True)
class Header:
    """Everything in front of the data.

    Attributes:
        version: 2 or 3.
        metadata: Plain Python values by key.
        tensors: The tensor table in file order.
        end: One past the last byte of the table; the data starts at the next aligned byte.
    """

    version: int
    metadata: dict[str, MetaValue]
    tensors: tuple[TensorInfo, ...]
    end: int


def quoted(text: str) -> str:
    """Return text from a file in quotes, escaped and cut, fit for a terminal and one line."""
    escaped = ascii(text[:MAX_QUOTED])
    return escaped if len(escaped) <= MAX_QUOTED else f"{escaped[: MAX_QUOTED - 4]}...{escaped[-1]}"


def shown(value: MetaValue | None) -> str:
    """Return a metadata value as ``quoted`` does, without quotes unless it is a string."""
    return quoted(value) if isinstance(value, str) else quoted(repr(value))[1:-1]


class _Cursor:
    """A position in the bytes that never passes their end."""

    def __init__(self, data: memoryview, file: str) -> None:
        self.data = data
        self.file = file
        self.pos = 0

    @property
    def left(self) -> int:
        return len(self.data) - self.pos

    def fail(self, what: str, why: str = "", hint: str = INCOMPLETE) -> ModelError:
        return ModelError(what, where=self.file, why=why, hint=hint)

    def take(self, nbytes: int, what: str) -> memoryview:
        if nbytes > self.left:
            why = f"{nbytes} bytes are needed at byte {self.pos}, {self.left} are left"
            raise self.fail(f"{what} does not fit in the file", why)
        start = self.pos
        self.pos += nbytes
        return self.data[start : self.pos]

    def u32(self, what: str) -> int:
        value: int = _U32.unpack(self.take(4, what))[0]
        return value

    def u64(self, what: str) -> int:
        value: int = _U64.unpack(self.take(8, what))[0]
        return value

    def count(self, what: str, least_nbytes: int) -> int:
        """Read a u64 count of items that take at least a number of bytes each."""
        n = self.u64(what)
        if n > self.left // least_nbytes:
            why = f"each takes {least_nbytes} bytes or more and {self.left} are left"
            raise self.fail(f"{what} is {n}", why)
        return n

    def string(self, what: str) -> str:
        data, start = self.data, self.pos
        if self.left < 8:
            raise self.fail(f"{what} does not fit in the file", f"it ends at byte {len(data)}")
        nbytes: int = _U64.unpack_from(data, start)[0]
        if nbytes > self.left - 8:
            why = f"its length is {nbytes} at byte {start}, {self.left - 8} bytes are left"
            raise self.fail(f"{what} does not fit in the file", why)
        if nbytes > MAX_STRING:
            why = f"strings have at most {MAX_STRING} bytes"
            raise self.fail(f"{what} has {nbytes} bytes", why, "this is not metadata of a model")
        self.pos = start + 8 + nbytes
        try:
            return str(data[start + 8 : self.pos], "utf-8")
        except UnicodeDecodeError as error:
            why = f"byte {start + 8 + error.start}: {error.reason}"
            raise self.fail(f"{what} is not valid UTF-8", why) from None

    def strings(self, n: int, what: str) -> tuple[str, ...]:
        """Read strings; a vocabulary has a quarter of a million, so errors are left to ``string``.

        What is read of one that is wrong does not count: it is read again.
        """
        data, end, start = self.data, len(self.data), self.pos
        out: list[str] = []
        try:
            for _ in range(n):
                text = start + 8
                stop = text + _U64.unpack_from(data, start)[0]
                if stop > end or stop - text > MAX_STRING:
                    break
                out.append(str(data[text:stop], "utf-8"))
                start = stop
        except (struct.error, UnicodeDecodeError):
            pass
        self.pos = start
        return (*out, *(self.string(what) for _ in range(n - len(out))))


def parse_header(data: memoryview, file: str) -> Header:
    """Parse the header of a GGUF file.

    Args:
        data: All bytes of the file.
        file: Its name, for messages.

    Raises:
        ModelError: anything in it that is not as the format demands.
    """
    cursor = _Cursor(data, file)
    version = _version(cursor)
    n_tensors = cursor.count("the number of tensors", MIN_TENSOR_NBYTES)
    n_meta = cursor.count("the number of metadata entries", MIN_META_NBYTES)
    metadata: dict[str, MetaValue] = {}
    budget = MAX_ARRAY_ELEMENTS
    for i in range(n_meta):
        key, value = _entry(cursor, i, budget)
        if key in metadata:
            raise cursor.fail(f"metadata key {quoted(key)} appears twice")
        metadata[key] = value
        budget -= len(value) if isinstance(value, tuple) else 0
    tensors: dict[str, TensorInfo] = {}
    for i in range(n_tensors):
        info = _tensor(cursor, i)
        if info.name in tensors:
            raise cursor.fail(f"tensor {quoted(info.name)} appears twice")
        tensors[info.name] = info
    return Header(version, metadata, tuple(tensors.values()), cursor.pos)


def _version(cursor: _Cursor) -> int:
    magic = bytes(cursor.data[:4])
    if not magic:
        raise cursor.fail("the file is empty")
    if magic != MAGIC:
        raise cursor.fail(
            "not a GGUF file", f"it starts with {magic!r}", "convert the model to GGUF first"
        )
    cursor.pos = 4
    version = cursor.u32("the version")
    swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
    if version not in VERSIONS and swapped in (1, *VERSIONS):
        raise cursor.fail(
            "a big-endian GGUF file", f"its version reads {version}", "convert it to little-endian"
        )
    if version not in VERSIONS:
        raise cursor.fail(
            f"GGUF version {version}",
            "only 2 and 3 are known",
            "convert the model again" if version < 2 else "a newer ggsched may read it",
        )
    return version


def _entry(cursor: _Cursor, i: int, budget: int) -> tuple[str, MetaValue]:
    key = cursor.string(f"the key of metadata entry {i}")
    if not key or len(key) > MAX_KEY:
        raise cursor.fail(f"metadata entry {i} has a key of {len(key)} characters")
    what = f"the value of {quoted(key)}"
    code = cursor.u32(f"the type of {quoted(key)}")
    if code == _ARRAY:
        return key, _array(cursor, what, budget)
    if code == _STRING:
        return key, cursor.string(what)
    return key, _scalar(cursor, what, code)


def _scalar(cursor: _Cursor, what: str, code: int) -> int | float | bool:
    if code not in _SCALARS:
        raise cursor.fail(f"{what} has type {code}", "GGUF knows the types 0 to 12")
    layout = _SCALARS[code]
    value: int | float | bool = layout.unpack(cursor.take(layout.size, what))[0]
    return value


def _array(cursor: _Cursor, what: str, budget: int) -> MetaValue:
    code = cursor.u32(f"the element type of {what}")
    if code == _ARRAY:
        raise cursor.fail(f"{what} is an array of arrays", "GGUF files for models have none")
    if code != _STRING and code not in _SCALARS:
        raise cursor.fail(f"{what} has elements of type {code}", "GGUF knows the types 0 to 12")
    least = 8 if code == _STRING else _SCALARS[code].size
    n = cursor.count(f"the length of {what}", least)
    if n > budget:
        why = f"all arrays together may have {MAX_ARRAY_ELEMENTS} elements"
        raise cursor.fail(f"{what} has {n} elements", why, "this is not metadata of a model")
    if code == _STRING:
        return cursor.strings(n, f"an element of {what}")
    layout = struct.Struct(f"<{n}{_SCALARS[code].format[1:]}")
    return layout.unpack(cursor.take(layout.size, what))


def _tensor(cursor: _Cursor, i: int) -> TensorInfo:
    name = cursor.string(f"the name of tensor {i}")
    if not name or len(name.encode()) > MAX_TENSOR_NAME:
        why = f"names have 1 to {MAX_TENSOR_NAME} bytes"
        raise cursor.fail(f"tensor {i} has the name {quoted(name)}", why)
    what = f"the entry of tensor {quoted(name)}"
    n_axes = cursor.u32(what)
    if not 1 <= n_axes <= MAX_AXES:
        raise cursor.fail(
            f"tensor {quoted(name)} has {n_axes} axes", f"it may have 1 to {MAX_AXES}"
        )
    extents = tuple(cursor.u64(what) for _ in range(n_axes))
    return TensorInfo(name, extents, cursor.u32(what), cursor.u64(what))
