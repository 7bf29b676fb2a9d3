"""When commands ran: what a device may offer to whoever traces it.

This is no part of the contract: no rule promises it, and nothing is ordered by it. A device that
can tell has a method ``__timing__()``, which asks for times of all streams that are created later
and returns the clock that they are in. Such a stream has a method ``__taken__()`` for the command
that was enqueued last. Streams and devices of ``ggsched.backend.base`` have both.
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


def ask_for_times(device: object) -> Clock | None:
    """Let a device take times, if it can; return its clock."""
    ask = getattr(device, "__timing__", None)
    clock: Clock | None = None if ask is None else ask()
    return clock


def taken_of(stream: object) -> Taken | None:
    """Return the times of the command that was enqueued last, if there are any."""
    ask = getattr(stream, "__taken__", None)
    taken: Taken | None = None if ask is None else ask()
    return taken


class HostTaken:
    """The times of a command that a thread of the host runs: it looks at the clock."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[Part] | None = None

    def parts(self) -> Sequence[Part] | None:
        """See ``Taken``."""
        return self._parts

    def run(self, work: Callable[[], None]) -> None:
        """Do the work, and note when."""
        start = perf_counter()
        try:
            work()
        finally:
            self._parts = [Part("", start, perf_counter())]

    def run_steps(self, steps: Sequence[tuple[str, Callable[[], None]]]) -> None:
        """Do labelled steps in order; steps of one label that follow each other are one part."""
        parts: list[Part] = []
        before = first = perf_counter()
        try:
            for i, (label, step) in enumerate(steps):
                step()
                if i + 1 == len(steps) or steps[i + 1][0] != label:
                    now = perf_counter()
                    parts.append(Part(label, before, now))
                    before = now
        finally:
            self._parts = parts or [Part("", first, perf_counter())]
