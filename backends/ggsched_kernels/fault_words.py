"""What kernels leave where an id is out of range: a code of the node, the id, and the limit.

Kernels that wait for one of a peer leave a limit below zero, and how long they have waited. Those
whose groups wait for each other leave ``NOT_MET``, and in which step.
"""

import struct
from collections.abc import Sequence
from typing import Final

from ggsched.backend.queued.error_state import POISONED
from ggsched.errors import DeviceFault

FAULT_WORDS: Final = 3
"""i32 each: code of the node, row, number of rows; zeros until a kernel meets such an id."""


NOT_MET: Final = -2
"""Limit of a kernel whose groups were not on the device at the same time; as in merged.cl."""


class FaultCodes:
    """The codes of a stream's nodes, as kernels take them (``CODE``).

    Attributes:
        where: Name of the stream.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        self._labels: list[str] = []
        self._codes: dict[str, bytes] = {}

    def argument(self, label: str) -> bytes:
        """Return the code of a node, from one, as a kernel argument."""
        if label not in self._codes:
            self._labels.append(label)
            self._codes[label] = struct.pack("<i", len(self._labels))
        return self._codes[label]

    def fault(self, words: Sequence[int]) -> DeviceFault | None:
        """Return the fault that the words report, or None."""
        code, row, count = words[:FAULT_WORDS]
        if not code:
            return None
        why = f"row {row} was requested, there are {count} rows; zeros were put in its place"
        if count == NOT_MET:
            why = f"in step {row} of a merged kernel some groups did not get onto the device"
        elif count < 0:
            why = f"the GPU whose addend it waits for was not ready within {row / 1e3:g} s"
        return DeviceFault(
            f"{self._labels[code - 1]} failed",
            where=self.where,
            why=why,
            hint=POISONED,
        )
