"""Damaged GGUF files, thousands of them, the same ones in every run.

Each mutant differs from a healthy file in one thing that its name states. Most are damaged so that
a reader must refuse them; a few are odd but sound. A bit flip in a header may be either.
"""

import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from tests.models.gguf_layout import (
    ARRAY_CODE,
    STRING_CODE,
    Field,
    Layout,
    entry_bytes,
    fields_of,
    gguf_layout,
    string_bytes,
)

Expectation = Literal["error", "sound", "either"]


@dataclass(frozen=True, slots=True)
class Mutant:
    """A damaged file.

    Attributes:
        name: What was done, and where.
        data: The file.
        expect: ``error``: a reader must refuse it; ``sound``: it must not.
    """

    name: str
    data: bytes
    expect: Expectation = "either"


_FLOATS: Final = (float("nan"), float("inf"), float("-inf"), 0.0, -1.0, 1e-45, -1e30, 3e38)
_U8, _I32, _U32, _F32, _U64 = 0, 5, 4, 6, 10
_ALIGNMENTS: Final = (0, 3, 6, 31, 33, 48, 2**31 + 1, 2**32 - 1)


def gguf_mutants(data: bytes, *, flips: int = 200, seed: int = 0) -> Iterator[Mutant]:
    """Yield damaged copies of a healthy file.

    Args:
        data: A healthy GGUF file, version 2 or 3, alignment 32.
        flips: Number of random bit flips in the header, and a tenth of that in the weights.
        seed: Of these flips.
    """
    layout = gguf_layout(data)
    yield from _foreign(layout)
    yield from _truncated(layout)
    yield from _numbers(layout)
    yield from _values(layout)
    yield from _texts(layout)
    yield from _metadata(layout)
    yield from _inserted(layout)
    yield from _alignment(layout)
    yield from _tensors(layout)
    yield from _flipped(layout, flips, random.Random(seed))
    yield Mutant("bytes after the last tensor", data + bytes(100), "sound")


def _put(data: bytes, field: Field, value: int) -> bytes:
    nbytes = field.stop - field.start
    raw = (value % (1 << 8 * nbytes)).to_bytes(nbytes, "little")
    return data[: field.start] + raw + data[field.stop :]


def _label(field: Field) -> str:
    return f"{field.kind} at byte {field.start} of {field.owner}"


def _foreign(layout: Layout) -> Iterator[Mutant]:
    data = layout.data
    yield Mutant("empty", b"", "error")
    for magic in (b"GGML", b"ggjt", b"FUGG", b"\x7fELF", b"PK\x03\x04", b"\0\0\0\0", b"gguf"):
        yield Mutant(f"magic {magic!r}", magic + data[4:], "error")
    for version in (0, 1, 4, 99, 2**31, 2**32 - 1):
        yield Mutant(
            f"version {version}", data[:4] + struct.pack("<I", version) + data[8:], "error"
        )
    for version in (1, 2, 3):
        raw = struct.pack(">I", version)
        yield Mutant(f"big-endian, version {version}", data[:4] + raw + data[8:], "error")
    swapped = data[:4] + data[4:8][::-1] + data[8:16][::-1] + data[16:24][::-1] + data[24:]
    yield Mutant("big-endian counts", swapped, "error")
    yield Mutant("the header only", data[:24], "error")
    yield Mutant("text", b"GGUF is a file format\n" * 40, "error")
    yield Mutant("the same four bytes for ever", data[:4] * 4000, "error")


