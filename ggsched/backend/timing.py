"""When commands ran: what devices and streams may offer to a tracer.

This is not part of the contract: no rule promises it, and nothing is ordered by it. A device that
measures has a method ``__clock__()`` that returns its clock. Its streams have ``__take_times__()``,
to be called before anything is enqueued: from then on they take times. It returns a function that
returns the times of the command that was enqueued last. Devices of ``ggsched.backend.base`` do.
"""

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import NamedTuple, Protocol

Clock = Callable[[], float]
"""Seconds from some moment on, as ``time.perf_counter``."""


class Part(NamedTuple):
    """A command, or one node of a launch.

    Attributes:
        label: Label of the node, see ``BoundNode``; "" for all of a command.
        start_s: When it began, by the clock.
        end_s: When it had ended.
    """

    label: str
    start_s: float
    end_s: float


class Taken(Protocol):
    """The times of one command."""

    def parts(self) -> Sequence[Part] | None:
        """Return when it ran, node by node where that is known; None as long as it is not done."""


Latest = Callable[[], Taken | None]
"""Returns the times of the command that was enqueued last; None if it was called before, or if the
last call enqueued nothing."""


def clock_of(device: object) -> Clock | None:
    """Return the clock of a device that measures when commands ran; None of others."""
    get = getattr(device, "__clock__", None)
    clock: Clock | None = None if get is None else get()
    return clock


def take_times(stream: object) -> Latest | None:
    """Let a new stream take times, if it can; return how to request them."""
    start = getattr(stream, "__take_times__", None)
    latest: Latest | None = None if start is None else start()
    return latest


class HostTaken:
    """The times of a command that a thread of the host runs: it looks at the clock."""

    __slots__ = ("_labels", "_marks")

    def __init__(self) -> None:
        self._labels: Sequence[str] = ("",)
        self._marks: list[float] | None = None

    def parts(self) -> Sequence[Part] | None:
        """See ``Taken``."""
        marks = self._marks
        if marks is None:
            return None
        return [Part(name, marks[i], marks[i + 1]) for i, name in enumerate(self._labels)]

    def run(self, work: Callable[[], None]) -> None:
        """Do the work, and note when."""
        start = perf_counter()
        try:
            work()
        finally:
            self._marks = [start, perf_counter()]

    def run_steps(self, steps: Sequence[tuple[str, Callable[[], None]]]) -> None:
        """Do labelled steps in order; steps of one label that follow each other are one part."""
        labels: list[str] = []
        marks = [perf_counter()]
        last = len(steps) - 1
        try:
            for i, (label, step) in enumerate(steps):
                step()
                if i == last or steps[i + 1][0] != label:
                    labels.append(label)
                    marks.append(perf_counter())
        finally:
            self.note(labels, marks)

    def note(self, labels: Sequence[str], marks: list[float]) -> None:
        """Take times that were noted by others: a start, and the end of each labelled part."""
        if not labels:
            labels = ("",)
            marks.append(perf_counter())
        self._labels, self._marks = labels, marks


class LateTaken:
    """The times of a command that is kept in a backlog: those that it has once it is enqueued.

    Attributes:
        taken: The times of the command, from when it was enqueued.
        is_over: Whether ``taken`` is final; if it is None then, there are no times.
    """

    __slots__ = ("is_over", "taken")

    def __init__(self) -> None:
        self.taken: Taken | None = None
        self.is_over = False

    def parts(self) -> Sequence[Part] | None:
        """See ``Taken``."""
        if not self.is_over:
            return None
        return () if self.taken is None else self.taken.parts()
