"""Relaxed: values share bytes although the data flow does not order them, if that costs little."""

from collections.abc import Mapping, Sequence

from ggsched.passes.budget.step_times import StepTimes
from ggsched.passes.draft import Draft
from ggsched.passes.memory.interference import Interferes
from ggsched.passes.memory.reuse import Concurrent
from ggsched.plan.memory import Life


class Relaxed(Concurrent):
    """Lets in pairs that program order keeps apart, by the predicted time between them."""

    def __init__(self, draft: Draft, times: StepTimes, least: Mapping[int, float]) -> None:
        """Take the order of a draft.

        Args:
            draft: The draft.
            times: When its steps run without any added wait.
            least: By device the least predicted seconds from the last access to the one value to
                the first write of the other with which they may share bytes; devices that are not
                named share only what the data flow orders.
        """
        super().__init__(draft.visibility, draft.timeline)
        self._times = times
        self._least = least
        self._values = draft.splits.values

    def live_ranges(self, members: Sequence[Sequence[int]]) -> tuple[list[Life], Interferes | None]:
        """See ``Order``."""
        windows, ordered = super().live_ranges(members)
        if not members or self._values[members[0][0]].device not in self._least:
            return windows, ordered
        least = self._least[self._values[members[0][0]].device]
        lives = [self.life(ids) for ids in members]
        done_s = [self._done_s(ids) for ids in members]
        start_s = [self._times.start_s[life.birth] for life in lives]
        assert ordered is not None
        data_order = ordered

        def are_apart(i: int, j: int) -> bool:
            if data_order(i, j):
                return True
            if lives[i].birth > lives[j].birth:
                i, j = j, i
            return lives[i].death < lives[j].birth and start_s[j] - done_s[i] >= least

        return windows, are_apart

    def _done_s(self, values: Sequence[int]) -> float:
        """Return when the last access ends, on whichever lane."""
        return max((self._times.end_s[s] for s in self._last(values) if s >= 0), default=0.0)
