"""Round trips between processes: what a message costs, and how far two clocks are apart."""

import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from ggsched.errors import DeviceFault
from ggsched_cluster import messages as m
from ggsched_cluster.link import Link

SIZES: Final = (0, 1 << 10, 1 << 14, 1 << 18, 1 << 22)
"""Bytes of the messages that are timed."""

MIN_PINGS: Final = 5
"""Round trips of each size, however long they take."""

LinkSample = tuple[int, float]
"""Bytes of a message, and its seconds one way."""


class ClockOffset(NamedTuple):
    """How far the clock of another process is ahead of the own one.

    Attributes:
        offset_s: Seconds to subtract from its times.
        error_s: They are right to this, up or down: half of the fastest round trip.
    """

    offset_s: float
    error_s: float


class Pinger:
    """Sends pings from one link, and waits for the answers.

    Args:
        link: The own end.
        timeout_s: How long an answer may take.
        other: What is done with messages that are no answers; they are dropped by default.
        answered: Called with each answer.
    """

    def __init__(
        self,
        link: Link,
        timeout_s: float,
        other: Callable[[m.Any_, Sequence[memoryview]], None] | None = None,
        answered: Callable[[], None] = lambda: None,
    ) -> None:
        self._link, self._timeout_s = link, timeout_s
        self._other, self._answered = other, answered
        self._number = 0

    def samples(self, address: str, seconds: float) -> list[LinkSample]:
        """Return the seconds of messages of several sizes, one way.

        The answer is as short as the shortest message, so that it takes half of its round trip.
        """
        back_s, found = 0.0, []
        for nbytes in SIZES:
            data = np.zeros(nbytes, np.uint8).data
            until = time.perf_counter() + seconds / len(SIZES)
            best, count = float("inf"), 0
            while count < MIN_PINGS or time.perf_counter() < until:
                sent, _, came = self._trip(address, data)
                best, count = min(best, came - sent), count + 1
            if nbytes == 0:
                back_s = best / 2
            else:
                found.append((nbytes, best - back_s))
        return found

    def offset(self, address: str, count: int = 20) -> ClockOffset:
        """Return how far a clock is ahead: by the fastest round trip, the middle of it (NTP)."""
        trips = [self._trip(address, b"") for _ in range(count)]
        sent, there, came = min(trips, key=lambda trip: trip[2] - trip[0])
        return ClockOffset(there - (sent + came) / 2, (came - sent) / 2)

    def _trip(self, address: str, data: memoryview | bytes) -> tuple[float, float, float]:
        """Return when a ping was sent, when it was answered there, and when the answer came."""
        self._number += 1
        sent = time.perf_counter()
        self._link.send(address, m.Ping(self._link.address, self._number), data)
        until = self._link.now() + self._timeout_s
        while (left_s := until - self._link.now()) > 0:
            found = self._link.poll(left_s)
            if found is None:
                continue
            message, frames = found
            if isinstance(message, m.Pong):
                if (message.worker, message.number) == (address, self._number):
                    self._answered()
                    return sent, message.at_s, time.perf_counter()
            elif self._other is not None:
                self._other(message, frames)
        raise DeviceFault(
            f"does not answer within {self._timeout_s:g} s",
            where=address,
            hint="the machines have to reach each other: look at firewalls",
        )
