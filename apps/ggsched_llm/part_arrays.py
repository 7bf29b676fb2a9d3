"""The bytes of a weight's part: a slice of what stands in the file."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggsched.ir.dtype import DType
from ggsched.passes.shard.layout import Split


def part_array(whole: NDArray[Any], dtype: DType, split: Split, part: int) -> NDArray[Any]:
    """Return a participant's part of a weight.

    A part of the outermost axis is a view of the whole, so it is used where the file is mapped;
    others are read when they are loaded, and nothing beside them. Several segments are joined.

    Args:
        whole: As ``weight_array`` returns it: rows of quantised types are bytes.
        dtype: Of the weight.
        split: How it is split.
        part: The participant.
    """
    pieces = []
    for first, stop in split.spans(part):
        if dtype.is_quantized and split.axis == whole.ndim - 1:
            first, stop = dtype.row_nbytes(first), dtype.row_nbytes(stop)
        index = (*(slice(None) for _ in range(split.axis)), slice(first, stop))
        pieces.append(whole[index])
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces, axis=split.axis)
