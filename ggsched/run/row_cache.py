"""Row caches: which rows of a weight a device still has from earlier decisions.

The memory lies outside of what plans share, so nothing else is ever put there: that an address is
stable says nothing about what is in it. A row counts only for the weight's *generation*, which
changes when its bytes do. Which row makes room is decided by use: the one used longest ago.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence

from ggsched.errors import UsageError


class RowCache:
    """Slots of one weight on one device, and what is in them.

    Args:
        slots: Rows that it holds.
        generation: Tells the present generation of the weight.
    """

    def __init__(self, slots: int, generation: Callable[[], int]) -> None:
        if slots < 1:
            raise UsageError(f"a cache of {slots} rows", why="it holds at least one")
        self.slots = slots
        self._generation = generation
        self._of: int | None = None
        self._slot_of: OrderedDict[int, int] = OrderedDict()

    def find(self, rows: Sequence[int]) -> dict[int, int]:
        """Return the slot of each row that is cached in the present generation."""
        now = self._generation()
        if self._of != now:
            self._slot_of.clear()
            self._of = now
        found = {row: self._slot_of[row] for row in rows if row in self._slot_of}
        for row in found:
            self._slot_of.move_to_end(row)
        return found

    def admit(self, rows: Sequence[int], in_use: int) -> tuple[dict[int, int], int]:
        """Give slots to rows that were not there; return them and how many others lost theirs.

        Args:
            rows: The rows, none of which ``find`` found.
            in_use: Rows of the same decision that it did find; they stay.

        A decision that names more rows than there are slots leaves the rest out, so that it does
        not drive out all that the next one could use.
        """
        taken: dict[int, int] = {}
        evicted = 0
        for row in rows[: max(0, self.slots - in_use)]:
            if len(self._slot_of) < self.slots:
                slot = len(self._slot_of)
            else:
                _, slot = self._slot_of.popitem(last=False)
                evicted += 1
            self._slot_of[row] = taken[row] = slot
        return taken, evicted

    def forget(self) -> None:
        """Invalidate all rows, as after a command that failed."""
        self._slot_of.clear()

    @property
    def rows(self) -> tuple[int, ...]:
        """Rows that are there, the one used longest ago first."""
        return tuple(self._slot_of)
