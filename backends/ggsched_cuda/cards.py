"""The cards of this process: each is opened once, whoever asks, and kept until the process ends.

A card has a pool of memory, streams and machine code of its own, and CUDA gives pools of a process
back no sooner than at its end. So schedulers that open and close devices take turns with one.
"""

import threading
from typing import Final

from ggsched_cuda import driver
from ggsched_cuda.card import Card
from ggsched_cuda.driver import Found
from ggsched_cuda.pinned import PinnedMemory


class Cards:
    """Cards by number, and the host memory that all of them share."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[int, Card] = {}
        self._pinned = PinnedMemory()

    def open(self, found: Found, count: int) -> Card:
        """Return a card of ``count``; the same one each time.

        Raises:
            CudaError: it cannot be used, or can no longer be.
        """
        with self._lock:
            card = self._open.get(found.ordinal)
            if card is None:
                others = (i for i in range(count) if i != found.ordinal)
                peers = [i for i in others if driver.can_reach(i, found.ordinal)]
                card = self._open[found.ordinal] = Card(found, peers, self._pinned)
            card.require_use()
            return card


CARDS: Final = Cards()
