"""How a storage is shared among participants, and what a window on it becomes on each of them.

A *participant* is a device that computes parts of products; participants are counted from 0. The
bytes of a storage can be

    whole    each of some participants has all of it
    split    each has a part of one axis
    partial  each has a summand of it: the storage is the sum of what they have

A split axis consists of one or several *segments*, each of which is divided among the participants;
part ``p`` of the storage has part ``p`` of each segment, in order. One weight for Q, K and V has
three segments: a participant gets heads of each.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import gcd, prod

from ggsched.errors import PlanError
from ggsched.ir.dtype import DType
from ggsched.ir.tensor import Tensor, span_nbytes


@dataclass(frozen=True, slots=True)
class Whole:
    """All of it, on each of some participants (None: an input, which any device can read)."""

    on: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Partial:
    """A summand on each of some participants.

    Attributes:
        rows: Where each row is whole on one participant and 0 on the others: the ids that choose
            experts and how these are split, by which the participant is found; None elsewhere.
    """

    on: tuple[int, ...]
    rows: tuple[int, "Split"] | None = None


@dataclass(frozen=True)
class Split:
    """A part of one axis on each participant.

    Attributes:
        axis: Of the storage, or of a window on it.
        segments: For each segment of the axis the extents of the participants' parts, 0 for none.
    """

    axis: int
    segments: tuple[tuple[int, ...], ...]

    @cached_property
    def on(self) -> tuple[int, ...]:
        """Participants that have a part which is not empty."""
        return tuple(p for p, parts in enumerate(zip(*self.segments, strict=True)) if any(parts))

    def extent(self, part: int) -> int:
        """Return the extent of the axis in a participant's part."""
        return sum(s[part] for s in self.segments)

    def spans(self, part: int) -> tuple[tuple[int, int], ...]:
        """Return where a participant's parts lie in the whole axis: (first, one past) each."""
        starts = accumulate((sum(s) for s in self.segments), initial=0)
        found = []
        for start, segment in zip(starts, self.segments, strict=False):
            first = start + sum(segment[:part])
            found.append((first, first + segment[part]))
        return tuple(found)

    def span(self, part: int) -> tuple[int, int]:
        """Return where the one range lies that a participant has.

        Raises:
            PlanError: it has none, or several.
        """
        found = [span for span in self.spans(part) if span[0] < span[1]]
        if len(found) != 1:
            raise PlanError(
                f"participant {part} has {len(found)} ranges of experts",
                why="kernels take the experts of one range",
                hint="give each device experts that follow each other",
            )
        return found[0]


Layout = Whole | Split | Partial


