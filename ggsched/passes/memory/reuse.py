"""Reuse: when values may share bytes, in program order or in the order of several streams."""

from collections.abc import Sequence
from typing import Protocol

from ggsched.passes.memory.interference import Interferes
from ggsched.passes.order.liveness import Liveness
from ggsched.passes.order.visibility import Known, Visibility, touched_lanes
from ggsched.plan.memory import Life


class ReuseOrder(Protocol):
    """What ``allocate`` asks about values that share a block of bytes, one after another."""

    def life(self, values: Sequence[int]) -> Life:
        """Return the steps from the first write to the last access, in program order."""

    def live_ranges(self, members: Sequence[Sequence[int]]) -> tuple[list[Life], Interferes | None]:
        """Return which blocks may not share bytes.

        Returns:
            For each block its window, the steps outside which no other of them needs a second
            look; and whether two blocks may share bytes although their windows meet.
        """

    def is_last(self, operand: int, result: int, step: int) -> bool:
        """Whether the node at ``step`` that makes ``result`` is the last to touch ``operand``."""


class Sequential:
    """Everything runs in the order of the program."""

    def __init__(self, lives: Sequence[Life]) -> None:
        self._lives = lives

    def life(self, values: Sequence[int]) -> Life:
        """See ``ReuseOrder``."""
        return Life(self._lives[values[0]].birth, self._lives[values[-1]].death)

    def live_ranges(self, members: Sequence[Sequence[int]]) -> tuple[list[Life], Interferes | None]:
        """See ``ReuseOrder``."""
        return [self.life(values) for values in members], None

    def is_last(self, operand: int, result: int, step: int) -> bool:
        """See ``ReuseOrder``."""
        return self._lives[operand].death == step


class Concurrent:
    """Several lanes: what comes before what is asked of the visibility table."""

    def __init__(self, visibility: Visibility, timeline: Liveness) -> None:
        self._visibility = visibility
        self._lives = timeline.lives

    def life(self, values: Sequence[int]) -> Life:
        """See ``ReuseOrder``."""
        return Life(self._lives[values[0]].birth, self._lives[values[-1]].death)

    def live_ranges(self, members: Sequence[Sequence[int]]) -> tuple[list[Life], Interferes | None]:
        """See ``ReuseOrder``: until the birth of the last block that does not know it to be free.

        Lanes that write none of the blocks first never need to know.
        """
        lives = self._lives
        births = [ids[0] for ids in members]
        lasts = list(map(self._last, members))
        unaware = self._visibility.last_conflicting_birth(births, lasts)
        windows = [
            Life(lives[first].birth, max(lives[ids[-1]].death, step))
            for first, ids, step in zip(births, members, unaware, strict=True)
        ]
        return windows, self._apart(births, lasts)

    def _apart(self, values: Sequence[int], lasts: Sequence[Known]) -> Interferes:
        """Return whether blocks that begin with these values may share bytes (``ReuseOrder``)."""
        births = [self._lives[v].birth for v in values]
        first = [self._visibility.first[v] for v in values]
        last = list(map(touched_lanes, lasts))

        def are_apart(i: int, j: int) -> bool:
            if births[i] > births[j]:  # what is complete somewhere came earlier in the program
                i, j = j, i
            known = first[j]
            for lane, step in last[i]:  # noqa: SIM110  # asked for every pair that meets
                if known[lane] < step:
                    return False
            return True

        return are_apart

    def is_last(self, operand: int, result: int, step: int) -> bool:
        """See ``ReuseOrder``: every other access is known to be complete when the node runs."""
        known = self._visibility.first[result]
        for k, s in zip(known, self._visibility.last[operand], strict=True):
            if k < s and s != step:
                return False
        return True

    def _last(self, values: Sequence[int]) -> Known:
        """Return the last step of each lane that touches one of the values."""
        last = self._visibility.last
        if len(values) == 1:
            return last[values[0]]
        return tuple(map(max, *[last[v] for v in values]))
