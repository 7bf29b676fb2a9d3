"""Memory of a device that a library other than PyTorch accesses."""

from typing import NamedTuple

from ggsched_race.byte_runs import Runs


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
