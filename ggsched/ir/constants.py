"""Constants: arrays that are operands of a builder's ops, and whose data travels with the graph.

A constant is a weight whose name is the hash of its type, shape and bytes. So equal constants are
one tensor in all graphs of a scheduler, different ones never have the same name, and digests and
plans, which hold names, distinguish them without the data.

Anything with ``__array__`` or the buffer protocol is an array here, so that this needs no numpy.
"""

import hashlib
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from sys import byteorder
from typing import Any, Final, Protocol, Self

from ggsched.errors import GraphError
from ggsched.ir.dtype import ARRAY_DTYPES, BOOL, F32, F64, I32, I64, DType
from ggsched.ir.ops import OpDef, Params, infer
from ggsched.ir.tensor import Role, Tensor, contiguous_strides, span_nbytes


class HasArray(Protocol):
    """What numpy can take as an array."""

    def __array__(self) -> Any:
        """Return an array of numpy."""


Operand = Tensor | HasArray
"""What ops of a builder take."""

PREFIX: Final = "constant."
_PIECE: Final = 1 << 16
_NARROW: Final = {F64: F32, I64: I32}
_CODES: Final = {
    ("float", 2): "e",
    ("float", 4): "f",
    ("float", 8): "d",
    ("int", 1): "b",
    ("int", 2): "h",
    ("int", 4): "i",
    ("int", 8): "q",
    ("uint", 1): "B",
    ("uint", 2): "H",
    ("uint", 4): "I",
    ("uint", 8): "Q",
    ("bool", 1): "?",
}
_KINDS: Final = {
    **dict.fromkeys("efd", "float"),
    **dict.fromkeys("bhilqn", "int"),
    **dict.fromkeys("BHILQN", "uint"),
    "?": "bool",
}
_TYPES: Final = {_CODES[t.kind, t.block_nbytes]: t for t in ARRAY_DTYPES}
_SPELLED: Final = {t: code for code, t in _TYPES.items()}


@dataclass(frozen=True, slots=True)
class Constant:
    """A contiguous array.

    Attributes:
        dtype: Element type, one of ``ARRAY_DTYPES``.
        shape: Extents, outermost first.
        data: The bytes, row-major, in little-endian order.
    """

    dtype: DType
    shape: tuple[int, ...]
    data: bytes

    @property
    def name(self) -> str:
        """The name of the weight that has these bytes."""
        h = hashlib.blake2b(f"{self.dtype}{list(self.shape)}".encode(), digest_size=12)
        h.update(self.data)
        return PREFIX + h.hexdigest()

    def as_type(self, dtype: DType) -> Self:
        """Return the same values in another type.

        Raises:
            GraphError: a value is not exact in it, or one of the types is bool, or the new one is
                not a type of arrays.
        """
        if dtype is self.dtype:
            return self
        if BOOL in (dtype, self.dtype) or dtype not in _SPELLED:
            raise GraphError(f"an array of {self.dtype} is not converted to {dtype}")
        pieces = (_packed(values, self.dtype, dtype) for values in self._values())
        return type(self)(dtype, self.shape, b"".join(pieces))

    def as_tensor(self, number: int = -1) -> Tensor:
        """Return the weight, with an id that the caller knows."""
        strides = contiguous_strides(self.dtype, self.shape)
        nbytes = span_nbytes(self.dtype, self.shape, strides)
        return Tensor(
            number, self.name, self.dtype, self.shape, strides, number, 0, nbytes, Role.WEIGHT
        )

    def _values(self) -> Iterator[tuple[Any, ...]]:
        step = _PIECE * self.dtype.block_nbytes
        for start in range(0, len(self.data), step):
            piece = self.data[start : start + step]
            count = len(piece) // self.dtype.block_nbytes
            yield struct.unpack(f"<{count}{_SPELLED[self.dtype]}", piece)


def _packed(values: Sequence[Any], source: DType, dtype: DType) -> bytes:
    layout = f"<{len(values)}{_SPELLED[dtype]}"
    try:
        wanted = values if dtype.kind == "float" else [int(v) for v in values]
        packed = struct.pack(layout, *wanted)
    except (struct.error, OverflowError, ValueError):  # out of range, or not finite
        packed = b""
    kept = struct.unpack(layout, packed) if packed else [None] * len(values)
    for before, after in zip(values, kept, strict=True):
        if not packed and _fits(before, dtype):
            continue
        if before != after and not (before != before and after != after):
            raise GraphError(
                f"{before!r} in an array of {source} is not exact in {dtype}",
                hint="convert the array yourself, as in array.astype(numpy.float32), to round it",
            )
    return packed


def _fits(value: Any, dtype: DType) -> bool:
    try:
        (kept,) = struct.unpack(
            f"<{_SPELLED[dtype]}",
            struct.pack(f"<{_SPELLED[dtype]}", value if dtype.kind == "float" else int(value)),
        )
    except (struct.error, OverflowError, ValueError):
        return False
    return bool(kept == value or (kept != kept and value != value))


def read_array(value: Any) -> Constant:
    """Return a copy of an array: of numpy, or anything with ``__array__`` or the buffer protocol.

    Raises:
        GraphError: it gives no array, or one of another type or byte order than tensors have.
    """
    hint = f"arrays have one of the types {', '.join(t.name for t in ARRAY_DTYPES)}"
    try:
        given = value.__array__() if hasattr(type(value), "__array__") else value
        found = memoryview(given)
        code = found.format.lstrip("@=<" if byteorder == "little" else "@=")
        shape = tuple(found.shape or ())
        dtype = _TYPES[_CODES[_KINDS[code], found.itemsize]]
    except KeyError:
        raise GraphError(f"an array of the type {found.format!r}", hint=hint) from None
    except Exception as error:  # whatever a foreign library raises
        raise GraphError(f"no array could be read: {error}", hint=hint) from error
    return Constant(dtype, shape, found.tobytes())


def fitted(
    op: OpDef, params: Params, operands: Sequence[Tensor | Constant]
) -> list[Tensor | Constant]:
    """Return operands of an op with each constant in a type that the op takes.

    Constants keep their types if the op takes them. If not, 64-bit ones become f32 and i32, and
    if it does not take that either, all become the type of the first operand that is a tensor.

    Raises:
        GraphError: a value is not exact in such a type, or the operands do not fit the op.
    """
    first = next((t.dtype for t in operands if isinstance(t, Tensor)), F32)
    inexact = refused = None
    for narrow in ({}, _NARROW, dict.fromkeys(ARRAY_DTYPES, first)):
        try:
            found = [
                t.as_type(narrow.get(t.dtype, t.dtype)) if isinstance(t, Constant) else t
                for t in operands
            ]
        except GraphError as error:
            inexact = inexact or error
            continue
        try:
            infer(op, [t.as_tensor() if isinstance(t, Constant) else t for t in found], params)
        except GraphError as error:
            refused = error
            continue
        return found
    raise inexact or refused or GraphError("no operands", where=op.name)
