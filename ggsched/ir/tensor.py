"""Tensors: immutable descriptions of bytes in a storage.

A tensor never holds data. A *storage* is a range of bytes with one owner, the root tensor; every
other tensor on it is a *view*: an offset, a shape and strides. Two tensors conflict when their
byte ranges on one storage overlap, whatever their names.
"""

from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from math import prod
from typing import Final

from ggsched.errors import GraphError
from ggsched.ir.dtype import DType
from ggsched.ir.operators import Builder, Operators
from ggsched.ops.record import ARRAY_AXES

MAX_AXES: Final = ARRAY_AXES

KNOWN: Final = 4096
"""How many windows, and calls of ops, are remembered: layers of a model have the same ones."""


class Role(Enum):
    """What a storage is for, which decides how long its bytes live."""

    INPUT = "input"  # set by the host before each run
    WEIGHT = "weight"  # constant, loaded once
    STATE = "state"  # persists from run to run (a KV cache); starts as zeros
    TEMP = "temp"  # produced by a node, dead after its last use


@dataclass(frozen=True, slots=True)
class Tensor(Operators):
    """A typed, strided window on a storage.

    Attributes:
        id: Index in ``graph.tensors``.
        name: Unique for inputs, weights and states; a label otherwise.
        dtype: Element type.
        shape: Up to eight axes, outermost first, as in numpy.
        strides: Bytes from one index to the next per axis. On the last axis of a quantised type
            it is the bytes from one *block* to the next.
        storage: Id of the root tensor.
        offset: First byte, from the start of the storage.
        nbytes: Length of the bounding byte range ``[offset, offset + nbytes)``.
        role: Role of the storage.
        builder: What made it, for operators; None in graphs.
    """

    id: int
    name: str
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    storage: int
    offset: int
    nbytes: int
    role: Role
    builder: Builder | None = field(default=None, compare=False, repr=False)

    @property
    def end(self) -> int:
        """One past the last byte, from the start of the storage."""
        return self.offset + self.nbytes

    @property
    def is_view(self) -> bool:
        """Whether this tensor is a window on another one's storage."""
        return self.storage != self.id

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements fill the byte range in row-major order without gaps."""
        return self.strides == contiguous_strides(self.dtype, self.shape) or self.size == 0

    @property
    def may_overlap_itself(self) -> bool:
        """Whether two elements may share bytes, as with a stride of zero.

        True also for some interleaved windows that do not (the test is simple on purpose).
        """
        return _may_overlap(self.dtype, self.shape, self.strides)


@lru_cache(KNOWN)
def _may_overlap(dtype: DType, shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    if prod(shape) == 0:
        return False
    extents = list(shape)
    if extents:
        extents[-1] = shape[-1] // dtype.block
    filled = dtype.block_nbytes
    for stride, extent in sorted(zip(strides, extents, strict=True)):
        if extent > 1:
            if stride < filled:
                return True
            filled += (extent - 1) * stride
    return False


@lru_cache(KNOWN)
def contiguous_strides(dtype: DType, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides in bytes of a row-major tensor.

    Raises:
        GraphError: the last axis is not a whole number of blocks.
    """
    if not shape:
        return ()
    strides = [dtype.block_nbytes]
    step = dtype.row_nbytes(shape[-1])
    for extent in reversed(shape[:-1]):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


@lru_cache(KNOWN)
def span_nbytes(dtype: DType, shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Return the length of the bounding byte range of a strided tensor.

    Raises:
        GraphError: a negative stride or extent, or more than eight axes.
    """
    if len(shape) != len(strides) or len(shape) > MAX_AXES:
        raise GraphError(
            f"shape {shape} with strides {strides}",
            why=f"a tensor has at most {MAX_AXES} axes and one stride for each",
        )
    if any(extent < 0 for extent in shape) or any(stride < 0 for stride in strides):
        raise GraphError(f"shape {shape} with strides {strides}", why="negative extent or stride")
    if 0 in shape:
        return 0
    if not shape:
        return dtype.block_nbytes
    outer = sum((n - 1) * s for n, s in zip(shape[:-1], strides[:-1], strict=True))
    blocks = dtype.row_nbytes(shape[-1]) // dtype.block_nbytes
    return outer + (blocks - 1) * strides[-1] + dtype.block_nbytes


def verify_window(t: Tensor, root: Tensor) -> None:
    """Check that a tensor is a sound window on its root (for a root: on itself).

    Raises:
        GraphError: shape or strides that are not tuples, another element type, bytes outside the
            storage, an offset or a stride that is not a multiple of the element (of the block for
            quantised types), quantised blocks that are not adjacent along the last axis, a root
            that is not contiguous.
    """
    where = f"{t.name!r}"
    if type(t.shape) is not tuple or type(t.strides) is not tuple:
        raise GraphError(f"shape {t.shape} and strides {t.strides} must be tuples", where=where)
    if t.dtype is not root.dtype:
        raise GraphError(f"a window of {t.dtype} on a storage of {root.dtype}", where=where)
    if t.nbytes != span_nbytes(t.dtype, t.shape, t.strides):
        raise GraphError(f"{t.nbytes} bytes are not those of the strides", where=where)
    if t.offset < 0 or t.end > root.nbytes:
        raise GraphError(
            f"bytes [{t.offset}, {t.end}) lie outside the storage",
            where=where,
            why=f"it has {root.nbytes} bytes",
        )
    unit = t.dtype.block_nbytes
    if t.offset % unit or any(stride % unit for stride in t.strides):
        raise GraphError(
            f"offset {t.offset} and strides {t.strides} are not aligned",
            where=where,
            why=f"the elements or blocks of {t.dtype} have {unit} bytes",
        )
    if t.dtype.is_quantized and t.strides and t.strides[-1] != unit:
        raise GraphError("quantised blocks must be adjacent along the last axis", where=where)
    if not t.is_view and (t.offset or t.strides != contiguous_strides(t.dtype, t.shape)):
        raise GraphError("a storage must be contiguous from its first byte", where=where)
