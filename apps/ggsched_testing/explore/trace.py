"""One execution as it happened: at each moment who could act, who did, and what was touched.

The *usual* order is the one that an exploration departs from: whoever acted last goes on; if that
is impossible, whoever is listed first. The host is listed last, so it enqueues as much as it can,
then the devices do all that they can, and so on.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from ggsched_testing.schedule_policy import HOST, Option


class Touch(NamedTuple):
    """Bytes that a step reads or writes."""

    space: Hashable
    start: int
    end: int
    writes: bool


@dataclass(slots=True)
class Moment:
    """One decision and the step that followed.

    Attributes:
        actors: Who could act.
        at: Index of who did.
        usual: Index of who usually would have.
        label: What was done.
        causes: Moments without which that was not possible.
        touches: What it touched, once it is over.
    """

    actors: tuple[str, ...]
    at: int
    usual: int
    label: str
    causes: tuple[int, ...] = ()
    touches: list[Touch] = field(default_factory=list)

    @property
    def actor(self) -> str:
        """Who acted."""
        return self.actors[self.at]


class ExplorationRecorder:
    """A policy that writes down what happens; the usual order unless ``pick`` says otherwise.

    Args:
        tracks: Whether to write down touches, too.

    Attributes:
        moments: What has happened.
        start: What was touched before the first decision.
    """

    def __init__(self, *, tracks: bool = False) -> None:
        self.tracks = tracks
        self.moments: list[Moment] = []
        self.start: list[Touch] = []

    def pick(self, options: Sequence[Option], usual: int) -> int:
        """Return the next actor; for subclasses."""
        return usual

    def choose(self, options: Sequence[Option]) -> int:
        """Write down a moment and return who acts."""
        last = self.moments[-1].actor if self.moments else HOST
        usual = next((i for i, option in enumerate(options) if option.actor == last), 0)
        at = self.pick(options, usual)
        chosen = options[at]
        actors = tuple(option.actor for option in options)
        self.moments.append(Moment(actors, at, usual, chosen.label, chosen.causes))
        return at

    def touch(self, space: Hashable, start: int, end: int, *, writes: bool) -> None:
        """Write down what the step under way touches."""
        touches = self.moments[-1].touches if self.moments else self.start
        touches.append(Touch(space, start, end, writes))


def steps_of(moments: Sequence[Moment]) -> tuple[str, ...]:
    """Return what happened, in lines; steps of one command that follow each other in one."""
    lines = []
    for (actor, label), same in groupby(moments, key=lambda m: (m.actor, m.label)):
        count = len(list(same))
        if actor == HOST:
            lines.append(f"host x {count}" if count > 1 else "host")
        else:
            lines.append(f"{actor}: {label}" + (f" x {count}" if count > 1 else ""))
    return tuple(lines)


def blocks(moments: Sequence[Moment]) -> Iterator[tuple[str, int]]:
    """Give who acted, and how often in a row."""
    for actor, same in groupby(moments, key=lambda m: m.actor):
        yield actor, len(list(same))
