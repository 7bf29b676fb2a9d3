"""Memory of a device that a library other than PyTorch accesses."""

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ggsched.errors import UsageError
from ggsched_race.byte_runs import Runs, strided_runs


class ForeignArray(NamedTuple):
    """An array of another library.

    Attributes:
        address: Its first byte in memory.
        runs: Its bytes, from there on.
        base: First byte of the memory that it is a part of.
        nbytes: Length of that memory.
        is_owned: Whether the library has allocated it, so that nobody else has handed it over.
        shape: For people, as is the type.
    """

    address: int
    runs: Runs
    base: int
    nbytes: int
    is_owned: bool
    shape: tuple[int, ...]
    dtype: str


def foreign_array(
    address: int,
    shape: Sequence[int],
    strides: Sequence[int],
    dtype: Any,
    memory: tuple[int, int] | None = None,
    is_owned: bool = False,
) -> ForeignArray:
    """Return where an array is.

    Args:
        address: Of its first element.
        strides: In bytes, of each dimension.
        dtype: Type of numpy.
        memory: First byte and length of what it is a part of; the array itself if not given.
        is_owned: Whether the library has allocated that.
    """
    size = max(int(dtype.itemsize), 1)
    runs = strided_runs(shape, [abs(s) // size for s in strides], 0, size)
    back = sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if s < 0 < n)
    low, nbytes = address + back, max((end for _, end in runs.runs), default=0)
    base, length = memory or (low, nbytes)
    return ForeignArray(low, runs, base, length or nbytes, is_owned, tuple(shape), str(dtype))


def shared_array(owner: Any) -> ForeignArray:
    """Return where an object with ``__cuda_array_interface__`` is, such as an array of Numba."""
    facts = getattr(owner, "__cuda_array_interface__", None)
    if facts is None:
        what = f"a {type(owner).__name__} is declared, which is no array of a device"
        hint = "declare tensors, or objects with __cuda_array_interface__"
        raise UsageError(what, where="declare", hint=hint)
    shape, dtype = tuple(facts["shape"]), np.dtype(facts["typestr"])
    dense = [dtype.itemsize * prod(shape[k + 1 :]) for k in range(len(shape))]
    return foreign_array(facts["data"][0], shape, facts.get("strides") or dense, dtype)
