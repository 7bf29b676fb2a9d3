"""Ends a text at the first of some strings, which may come in pieces."""

from collections.abc import Sequence

from ggsched.errors import UsageError


class StopText:
    """Takes a text in pieces and gives it back up to the first stop string.

    What may be the beginning of a stop string is held back until it is decided.

    Attributes:
        is_done: Whether a stop string came.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Start an empty text.

        Raises:
            UsageError: an empty stop string.
        """
        if not all(stops):
            raise UsageError("a stop string is empty", where="--stop")
        self._stops = tuple(stops)
        self._held = ""
        self.is_done = False

    def push(self, piece: str) -> str:
        """Take a piece and return the text that is certain now."""
        if self.is_done:
            return ""
        text = self._held + piece
        ends = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if ends:
            self.is_done, self._held = True, ""
            return text[: min(ends)]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """Return what was held back, if no stop string came."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Return how many characters at the end of a text begin a stop string."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if stop.startswith(text[-n:])), 0)