@dataclass(frozen=True, slots=True)
class Window:
    """Shape, strides and offset of a window in bytes, as in ``Tensor``."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, t: Tensor) -> "Window":
        """Return the window that a tensor is."""
        return cls(t.shape, t.strides, t.offset)

    def sliced(self, axis: int, first: int, stop: int) -> "Window":
        """Return a part of one axis of unpacked elements."""
        shape = (*self.shape[:axis], stop - first, *self.shape[axis + 1 :])
        return Window(shape, self.strides, self.offset + first * self.strides[axis])

    def fits(self, dtype: DType, nbytes: int) -> bool:
        """Whether the window lies in a storage of that size."""
        return self.offset + span_nbytes(dtype, self.shape, self.strides) <= nbytes


def check_split(root: Tensor, split: Split) -> None:
    """Check that a split divides a storage into whole blocks.

    Raises:
        PlanError: an axis that does not exist, extents that do not add up to it, or a cut inside a
            quantised block.
    """
    where = f"{root.name!r}"
    if not 0 <= split.axis < len(root.shape):
        raise PlanError(f"split along axis {split.axis} of {list(root.shape)}", where=where)
    total = sum(map(sum, split.segments))
    if total != root.shape[split.axis] or min(map(min, split.segments)) < 0:
        raise PlanError(
            f"parts of {total} elements",
            where=where,
            why=f"axis {split.axis} has {root.shape[split.axis]}",
        )
    block = root.dtype.block if split.axis == len(root.shape) - 1 else 1
    if block > 1 and any(extent % block for segment in split.segments for extent in segment):
        raise PlanError(
            f"parts {split.segments} cut a block",
            where=where,
            why=f"blocks of {root.dtype} hold {block} elements",
        )


class Cuts:
    """A split storage in bytes: translates windows on the whole to windows on the parts."""

    def __init__(self, root: Tensor, split: Split) -> None:
        check_split(root, split)
        axis, block = split.axis, root.dtype.block
        self._dtype = root.dtype
        self._block = block if axis == len(root.shape) - 1 else 1
        step = root.strides[axis]
        self._segments = [[n // self._block * step for n in s] for s in split.segments]
        lengths = [sum(s) for s in self._segments]
        self._starts = [0, *accumulate(lengths)]
        self._whole = self._starts[-1]
        self._granules = [gcd(*s) for s in self._segments]
        self._granule = gcd(*self._granules) or self._whole
        self._of_part = list(map(sum, zip(*self._segments, strict=True)))

    def axis_of(self, window: Window) -> Split | None:
        """Return how the axes of a window are split, or None where that cannot be said."""
        found = self._carrier(window)
        if found is None:
            return None
        axis, first, end = found
        step, block = window.strides[axis], self._axis_block(window, axis)
        if any(granule % step for granule in self._granules[first:end]):
            return None
        segments = [tuple([n // step * block for n in s]) for s in self._segments[first:end]]
        return Split(axis, tuple(segments))

    def part(self, window: Window, part: int) -> Window:
        """Return what a window, for which ``axis_of`` gives a split, is in one part."""
        found = self._carrier(window)
        assert found is not None  # the caller has checked axis_of
        axis, first, end = found
        step = window.strides[axis]
        nbytes = sum(s[part] for s in self._segments[first:end])
        shape = list(window.shape)
        shape[axis] = nbytes // step * self._axis_block(window, axis)
        strides = [self._stride(s, part) for s in window.strides]
        outer, inner = divmod(window.offset, self._whole)
        before = sum(s[part] for s in self._segments[:first])
        offset = outer * self._of_part[part] + before + inner - self._starts[first]
        return Window(tuple(shape), tuple(strides), offset)

    def _stride(self, stride: int, part: int) -> int:
        outer, rest = divmod(stride, self._whole)
        return stride if rest or not outer else outer * self._of_part[part]

    def _axis_block(self, window: Window, axis: int) -> int:
        return self._dtype.block if axis == len(window.shape) - 1 else 1

    def _carrier(self, window: Window) -> tuple[int, int, int] | None:
        """Return the axis of a window that is cut, and the segments that it covers, or None.

        Axes that step over the whole range, or that stay within the smallest piece, are not cut.
        """
        offset = window.offset % self._whole
        carrier: int | None = None
        inner = 0  # bytes within a piece that the window covers from its first
        for axis, (extent, stride) in enumerate(zip(window.shape, window.strides, strict=True)):
            steps = extent // self._axis_block(window, axis)
            if steps <= 1 or not stride:
                continue
            if stride >= self._whole:
                if stride % self._whole:
                    return None
            elif steps * stride <= self._granule:
                inner += (steps - 1) * stride
            elif carrier is None:
                carrier = axis
            else:
                return None
        if carrier is None:
            return None
        step = window.strides[carrier]
        length = step * (window.shape[carrier] // self._axis_block(window, carrier))
        first = max(i for i, start in enumerate(self._starts[:-1]) if start <= offset)
        lead, stop = offset - self._starts[first], self._starts[first] + length
        if stop not in self._starts or lead + inner + self._dtype.block_nbytes > step:
            return None
        return carrier, first, self._starts.index(stop)


def even_parts(total: int, shares: Sequence[float], unit: int) -> tuple[int, ...]:
    """Divide a length by shares, at multiples of a unit; the last part takes what is left over.

    Args:
        total: Length to divide.
        shares: Shares of the participants, 0 or more, not all 0.
        unit: Cuts are made at multiples of this.
    """
    whole = sum(shares)
    ends = [min(total, round(total * s / whole / unit) * unit) for s in accumulate(shares)]
    last = max(i for i, share in enumerate(shares) if share > 0)
    ends[last:] = [total] * (len(ends) - last)
    return tuple(end - start for start, end in zip([0, *ends], ends, strict=False))


def part_shape(shape: tuple[int, ...], split: Split, part: int) -> tuple[int, ...]:
    """Return the shape of a participant's part of a storage."""
    return (*shape[: split.axis], split.extent(part), *shape[split.axis + 1 :])


def part_nbytes(shape: tuple[int, ...], dtype: DType) -> int:
    """Return the bytes of a contiguous storage."""
    *outer, row = shape
    return prod(outer) * dtype.row_nbytes(row)
