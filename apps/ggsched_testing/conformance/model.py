"""The sequential model: what every byte is when the commands run one after another.

Commands take effect on the model as they are enqueued. That is the truth for programs without a
race, so the model also knows, by clocks, which accesses are not ordered yet; whoever writes the
program orders them before it enqueues the next command. Memory is cut into elements, which are one
f32 value or a run of them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Clock = dict[int, int]
"""By lane: how many of its commands are known to be complete."""

Mark = tuple[int, int]
"""A lane and the number of a command there."""

HOST: Final = 0
"""The lane of the host."""

Numbers = npt.NDArray[np.float32]


@dataclass(slots=True, eq=False)
class Memory:
    """A buffer, or host memory.

    Attributes:
        thing: The buffer or the array.
        device: Number of its device; -1 for the host.
        values: What the elements are, one row for each.
        known: Which of them were written at all (BUF-1).
        writer: By element, who wrote it last.
        readers: By element, its readers since.
        users: Who uses it at all, if only zero bytes of it.
    """

    thing: Any
    device: int
    values: Numbers
    known: npt.NDArray[np.bool_]
    writer: list[Mark | None]
    readers: list[dict[int, int]]
    users: Clock = field(default_factory=dict)

    @classmethod
    def fresh(cls, thing: Any, device: int, count: int, unit: int = 1) -> "Memory":
        """Return memory that nobody wrote, of elements of ``unit`` f32 values."""
        nothing: list[Mark | None] = [None] * count
        return cls(
            thing,
            device,
            np.zeros((count, unit), np.float32),
            np.zeros(count, np.bool_),
            nothing,
            [{} for _ in range(count)],
        )

    @property
    def count(self) -> int:
        """Number of elements."""
        return len(self.writer)


@dataclass(frozen=True, slots=True)
class Access:
    """Elements of a memory that a command reads or writes."""

    memory: Memory
    start: int
    end: int
    writes: bool

    @property
    def part(self) -> slice:
        """The elements."""
        return slice(self.start, self.end)


@dataclass(slots=True)
class ModelOrder:
    """Clocks of the host and of all lanes.

    Attributes:
        clocks: By lane, what is complete before its next command begins.
        count: By lane, how many commands it has.
        holds: By lane, after how many commands it is held.
    """

    clocks: list[Clock] = field(default_factory=lambda: [{}])
    count: list[int] = field(default_factory=lambda: [0])
    holds: dict[int, int] = field(default_factory=dict)

    def new_lane(self) -> int:
        """Return a new lane."""
        self.clocks.append({})
        self.count.append(0)
        return len(self.count) - 1

    def missing(self, lane: int, accesses: Iterable[Access]) -> list[Mark]:
        """Return what a command has to come after, and does not yet; the latest of each lane."""
        known = self.before(lane)
        found: Clock = {}
        for access in accesses:
            memory = access.memory
            for i in range(access.start, access.end):
                writer = memory.writer[i]
                marks = dict((writer,)) if writer is not None else {}
                if access.writes:
                    marks = {**memory.readers[i], **_later(marks, memory.readers[i])}
                for other, number in marks.items():
                    if number > known.get(other, 0):
                        found[other] = max(number, found.get(other, 0))
        return sorted(found.items())

    def before(self, lane: int) -> Clock:
        """Return what is complete before the next command of a lane begins."""
        clock = joined(self.clocks[lane], self.clocks[HOST])
        clock[lane] = self.count[lane]
        return clock

    def enqueue(self, lane: int, accesses: Iterable[Access]) -> None:
        """Count a command, and remember what it touches."""
        self.clocks[lane] = self.before(lane)
        self.count[lane] += 1
        number = self.clocks[lane][lane] = self.count[lane]
        for access in accesses:
            memory = access.memory
            memory.users[lane] = number
            for i in range(access.start, access.end):
                if access.writes:
                    memory.writer[i] = (lane, number)
                    memory.readers[i] = {}
                else:
                    memory.readers[i][lane] = number

    def everything(self, lanes: Iterable[int]) -> Clock:
        """Return what is complete when all that lanes have by now is complete."""
        clock: Clock = {}
        for lane in lanes:
            clock = joined(clock, self.before(lane))
        return clock

    def learn(self, lane: int, clock: Clock) -> None:
        """Let a lane, or the host, come after something."""
        self.clocks[lane] = joined(self.clocks[lane], clock)

    def knows(self, clock: Clock) -> bool:
        """Whether the host knows that all of it is complete."""
        known = self.clocks[HOST]
        return all(number <= known.get(lane, 0) for lane, number in clock.items() if lane != HOST)

    def is_blocked(self, clock: Clock) -> bool:
        """Whether something in it cannot happen before a held stream is released."""
        return any(clock.get(lane, 0) > number for lane, number in self.holds.items())


def joined(a: Clock, b: Clock) -> Clock:
    """Return the clock that knows what either of two knows."""
    return {**a, **_later(b, a)}


def _later(a: Clock, b: Clock) -> Clock:
    return {lane: max(number, b.get(lane, 0)) for lane, number in a.items()}
