"""Weights whose rows are apart in memory: columns of a matrix that devices share.

Joining the rows would take memory that is touched for the first time, by one thread. They are read
row by row instead, into memory that is there already.
"""

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggsched.backend.protocols import HostMemory
from ggsched.files.mapping import file_behind


@dataclass(frozen=True, slots=True)
class WeightRows:
    """Bytes of a weight, row behind row.

    Attributes:
        rows: uint8 (n, bytes of a row); the bytes of a row are contiguous.
    """

    rows: NDArray[np.uint8]

    @property
    def nbytes(self) -> int:
        """Return the bytes of all rows."""
        return self.rows.nbytes

    def joined(self) -> HostMemory:
        """Return the bytes in memory of their own."""
        return np.ascontiguousarray(self.rows).reshape(-1).data.toreadonly()

    def read_into(self, target: HostMemory, start: int) -> None:
        """Copy the bytes from ``start`` on; from the file itself where they are mapped from one.

        Raises:
            ModelError: the file has become shorter, or cannot be read.
        """
        width = self.rows.shape[1]
        row, column = divmod(start, width)
        head = min(-start % width, target.nbytes)
        whole = (target.nbytes - head) // width
        tail = head + whole * width
        if head:
            self._read(target[:head], row, column, head)
            row += 1
        if whole:
            self._read(target[head:tail], row, 0, width)
        if tail < target.nbytes:
            self._read(target[tail:], row + whole, 0, target.nbytes - tail)

    def _read(self, target: HostMemory, first: int, column: int, width: int) -> None:
        """Copy ``width`` bytes of as many rows as the target takes."""
        source = self.rows[first : first + target.nbytes // width, column : column + width]
        begin, end = file_behind(source[0]), file_behind(source[-1])
        if begin is None or end is None or begin[0] is not end[0]:
            np.copyto(np.frombuffer(target, np.uint8).reshape(source.shape), source)
            return
        file, offset = begin
        for i in range(len(source)):
            at = offset + i * self.rows.strides[0]
            file.read_into(target[i * width : (i + 1) * width], at)


def rows_of(array: NDArray[Any]) -> WeightRows | None:
    """Return the rows of an array that is not contiguous; None if it is, or has no such rows."""
    if array.flags.c_contiguous or not array.ndim or array.strides[-1] != array.itemsize:
        return None
    rows = array.view(np.uint8)
    for axis in range(1, rows.ndim):
        shape = prod(rows.shape[:axis]), prod(rows.shape[axis:])
        try:
            found = rows.reshape(shape, copy=False)
        except ValueError:
            continue
        return WeightRows(found) if found.strides[1] == 1 else None
    return None
