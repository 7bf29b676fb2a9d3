"""Block layouts of quantised types, as data.

A block holds consecutive elements of the last axis. Element ``e`` has the value

    scale * sub_scales[s] * codes[e] + min * sub_mins[s]        with s = e // (elements per s)

where ``sub_scales``, ``min`` and ``sub_mins`` are there in some layouts only. Everything else about
a type follows from its layout: sizes, decoders, encoders, constants of kernels, random blocks.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

RealKind = Literal["f16", "e8m0_half"]
"""``f16``: two bytes, little-endian. ``e8m0_half``: a byte ``n`` that stands for 2^(n - 128)."""

REAL_NBYTES: Final[dict[RealKind, int]] = {"f16": 2, "e8m0_half": 1}


@dataclass(frozen=True, slots=True)
class Bits:
    """An array of bit fields: some bits of each integer of an array, packed in bytes.

    ``run`` consecutive integers lie in as many consecutive bytes, first all in the lowest bits of
    these bytes, then the next ``run`` integers in the bits above, until the bytes are full.

    Attributes:
        at: First byte in the block.
        count: Integers.
        width: Bits of each of them that are here.
        run: See above; 1 packs the integers one after the other.
        start: The first integer of the array.
        low: Lowest bit of a byte that is used.
        up: Place of these bits in the integer: they count ``1 << up``.
    """

    at: int
    count: int
    width: int
    run: int = 1
    start: int = 0
    low: int = 0
    up: int = 0

    def places(self) -> Iterator[tuple[int, int]]:
        """Yield byte and lowest bit of each integer, from ``start`` on."""
        each = self.run * ((8 - self.low) // self.width)
        for i in range(self.count):
            byte = self.at + i // each * self.run + i % self.run
            yield byte, self.low + i % each // self.run * self.width


@dataclass(frozen=True, slots=True)
class Integers:
    """An array of small integers, put together from bit fields.

    Attributes:
        parts: The bit fields.
        zero: What is subtracted.
        is_signed: Whether the integers are in two's complement.
        table: Numbers that the integers are indices of; none if they are numbers themselves.
    """

    parts: tuple[Bits, ...]
    zero: int = 0
    is_signed: bool = False
    table: tuple[float, ...] = ()

    @property
    def count(self) -> int:
        """How many there are."""
        return max(part.start + part.count for part in self.parts)

    @property
    def width(self) -> int:
        """Bits of each."""
        return max(part.up + part.width for part in self.parts)

    @property
    def range(self) -> tuple[float, float]:
        """The smallest and the largest number."""
        if self.table:
            return min(self.table), max(self.table)
        half = 1 << (self.width - 1)
        low = -half if self.is_signed else 0
        return low - self.zero, low + 2 * half - 1 - self.zero


@dataclass(frozen=True, slots=True)
class Real:
    """A number of a block.

    Attributes:
        at: First byte in the block.
        kind: How it is stored.
        sign: 1, or -1 for a number that is subtracted.
    """

    at: int
    kind: RealKind = "f16"
    sign: int = 1


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """The layout of a block, see above.

    Attributes:
        codes: An integer for each element.
        scale: What they are multiplied with.
        min: What is added.
        sub_scales: Multiply ``scale``, for equal parts of the block each.
        sub_mins: Multiply ``min`` likewise.
    """

    codes: Integers
    scale: Real
    min: Real | None = None
    sub_scales: Integers | None = None
    sub_mins: Integers | None = None

    @property
    def elements(self) -> int:
        """Elements of a block."""
        return self.codes.count

    @property
    def reals(self) -> tuple[Real, ...]:
        """The numbers of a block."""
        return (self.scale,) if self.min is None else (self.scale, self.min)

    @property
    def arrays(self) -> tuple[Integers, ...]:
        """The arrays of integers of a block."""
        found = (self.codes, self.sub_scales, self.sub_mins)
        return tuple(integers for integers in found if integers is not None)

    @property
    def nbytes(self) -> int:
        """Bytes of a block."""
        return max(byte for byte, _ in self.bits()) + 1

    def bits(self) -> Iterator[tuple[int, int]]:
        """Yield byte and bit of everything that is stored; each bit of a block comes once."""
        for real in self.reals:
            for i in range(8 * REAL_NBYTES[real.kind]):
                yield real.at + i // 8, i % 8
        for integers in self.arrays:
            for part in integers.parts:
                for byte, low in part.places():
                    yield from ((byte, low + i) for i in range(part.width))

    def sample(self) -> bytes:
        """Return a block of numbers of ordinary size: scales of 1/16, different codes."""
        block = bytearray(self.nbytes)
        for real in self.reals:
            kind = {"f16": b"\x00\x2c", "e8m0_half": b"\x7c"}[real.kind]
            block[real.at : real.at + len(kind)] = kind
        for integers in self.arrays:
            for part in integers.parts:
                for i, (byte, low) in enumerate(part.places(), part.start + 1):
                    block[byte] |= (i >> part.up & (1 << part.width) - 1) << low
        return bytes(block)
