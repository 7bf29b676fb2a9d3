"""Reuse: when values may share bytes.

In program order where everything runs on one lane; on several lanes where the data flow orders
them; with a memory budget also where an added wait is predicted to cost little.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ggsched.passes.memory.interference import Interferes
from ggsched.passes.order.liveness import Liveness
from ggsched.passes.order.visibility import Touched, Visibility
from ggsched.plan.memory import Life
from ggsched.plan.splits import Splits


class ReuseOrder(Protocol):
    """What ``allocate`` needs to know of values that share a block of bytes, one after another."""

    def live_ranges(self, members: Sequence[Sequence[int]]) -> tuple[list[Life], Interferes | None]:
        """Return which blocks may not share bytes.

        Returns:
            For each block its window, the steps outside which no other of them needs a second
            look; and whether two blocks may share bytes although their windows meet.
        """

    def writers(self, members: Sequence[Sequence[int]]) -> list[int]:
        """Return for each block the lane that writes it first."""

    def is_last(self, operand: int, result: int, step: int) -> bool:
        """Whether the node at ``step`` that makes ``result`` is the last to touch ``operand``."""


class Sequential:
    """Everything runs in the order of the program."""

    def __init__(self, lives: Sequence[Life]) -> None:
        self._lives = lives

    def live_ranges(self, members: Sequence[Sequence[int]]) -> tuple[list[Life], Interferes | None]:
        """See ``ReuseOrder``."""
        lives = self._lives
        return [Life(lives[ids[0]].birth, lives[ids[-1]].death) for ids in members], None

    def writers(self, members: Sequence[Sequence[int]]) -> list[int]:
        """See ``ReuseOrder``."""
        return [0] * len(members)

    def is_last(self, operand: int, result: int, step: int) -> bool:
        """See ``ReuseOrder``."""
        return self._lives[operand].death == step


class Concurrent:
    """Several lanes: the visibility table says what comes before what."""

    def __init__(self, visibility: Visibility, live: Liveness) -> None:
        self._visibility = visibility
        self._lives = live.lives

    def live_ranges(self, members: Sequence[Sequence[int]]) -> tuple[list[Life], Interferes]:
        """See ``ReuseOrder``: until the birth of the last block that does not know it to be free.

        Lanes that write none of the blocks first never need to know.
        """
        lives = self._lives
        births = [ids[0] for ids in members]
        lasts = list(map(self.last, members))
        unaware = self._visibility.last_conflicting_birth(births, lasts)
        windows = [
            Life(lives[first].birth, max(lives[ids[-1]].death, step))
            for first, ids, step in zip(births, members, unaware, strict=True)
        ]
        return windows, self._apart(births, lasts)

    def writers(self, members: Sequence[Sequence[int]]) -> list[int]:
        """See ``ReuseOrder``."""
        return [self._visibility.writer[ids[0]] for ids in members]

    def _apart(self, values: Sequence[int], lasts: Sequence[Touched]) -> Interferes:
        """Return whether blocks that begin with these values may share bytes (``ReuseOrder``)."""
        births = [self._lives[v][0] for v in values]
        first = self._visibility.first
        asked: defaultdict[int, dict[int, int]] = defaultdict(dict)

        def are_apart(i: int, j: int) -> bool:
            if births[i] > births[j]:  # what is complete somewhere came earlier in the program
                i, j = j, i
            answers, known = asked[j], first[values[j]]
            for lane, step in lasts[i].items():
                found = answers.get(lane)
                if found is None:
                    found = answers[lane] = -1 if known is None else known[lane]
                if found < step:
                    return False
            return True

        return are_apart

    def is_last(self, operand: int, result: int, step: int) -> bool:
        """See ``ReuseOrder``: every other access is known to be complete when the node runs."""
        known = self._visibility.first[result]
        for lane, s in self._visibility.last[operand].items():
            if s != step and (known is None or known[lane] < s):
                return False
        return True

    def last(self, values: Sequence[int]) -> Touched:
        """Return the last step of each lane that touches one of the values."""
        last = self._visibility.last
        if len(values) == 1:
            return last[values[0]]
        found = dict(last[values[0]])
        for v in values[1:]:
            for lane, step in last[v].items():
                if step > found.get(lane, -1):
                    found[lane] = step
        return found


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds from the start of a run, by step; a launch's are spread evenly over its nodes."""

    start_s: tuple[float, ...]
    end_s: tuple[float, ...]


class Relaxed:
    """Several lanes, and pairs that program order keeps apart, by the predicted time between them.

    Args:
        order: The order of the data flow.
        live: Lives of the values.
        splits: The values.
        times: When steps run without any added wait.
        least: By device the least predicted seconds from the last access to the one value to the
            first write of the other with which they may share bytes; devices that are not named
            share only what the data flow orders.
    """

    def __init__(
        self,
        order: Concurrent,
        live: Liveness,
        splits: Splits,
        times: StepTimes,
        least: Mapping[int, float],
    ) -> None:
        self._order, self._lives, self._values = order, live.lives, splits.values
        self._times, self._least = times, least
        self.is_last, self.writers = order.is_last, order.writers

    def live_ranges(self, members: Sequence[Sequence[int]]) -> tuple[list[Life], Interferes | None]:
        """See ``ReuseOrder``."""
        windows, ordered = self._order.live_ranges(members)
        if not members or self._values[members[0][0]].device not in self._least:
            return windows, ordered
        least = self._least[self._values[members[0][0]].device]
        lives = [Life(self._lives[ids[0]].birth, self._lives[ids[-1]].death) for ids in members]
        done_s = [self._done_s(ids) for ids in members]
        start_s = [self._times.start_s[life.birth] for life in lives]

        def are_apart(i: int, j: int) -> bool:
            if ordered(i, j):
                return True
            if lives[i].birth > lives[j].birth:
                i, j = j, i
            return lives[i].death < lives[j].birth and start_s[j] - done_s[i] >= least

        return windows, are_apart

    def _done_s(self, values: Sequence[int]) -> float:
        """Return when the last access ends, on whichever lane."""
        return max((self._times.end_s[s] for s in self._order.last(values).values()), default=0.0)
