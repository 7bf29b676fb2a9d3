"""Splits, and the values and transfers that devices need to see each other's bytes.

A *value* is a byte range of a storage that lives in one memory: the storage itself in its home, a
replica on another device, a slot in host memory. A *transfer* fills one value from another. A
*binding* says which value a node's operand is read from or written to.
"""

from typing import Final, Literal

import msgspec

HOST: Final = -1
"""The device index of host memory that belongs to no device."""

ValueKind = Literal["home", "replica", "input", "output", "staging"]


class Value(msgspec.Struct, frozen=True, gc=False):
    """Bytes ``[start, end)`` of a storage in one memory.

    Attributes:
        id: Index in ``Splits.values``.
        kind: ``home``, ``replica``, or host memory: ``input``, ``output``, ``staging``.
        storage: Tensor id of the root tensor.
        device: Index in the topology, or ``HOST``.
        start: First byte of the storage that the value holds.
        end: One past the last.
        bound: Name of the weight or state whose own buffer this is, else "".
        ring: Slot of the device's staging ring that holds it, or -1.
    """

    id: int
    kind: ValueKind
    storage: int
    device: int
    start: int
    end: int
    bound: str = ""
    ring: int = -1

    @property
    def nbytes(self) -> int:
        """Length in bytes."""
        return self.end - self.start


class Rows(msgspec.Struct, frozen=True, gc=False):
    """Which part of its source a transfer moves: the rows that ids name when the plan runs.

    Attributes:
        ids: Value in host memory, i32 throughout; the host reads it when it enqueues the copies.
        nbytes: Length of a row; rows follow each other.
        through_host_view: Whether the source is read through the host view of its buffer
            (BUF-4) and uploaded, where no copy path leads to the destination.
        cached: Rows that the destination's device keeps between runs, 0 for none.
    """

    ids: int
    nbytes: int
    through_host_view: bool = False
    cached: int = 0


class Transfer(msgspec.Struct, frozen=True, gc=False):
    """Bytes that move before a split runs, or after the last one; or a value that is filled.

    Attributes:
        id: Index in ``Splits.transfers``.
        src: Value that is read.
        dst: Value that is filled, completely; its byte range lies within that of ``src``.
        by: Device on whose stream it is enqueued.
        before: Split before which it runs, or the number of splits for read-backs.
        rows: Which rows it moves; None for all bytes of the destination. Rows that are not moved
            leave bytes of the destination undefined.
        pattern: Fills the value with these bytes, repeated, and reads nothing: ``src`` is ``dst``.
            None for a transfer between two values.
    """

    id: int
    src: int
    dst: int
    by: int
    before: int
    rows: Rows | None = None
    pattern: bytes | None = None

    @property
    def has_source(self) -> bool:
        """Whether it reads ``src``."""
        return self.pattern is None


class Split(msgspec.Struct, frozen=True, gc=False):
    """Consecutive nodes ``[first, end)`` on one device."""

    id: int
    device: int
    first: int
    end: int


class Splits(msgspec.Struct, frozen=True):
    """The graph cut along devices.

    Attributes:
        values: All values, by id.
        transfers: All transfers, by id, in program order.
        splits: All splits, by id, in program order.
        bindings: For each node the value of each operand and of the result.
    """

    values: tuple[Value, ...]
    transfers: tuple[Transfer, ...]
    splits: tuple[Split, ...]
    bindings: tuple[tuple[int, ...], ...]
