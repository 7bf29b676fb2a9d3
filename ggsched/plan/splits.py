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
    """

    id: int
    kind: ValueKind
    storage: int
    device: int
    start: int
    end: int
    bound: str = ""

    @property
    def nbytes(self) -> int:
        """Length in bytes."""
        return self.end - self.start


class Transfer(msgspec.Struct, frozen=True, gc=False):
    """Bytes that move before a split runs, or after the last one.

    Attributes:
        id: Index in ``Splits.transfers``.
        src: Value that is read.
        dst: Value that is filled, completely; its byte range lies within that of ``src``.
        by: Device on whose stream it is enqueued.
        before: Split before which it runs, or the number of splits for read-backs.
    """

    id: int
    src: int
    dst: int
    by: int
    before: int


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
