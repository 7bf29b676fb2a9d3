"""Which memory object of a trace a view of host memory belongs to."""

from bisect import bisect_right, insort
from typing import Final

from ggsched.backend.host_borrow import address_of
from ggsched.trace.schema import Access

HOST_SPACE: Final = "host"


class HostMap:
    """Host memory that was allocated by name, and the rest.

    Args:
        rest: The object of all bytes without a name; it begins at address 0.
    """

    def __init__(self, rest: int) -> None:
        self._rest = rest
        self._known: list[tuple[int, int, int]] = []

    def add(self, address: int, nbytes: int, memory: int) -> None:
        """Note named bytes; older names of them are forgotten, the bytes were given back."""
        end = address + nbytes
        self._known = [k for k in self._known if k[1] <= address or end <= k[0]]
        if nbytes:
            insort(self._known, (address, end, memory))

    def find(self, view: memoryview) -> tuple[Access, ...]:
        """Return the bytes that a view shows."""
        if not view.nbytes:
            return ()
        start = address_of(view)
        end = start + view.nbytes
        known = self._known
        k = bisect_right(known, (start, 1 << 62, 0)) - 1
        if k >= 0 and end <= known[k][1]:
            first, _, memory = known[k]
            return (Access(memory, start - first, end - first),)
        return (Access(self._rest, start, end),)