def _truncated(layout: Layout) -> Iterator[Mutant]:
    cuts = {layout.data_start, layout.data_start + 1, len(layout.data) - 1}
    for f in layout.fields:
        cuts |= {f.start, f.start + 1, (f.start + f.stop) // 2, f.stop - 1}
    rest = len(layout.data) - layout.data_start
    cuts |= {layout.data_start + rest * i // 20 for i in range(20)}
    for cut in sorted(cuts):
        if 0 < cut < len(layout.data):
            yield Mutant(f"cut at byte {cut}", layout.data[:cut], "error")


def _numbers(layout: Layout) -> Iterator[Mutant]:
    """Counts, lengths, types, extents and offsets of absurd and of slightly wrong size."""
    wide = (0, 2**16, 2**31, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
    for f in fields_of(layout, "count", "length", "type", "axes", "extent", "offset"):
        old = int.from_bytes(layout.data[f.start : f.stop], "little")
        values = {old + 1, old - 1, 2 * old, *wide}
        if f.kind == "type":
            values = {*range(14), 30, 39, 99, 2**31, 2**32 - 1}
        elif f.kind == "axes":
            values = {0, 1, 2, 3, 4, 5, 2**31, 2**32 - 1}
        for value in sorted(v % 2**64 for v in values - {old}):
            name = f"{_label(f)}: {old} -> {value}"
            yield Mutant(name, _put(layout.data, f, value))


def _values(layout: Layout) -> Iterator[Mutant]:
    for f in fields_of(layout, "value"):
        old = layout.data[f.start : f.stop]
        if f.is_float:
            layout_f = "<f" if len(old) == 4 else "<d"
            raws = [struct.pack(layout_f, v) for v in _FLOATS]
        else:
            ints = (0, 1, 2, 3, 5, 7, 255, 2**15, 2**31 - 1, 2**31, 2**40, 2**64 - 1)
            raws = [(v % (1 << 8 * len(old))).to_bytes(len(old), "little") for v in ints]
        for raw in dict.fromkeys(raws):
            if raw != old:
                name = f"{_label(f)}: {old.hex()} -> {raw.hex()}"
                yield Mutant(name, layout.data[: f.start] + raw + layout.data[f.stop :])


def _texts(layout: Layout) -> Iterator[Mutant]:
    for f in fields_of(layout, "text"):
        if f.start == f.stop:
            continue
        for byte in (0xFF, 0xC0, 0x00, 0x0A, 0x1B):
            raw = layout.data[: f.start] + bytes([byte]) + layout.data[f.start + 1 :]
            expect: Expectation = "error" if byte >= 0xC0 else "either"
            yield Mutant(f"{_label(f)}: first byte {byte:#x}", raw, expect)


def _metadata(layout: Layout) -> Iterator[Mutant]:
    """Entries left out, repeated, or with a value of another type."""
    entries, tensors = layout.entry_bytes(), layout.tensor_bytes()
    keys = [e[8 : 8 + int.from_bytes(e[:8], "little")].decode() for e in entries]
    for i, key in enumerate(keys):
        others = entries[:i] + entries[i + 1 :]
        yield Mutant(f"without {key}", layout.rebuilt(others, tensors))
        yield Mutant(f"{key} twice", layout.rebuilt([*entries, entries[i]], tensors), "error")
        for what, code, value in _VALUES:
            changed = [*others, entry_bytes(key, code, value)]
            yield Mutant(f"{key} is {what}", layout.rebuilt(changed, tensors))
    yield Mutant("no metadata", layout.rebuilt([], tensors), "error")
    yield Mutant("metadata backwards", layout.rebuilt(entries[::-1], tensors), "sound")


_VALUES: Final = (
    ("a string", STRING_CODE, string_bytes(b"seven")),
    ("an empty string", STRING_CODE, string_bytes(b"")),
    ("a long string", STRING_CODE, string_bytes(b"x" * 5000)),
    ("true", 7, b"\x01"),
    ("u8 0", _U8, b"\x00"),
    ("i32 -1", _I32, struct.pack("<i", -1)),
    ("u64 2**40", _U64, struct.pack("<Q", 2**40)),
    ("u64 2**63", _U64, struct.pack("<Q", 2**63)),
    ("u32 10**9", _U32, struct.pack("<I", 10**9)),
    ("f32 NaN", _F32, struct.pack("<f", float("nan"))),
    ("f32 -1", _F32, struct.pack("<f", -1.0)),
    ("an empty array", ARRAY_CODE, struct.pack("<IQ", _U32, 0)),
    ("an array of numbers", ARRAY_CODE, struct.pack("<IQIII", _U32, 3, 4, 4, 4)),
    ("an array of strings", ARRAY_CODE, struct.pack("<IQ", 8, 2) + string_bytes(b"a") * 2),
    ("an array of floats", ARRAY_CODE, struct.pack("<IQff", _F32, 2, 0.5, float("nan"))),
)


def _inserted(layout: Layout) -> Iterator[Mutant]:
    """Entries that no model has: nested arrays, arrays of any length, unknown types."""
    entries, tensors = layout.entry_bytes(), layout.tensor_bytes()
    deep = struct.pack("<IQ", ARRAY_CODE, 1) * 2000 + struct.pack("<IQ", _U8, 0)
    bad = [
        ("an array of arrays", ARRAY_CODE, struct.pack("<IQIQB", ARRAY_CODE, 1, _U8, 1, 7)),
        ("arrays 2000 deep", ARRAY_CODE, deep),
        ("an unknown type", 13, b"\0" * 8),
        ("an array of an unknown type", ARRAY_CODE, struct.pack("<IQ", 77, 1) + b"\0" * 8),
    ]
    bad.extend(
        (f"{n} elements of type {code}", ARRAY_CODE, struct.pack("<IQ", code, n))
        for code in (0, 4, 6, 7, 8, 10, 12)
        for n in (2**24, 2**31, 2**40, 2**61, 2**64 - 1)
    )
    bad.extend(
        (f"a string of {n} bytes", STRING_CODE, struct.pack("<Q", n))
        for n in (2**31, 2**40, 2**63, 2**64 - 1)
    )
    for what, code, value in bad:
        for at in (0, len(entries)):
            changed = [*entries[:at], entry_bytes("x.extra", code, value), *entries[at:]]
            yield Mutant(f"{what} at entry {at}", layout.rebuilt(changed, tensors), "error")
    empty_key = layout.rebuilt([*entries, entry_bytes("", _U8, b"\0")], tensors)
    yield Mutant("an empty key", empty_key, "error")
    long_key = layout.rebuilt([*entries, entry_bytes("k" * 70000, _U8, b"\0")], tensors)
    yield Mutant("a key of 70000 bytes", long_key, "error")
    extra = entry_bytes("x.note", STRING_CODE, string_bytes(b"line\n\x1b[31m"))
    yield Mutant("an unknown key", layout.rebuilt([*entries, extra], tensors), "sound")


def _alignment(layout: Layout) -> Iterator[Mutant]:
    entries, tensors = layout.entry_bytes(), layout.tensor_bytes()
    numbers = [(str(n), _U32, struct.pack("<I", n)) for n in _ALIGNMENTS]
    for what, code, value in (*numbers, *_VALUES):
        extra = entry_bytes("general.alignment", code, value)
        raw = layout.rebuilt([*entries, extra], tensors)
        yield Mutant(f"alignment is {what}", raw, "error")
    extra = entry_bytes("general.alignment", _U32, struct.pack("<I", 32))
    yield Mutant("alignment 32, said", layout.rebuilt([*entries, extra], tensors), "sound")


def _tensors(layout: Layout) -> Iterator[Mutant]:
    """Tensors left out, repeated, on each other's bytes, under another name."""
    entries, tensors = layout.entry_bytes(), layout.tensor_bytes()
    for i, tensor in enumerate(tensors):
        name = tensor[8 : 8 + int.from_bytes(tensor[:8], "little")].decode()
        others = tensors[:i] + tensors[i + 1 :]
        yield Mutant(f"without tensor {name}", layout.rebuilt(entries, others))
        yield Mutant(f"tensor {name} twice", layout.rebuilt(entries, [*tensors, tensor]), "error")
        other = tensors[i - 1]
        moved = tensor[:-8] + other[-8:]
        overlap = layout.rebuilt(entries, [*others, moved])
        yield Mutant(f"tensor {name} on the bytes of another", overlap, "error")
        unaligned = tensor[:-8] + struct.pack("<Q", int.from_bytes(tensor[-8:], "little") + 1)
        raw = layout.rebuilt(entries, [*others, unaligned])
        yield Mutant(f"tensor {name} one byte off", raw, "error")
        longer = string_bytes(b"n" * 65) + tensor[8 + len(name) :]
        raw = layout.rebuilt(entries, [*tensors, longer])
        yield Mutant(f"tensor {name} with a long name", raw, "error")
    yield Mutant("no tensors", layout.rebuilt(entries, []), "error")
    yield Mutant("tensors backwards", layout.rebuilt(entries, tensors[::-1]), "sound")


def _flipped(layout: Layout, n: int, rng: random.Random) -> Iterator[Mutant]:
    for _ in range(n):
        raw = bytearray(layout.data)
        bit = rng.randrange(8 * layout.data_start)
        raw[bit // 8] ^= 1 << bit % 8
        yield Mutant(f"bit {bit % 8} of byte {bit // 8} flipped", bytes(raw))
    for _ in range(n // 10):
        raw = bytearray(layout.data)
        for _ in range(64):
            raw[rng.randrange(layout.data_start, len(raw))] = rng.randrange(256)
        yield Mutant("64 bytes of the weights at random", bytes(raw), "sound")
