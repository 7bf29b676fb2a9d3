"""Finds tokens that are written out in a text, of which a vocabulary may have any number."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

_END: Final = ""
"""The key of a node that says that a token ends there; no character is empty."""

_Node = dict[str, "_Node"]


class SpecialTokens:
    """A prefix tree of tokens: the time of a search does not depend on how many there are.

    Args:
        tokens: Their texts; empty ones are left out.
    """

    def __init__(self, tokens: Iterable[str]) -> None:
        self._root: _Node = {}
        for token in tokens:
            node = self._root
            for character in token:
                node = node.setdefault(character, {})
            if token:
                node[_END] = {}
        first = "".join(map(re.escape, self._root))
        self._first = re.compile(f"[{first}]") if first else None

    def find(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield where tokens start and end: from the left, at each place the longest."""
        at = 0
        while self._first is not None and (found := self._first.search(text, at)):
            at = found.start()
            end = self._longest(text, at)
            if end > at:
                yield at, end
            at = max(end, at + 1)

    def _longest(self, text: str, start: int) -> int:
        """Return the end of the longest token that starts there, or ``start``."""
        node, end = self._root, start
        for at in range(start, len(text)):
            below = node.get(text[at])
            if below is None:
                break
            node = below
            if _END in node:
                end = at + 1
        return end
