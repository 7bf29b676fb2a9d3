"""Where each field of a healthy GGUF file lies, so that a test can damage one at a time.

Written apart from ``ggsched_llm``, which is what such tests are about, and for healthy files
only: it believes what it reads.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

FieldKind = Literal[
    "magic", "version", "count", "length", "text", "type", "value", "axes", "extent", "offset"
]
SCALAR_NBYTES: Final = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
FLOAT_CODES: Final = (6, 12)
STRING_CODE: Final = 8
ARRAY_CODE: Final = 9
DEFAULT_ALIGNMENT: Final = 32


@dataclass(frozen=True, slots=True)
class Field:
    """A field of the header.

    Attributes:
        owner: The metadata key or the tensor that it belongs to, or ``header``.
        kind: What it is.
        start: First byte.
        stop: One past the last byte.
        is_float: Whether a value is a floating-point number.
    """

    owner: str
    kind: FieldKind
    start: int
    stop: int
    is_float: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """The parts of a file.

    Attributes:
        data: The whole file.
        fields: All fields of the header, in file order.
        entries: First and last byte of each metadata entry.
        tensors: First and last byte of each tensor's entry.
        data_start: First byte of the weights.
    """

    data: bytes
    fields: tuple[Field, ...]
    entries: tuple[tuple[int, int], ...]
    tensors: tuple[tuple[int, int], ...]
    data_start: int

    def entry_bytes(self) -> list[bytes]:
        """Return each metadata entry."""
        return [self.data[a:b] for a, b in self.entries]

    def tensor_bytes(self) -> list[bytes]:
        """Return each tensor's entry."""
        return [self.data[a:b] for a, b in self.tensors]

    def rebuilt(self, entries: Sequence[bytes], tensors: Sequence[bytes]) -> bytes:
        """Return the file with other entries in its header; counts and padding fit."""
        head = self.data[:8] + struct.pack("<QQ", len(tensors), len(entries))
        head += b"".join(entries) + b"".join(tensors)
        padding = -len(head) % DEFAULT_ALIGNMENT
        return head + bytes(padding) + self.data[self.data_start :]


class _Walker:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.pos = 0
        self.fields: list[Field] = []

    def number(self, owner: str, kind: FieldKind, nbytes: int) -> int:
        start = self.pos
        self.pos += nbytes
        self.fields.append(Field(owner, kind, start, self.pos))
        return int.from_bytes(self.data[start : self.pos], "little")

    def text(self, owner: str) -> str:
        nbytes = self.number(owner, "length", 8)
        start = self.pos
        self.pos += nbytes
        self.fields.append(Field(owner, "text", start, self.pos))
        return self.data[start : self.pos].decode()

    def entry(self) -> tuple[int, int]:
        start = self.pos
        key_nbytes = int.from_bytes(self.data[start : start + 8], "little")
        key = self.data[start + 8 : start + 8 + key_nbytes].decode()
        self.text(key)
        self.value(key, self.number(key, "type", 4))
        return start, self.pos

    def value(self, key: str, code: int) -> None:
        if code == STRING_CODE:
            self.text(key)
        elif code == ARRAY_CODE:
            element = self.number(key, "type", 4)
            for _ in range(self.number(key, "count", 8)):
                self.value(key, element)
        else:
            start = self.pos
            self.pos += SCALAR_NBYTES[code]
            self.fields.append(Field(key, "value", start, self.pos, code in FLOAT_CODES))

    def tensor(self) -> tuple[int, int]:
        start = self.pos
        name_nbytes = int.from_bytes(self.data[start : start + 8], "little")
        name = self.data[start + 8 : start + 8 + name_nbytes].decode()
        self.text(name)
        for _ in range(self.number(name, "axes", 4)):
            self.number(name, "extent", 8)
        self.number(name, "type", 4)
        self.number(name, "offset", 8)
        return start, self.pos


def gguf_layout(data: bytes) -> Layout:
    """Find the fields of a healthy little-endian GGUF file of version 2 or 3."""
    walker = _Walker(data)
    walker.number("header", "magic", 4)
    walker.number("header", "version", 4)
    n_tensors = walker.number("header", "count", 8)
    n_entries = walker.number("header", "count", 8)
    entries = tuple(walker.entry() for _ in range(n_entries))
    tensors = tuple(walker.tensor() for _ in range(n_tensors))
    start = -(-walker.pos // DEFAULT_ALIGNMENT) * DEFAULT_ALIGNMENT
    return Layout(data, tuple(walker.fields), entries, tensors, start)


def string_bytes(text: bytes) -> bytes:
    """Return a GGUF string."""
    return struct.pack("<Q", len(text)) + text


def entry_bytes(key: str, code: int, value: bytes) -> bytes:
    """Return a metadata entry with a value that is bytes already."""
    return string_bytes(key.encode()) + struct.pack("<I", code) + value


def fields_of(layout: Layout, *kinds: FieldKind) -> Iterator[Field]:
    """Yield the fields of some kinds."""
    return (f for f in layout.fields if f.kind in kinds)
