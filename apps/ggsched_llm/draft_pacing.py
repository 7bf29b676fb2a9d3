"""When to draft: decided from the measured seconds of plain steps and of rounds with a draft."""

from collections import deque
from dataclasses import dataclass, field
from math import ceil
from typing import Final

MEASURED: Final = 4
"""Plain steps that are timed in a row; the fastest of them is what a round is compared with."""
CREDIT: Final = 2.0
"""Plain steps that rounds may lose before drafting pauses."""
MAX_CREDIT: Final = 10.0
"""With what they have gained since, so that a few bad rounds end no good phase; also the most that
one round is said to lose."""
SHARE: Final = 0.04
"""Share of the plain steps of a pause that pays for what was lost before."""
_REFRESH: Final = 256
"""Tokens of rounds in a row after which plain steps are timed again: they grow with the cache."""
_MAX_BACKOFF: Final = 16


@dataclass(slots=True)
class Pacing:
    """Lets rounds with a draft run while they gain time; else pauses them, longer each time.

    What rounds lose beside plain steps comes out of a credit, and gains add to it. When it is
    overdrawn, drafting pauses for as many tokens as pay for the loss at ``SHARE``. So ``tokens``
    take at most ``(1 + SHARE) * tokens`` plain steps, and those of one loss. The same measured
    seconds lead to the same decisions.

    Attributes:
        tokens: Tokens so far.
    """

    tokens: int = 0
    _plain: deque[float] = field(default_factory=lambda: deque(maxlen=MEASURED))
    _credit: float = CREDIT
    _resume_at: int = 0
    _backoff: int = 1
    _since_plain: int = 0

    def wants_draft(self, more: int = 0) -> bool:
        """Whether the next token should come from a round with a draft.

        Args:
            more: Decide for the token behind that many plain steps.
        """
        is_measured = len(self._plain) + more >= MEASURED
        return is_measured and self.tokens + more >= self._resume_at

    def note_plain(self, seconds: float) -> None:
        """Take note of a plain step."""
        self.tokens += 1
        self._since_plain = 0
        self._plain.append(seconds)

    def note_round(self, n_tokens: int, seconds: float | None) -> None:
        """Take note of a round.

        Args:
            n_tokens: Tokens that it led to, one more than were accepted; 0 for a draft that was
                not verified.
            seconds: Of draft and verification; None if they say nothing, as of a first run.
        """
        self.tokens += n_tokens
        self._since_plain += n_tokens
        if seconds is not None:
            # A longer round is mostly a pause of the machine, and each lost step a pause of drafts.
            self._note_gain(max(-MAX_CREDIT, n_tokens - seconds / max(min(self._plain), 1e-9)))
        if self._since_plain >= _REFRESH:
            self._plain.clear()

    def _note_gain(self, steps: float) -> None:
        self._credit = min(MAX_CREDIT, self._credit + steps)
        if self._credit < 0:
            self._resume_at = self.tokens + ceil(self._backoff * (CREDIT - self._credit) / SHARE)
            self._backoff = min(2 * self._backoff, _MAX_BACKOFF)
            self._credit = CREDIT
        elif self._credit > CREDIT:
            self._backoff = 1
