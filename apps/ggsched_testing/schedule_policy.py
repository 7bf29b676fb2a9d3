"""Schedule policies: they choose the next step where the contract allows several.

A program that can be executed step by step (a ``SimWorld`` with its host program, a litmus block)
has *actors*: the host, queues, whatever else acts. Each has at most one next step at a time. At
each *moment* the program lists the steps that may happen now, calls a ``SchedulePolicy`` for
one, and does it. Moments are numbered from 1; what was done before the first question is moment 0.

    options = [Option("q0", "c3 upload", causes=(4,)), HOST_GOES_ON]
    at = policy.choose(options)
    policy.touch("a1", 0, 64, writes=True)   # what the chosen step does, while it does it

A step that may happen stays so until it happens: steps enable each other and never disable each
other, other than by touching something. ``explore`` relies on this and on the two declarations:

* ``causes`` name the moments without which the step could not happen now, other than the steps
  of its own actor before it: the enqueueing, the event that it waits for.
* ``touch`` names everything through which steps can notice each other: bytes of a memory, and
  anything else that one writes and another one reads, as bytes of a space with a name of its own.
"""

import random
from collections.abc import Callable, Hashable, Sequence
from typing import Final, NamedTuple, Protocol

from ggsched.errors import UsageError

HOST: Final = "host"


class Option(NamedTuple):
    """A step that may happen now.

    Attributes:
        actor: The thread that does it; the same name in every execution of the program.
        label: What it is, for people.
        causes: Moments without which it could not happen now.
        needed: Whether the host, where it is blocked, waits for it.
    """

    actor: str
    label: str
    causes: tuple[int, ...] = ()
    needed: bool = True


class SchedulePolicy(Protocol):
    """Picks what happens next. One policy serves one execution."""

    @property
    def tracks(self) -> bool:
        """Whether it wants to know causes and touched bytes."""

    def choose(self, options: Sequence[Option]) -> int:
        """Return the index of the step that happens now; the host, if there, comes last."""

    def touch(self, space: Hashable, start: int, end: int, *, writes: bool) -> None:
        """Take note of what the step that was chosen last does."""


class PlainPolicy:
    """A policy that does not look at what the steps do."""

    tracks = False

    def touch(self, space: Hashable, start: int, end: int, *, writes: bool) -> None:
        """Ignore it."""


class EagerPolicy(PlainPolicy):
    """Everything at once, in the order of enqueueing: the most harmless device."""

    def choose(self, options: Sequence[Option]) -> int:
        """Return the step that was enqueued first."""
        return 0


class LaziestPolicy(PlainPolicy):
    """Nothing before the host waits for it, and then what was enqueued last comes first."""

    def choose(self, options: Sequence[Option]) -> int:
        """Return the host, or the latest step that it waits for."""
        last = len(options) - 1
        if options[last].actor == HOST:
            return last
        return next((i for i in range(last, -1, -1) if options[i].needed), last)


class RandomPolicy(PlainPolicy):
    """Picks by seed. Each execution has a temper of its own, from hasty to lazy.

    Args:
        seed: The same seed gives the same choices for the same program.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._patience = self._random.choice((0.02, 0.3, 0.7, 0.98))
        self._stickiness = self._random.choice((0.0, 0.5, 0.9))
        self._last = ""

    def choose(self, options: Sequence[Option]) -> int:
        """Return any step."""
        count = len(options)
        if count > 1 and options[-1].actor == HOST:
            if self._random.random() < self._patience:
                return count - 1
            count -= 1
        if count > 1 and self._random.random() < self._stickiness:
            for i in range(count):
                if options[i].actor == self._last:
                    return i
        at = self._random.randrange(count)
        self._last = options[at].actor
        return at


class DrawingPolicy(PlainPolicy):
    """Picks by numbers that somebody draws, e.g. Hypothesis, so that a failing order shrinks.

    Args:
        draw: Returns a number in ``[0, n]``. Zero is the simplest and means the order of
            enqueueing.

    With Hypothesis: ``DrawingPolicy(lambda n: data.draw(st.integers(0, n)))``.
    """

    def __init__(self, draw: Callable[[int], int]) -> None:
        self._draw = draw

    def choose(self, options: Sequence[Option]) -> int:
        """Return the step that is drawn."""
        return self._draw(len(options) - 1) if len(options) > 1 else 0


class ListPolicy(PlainPolicy):
    """Follows a list of indices, and the order of enqueueing after its end.

    Args:
        choices: Index for each moment.

    Attributes:
        taken: What was chosen so far.
    """

    def __init__(self, choices: Sequence[int]) -> None:
        self._choices = choices
        self.taken: list[int] = []

    def choose(self, options: Sequence[Option]) -> int:
        """Return the next index of the list.

        Raises:
            UsageError: there is no such step now, so the list belongs to another program.
        """
        at = len(self.taken)
        index = self._choices[at] if at < len(self._choices) else 0
        if not 0 <= index < len(options):
            raise UsageError(
                f"choice {index} of {len(options)} at moment {at + 1}",
                why="the choices were made for another program",
            )
        self.taken.append(index)
        return index
