"""When commands ran: the device's own times, by the clock of the host.

OpenCL keeps four times of each command by a clock of the device. The moment of enqueueing is one of
them, and the host knows between which two of its own times that lies, so each command narrows down
how far the two clocks are apart.
"""

from collections.abc import Sequence
from math import inf
from time import perf_counter

from ggsched.backend.queued.times import QueueTimes
from ggsched.backend.timing import Part
from ggsched_opencl import driver
from ggsched_opencl.driver import COMPLETE, Handle, status_of


class ClockMatch:
    """How far the clock of the host is ahead of that of a device."""

    def __init__(self) -> None:
        self._least, self._most = -inf, inf

    def narrow(self, before_s: float, queued_s: float, after_s: float) -> None:
        """Take note of something that the host did between two times, and of its device time."""
        self._least = max(self._least, before_s - queued_s)
        self._most = min(self._most, after_s - queued_s)

    @property
    def ahead_s(self) -> float:
        """Seconds to add to times of the device."""
        return (self._least + self._most) / 2


class OpenClTimes(QueueTimes):
    """Takes the times of what a queue is given.

    Attributes:
        commands: Label and event of each kernel of a launch, or of the one command, that was begun.
    """

    takes_waits = True

    def __init__(self) -> None:
        super().__init__()
        self._match = ClockMatch()
        self._before_s = 0.0
        self.commands: list[tuple[str, Handle]] = []

    def begin(self) -> None:
        """Note that a command begins here."""
        self.commands = []
        self._before_s = perf_counter()

    def end(self) -> "OpenClTaken | None":
        """Return the times of the command, unless nothing was enqueued."""
        if not self.commands:
            return None
        return OpenClTaken(self._match, self.commands, self._before_s, perf_counter())


class OpenClTaken:
    """The times of one command of a stream.

    Args:
        match: Of the stream.
        commands: Label and event of each kernel of a launch, or of the one command.
        before_s: Time of the host before it was enqueued.
        after_s: Time of the host after that.
    """

    __slots__ = ("_after_s", "_before_s", "_commands", "_match", "_spans")

    def __init__(
        self,
        match: ClockMatch,
        commands: Sequence[tuple[str, Handle]],
        before_s: float,
        after_s: float,
    ) -> None:
        self._match = match
        self._commands = commands
        self._before_s, self._after_s = before_s, after_s
        self._spans: list[tuple[str, float, float]] = []

    def parts(self) -> Sequence[Part] | None:
        """Return when it ran, node by node; see ``ggsched.backend.timing``."""
        if self._commands:
            if any(status_of(event) > COMPLETE for _, event in self._commands):
                return None
            self._spans = list(self._read())
            self._commands = ()
        ahead = self._match.ahead_s
        parts = [Part(label, ahead + start, ahead + end) for label, start, end in self._spans]
        return _merged(parts)

    def _read(self) -> list[tuple[str, float, float]]:
        spans: list[tuple[str, float, float]] = []
        for label, event in self._commands:
            times = driver.times_of(event)
            if times is not None:
                queued, start, end = (1e-9 * time for time in times)
                self._match.narrow(self._before_s, queued, self._after_s)
                spans.append((label, start, end))
        return spans


def _merged(parts: Sequence[Part]) -> list[Part]:
    """Return the parts with the kernels of each node as one."""
    merged: list[Part] = []
    for part in parts:
        if merged and merged[-1].label == part.label:
            merged[-1] = merged[-1]._replace(end_s=part.end_s)
        else:
            merged.append(part)
    return merged
