"""Happens-before: what must be complete before what may begin, and nothing more.

A host thread is one lane. A stream is one lane too where its device keeps copies and launches in
order; any other has two, the launches and the copies, each in order by itself (STR-1). A clock says
how many pieces of work of each lane are known to be done. What is enqueued happens after everything
that the thread which enqueues it knew at that time.
"""

from collections.abc import Mapping
from copy import copy
from typing import Final, Protocol

from ggsched.ir.intervals import IntervalMap
from ggsched.sanitize.events import NOBODY, Actor, Event, EventStream
from ggsched.trace.schema import Work

SHIFT: Final = 4
MASK: Final = (1 << SHIFT) - 1
"""Clocks are in chunks of 16 lanes: lane ``k`` is number ``k & MASK`` of chunk ``k >> SHIFT``."""

Clock = list[list[int]]
"""One number for each lane; number n of a lane stands for its first n pieces of work.

Chunks are never changed, so clocks that know the same of a chunk's lanes have one object for it,
and what is the same object need not be compared. With thousands of lanes most chunks are.
"""

Mark = tuple[int, int]
"""A piece of work: its lane and its number there."""

_NOTHING: Final = [0] * (1 << SHIFT)
"""The chunk of lanes of which no work is known; never changed, as no chunk is."""

_ORDERING: Final = ("record", "wait", "sync", "barrier", "alloc", "capture", "capture_end")


def nothing(lanes: int) -> Clock:
    """Return the clock that knows of no work."""
    return [[0] * (1 << SHIFT)] * (lanes >> SHIFT) + [[0] * (lanes & MASK)]


def join(into: Clock, other: Clock) -> None:
    """Add to a clock all that another one knows."""
    for k, known in enumerate(other):
        mine = into[k]
        if mine is not known and mine != known:
            both = list(map(max, mine, known))
            into[k] = known if both == known else both


def knows(clock: Clock, lane: int, number: int) -> bool:
    """Whether a piece of work is known to be done."""
    return clock[lane >> SHIFT][lane & MASK] >= number


class WorkLog(Protocol):
    """The pieces of work of a lane, in order."""

    def append(self, work: tuple[int, int], /) -> None:
        """Add one: (index of the event, run)."""

    def __getitem__(self, number: int, /) -> tuple[int, int]:
        """Return one."""


class HappensBefore:
    """Clocks of all lanes while events are followed, run after run.

    Attributes:
        log: For each lane its pieces of work in order, as (index of the event, run).
    """

    log: list[WorkLog]

    def __init__(self, stream: EventStream) -> None:
        self._lanes: list[tuple[int, int]] = []
        count = 0
        for actor in stream.actors:
            is_one = actor.is_host or actor.copy_order == "stream"
            self._lanes.append((count, count if is_one else count + 1))
            count = self._lanes[-1][1] + 1
        self._memories = stream.memories
        self._streams = [i for i, a in enumerate(stream.actors) if not a.is_host]
        self._hosts = [self._lanes[i][0] for i, a in enumerate(stream.actors) if a.is_host]
        self._has_barrier = [a.copy_order == "barrier" for a in stream.actors]
        self._is_renewable = stream.is_renewable
        self._clocks: list[Clock] = [list(nothing(count)) for _ in range(count)]
        self._news = [0] * count  # how often a host thread has learned something
        self._heard: list[dict[int, int]] = [{} for _ in range(count)]
        self._events: dict[int, Clock] = {}
        self._freed: dict[int, IntervalMap[Clock]] = {}
        self.log = [[] for _ in range(count)]

    def add_actor(self, actor: Actor) -> None:
        """Follow one more actor, where the stream began without any."""
        lane = len(self._clocks)
        if lane & MASK == 0:
            for clock in (*self._clocks, *self._events.values()):
                clock.append(_NOTHING)
        self._clocks.append([_NOTHING] * ((lane >> SHIFT) + 1))
        (self._hosts if actor.is_host else self._streams).append(lane)  # one lane for each
        self._lanes.append((lane, lane))
        self._has_barrier.append(False)
        self._news.append(0)
        self._heard.append({})
        self.log.append([])

    @property
    def is_settled(self) -> bool:
        """Whether the one host thread knows all work so far to be done."""
        if len(self._hosts) != 1:
            return False
        known = self._clocks[self._hosts[0]]
        return all(
            knows(known, lane, clock[lane >> SHIFT][lane & MASK])
            for lane, clock in enumerate(self._clocks)
        )

    @property
    def events(self) -> int:
        """Number of recorded events that are known."""
        return len(self._events)

    def forget(self, event: int) -> None:
        """Forget a recorded event."""
        self._events.pop(event, None)

    def lane(self, event: Event) -> int:
        """Return the lane that does an event's work."""
        return self._lanes[event.actor][event.is_copy]

    def begin_run(self) -> None:
        """Forget events: those of the next run are others, with the same ids."""
        self._events = {}

    def work(self, event: Event | Work, index: int, run: int) -> tuple[Mark, Clock]:
        """Enqueue work; return its mark and the clock that it begins with, itself included."""
        lane = self._lanes[event.actor][event.is_copy]
        clock = self._hear(lane, event.by)
        chunk = clock[lane >> SHIFT] = list(clock[lane >> SHIFT])
        chunk[lane & MASK] += 1
        self._news[lane] += 1
        self.log[lane].append((index, run))
        return (lane, chunk[lane & MASK]), clock

    def free(self, event: Event, clock: Clock) -> None:
        """Note that memory ends, by work that has been enqueued with this clock."""
        old = self._memories[event.memory]
        if not old.is_shared or not old.nbytes:
            return
        freed = self._freed.setdefault(old.space, IntervalMap(nothing(len(self._clocks))))
        first, last = freed.cut(old.address, old.address + old.nbytes)
        for k in range(first, last):
            known = list(clock)
            join(known, freed.values[k])
            freed.values[k] = known
        if all(known == clock for known in freed.values[first:last]):
            freed.put(old.address, old.address + old.nbytes, list(clock))

    def follow(self, event: Event) -> None:
        """Follow an event that orders others and touches no memory."""
        kind, actor, by = event.kind, event.actor, event.by
        if kind not in _ORDERING:
            return
        if kind == "record":  # all that the actor has so far, on both lanes (EVT-1)
            if event.event is not None and (self._is_renewable or event.event not in self._events):
                self._events[event.event] = self.all_of(actor, by)
        elif kind == "barrier":
            if self._has_barrier[actor]:
                self._learn(actor, by, self.all_of(actor, by))
        elif kind == "alloc":
            self._alloc(event)
        elif event.event is not None:  # EVT-2, EVT-5
            known = self._events.get(event.event)
            if known is not None:
                self._learn(actor, by, known)
            else:
                self.all_of(actor, by)
        elif kind != "sync":
            self.all_of(actor, by)  # whoever waits for the stream waits for this too
        else:  # STR-5
            for other in self._streams if event.target is None else [event.target]:
                if other != actor:
                    self._learn(actor, by, self.all_of(other))

    def passed(self, threads: Mapping[int, int]) -> Clock:
        """Return what all later work of these lanes comes after.

        Args:
            threads: By lane the one thread that enqueues all of its work; below zero of several.
        """
        clocks = [list(self._clocks[lane]) for lane in threads]  # the lanes hear nothing by that
        for clock, by in zip(clocks, threads.values(), strict=True):
            join(clock, self._clocks[self._lanes[by][0]] if by >= 0 else clock)
        chunks = ({id(chunk): chunk for chunk in column} for column in zip(*clocks, strict=True))
        return [list(map(min, *some.values(), *some.values())) for some in chunks]

    def fork(self) -> "HappensBefore":
        """Return clocks of their own that know the same; the log stays behind."""
        other = copy(self)
        other._clocks = [list(clock) for clock in self._clocks]
        other._heard = [dict(heard) for heard in self._heard]
        other._news, other._events = list(self._news), dict(self._events)
        other._freed = {space: freed.copy() for space, freed in self._freed.items()}
        other.log = [[] for _ in self.log]
        return other

    def _alloc(self, event: Event) -> None:
        """Let memory come after what had its addresses before: the allocator sees to that."""
        new = self._memories[event.memory]
        freed = self._freed.get(new.space)
        if freed is not None:
            for _, _, known in freed.pieces(new.address, new.address + new.nbytes):
                self._learn(event.actor, -1, known)

    def _learn(self, actor: int, by: int, known: Clock) -> None:
        """Let everything that the actor does later come after what is known."""
        first, second = self._lanes[actor]
        join(self._hear(first, by), known)
        self._news[first] += 1
        if second != first:
            join(self._hear(second, by), known)

    def all_of(self, actor: int, by: int = NOBODY) -> Clock:
        """Return the clock of all that an actor has so far."""
        first, second = self._lanes[actor]
        known = list(self._hear(first, by))
        if second != first:
            join(known, self._hear(second, by))
        return known

    def _hear(self, lane: int, by: int) -> Clock:
        """Let what is enqueued now come after what its thread knows; return the lane's clock."""
        clock = self._clocks[lane]
        if by >= 0:
            thread = self._lanes[by][0]
            if self._heard[lane].get(by) != self._news[thread]:
                join(clock, self._clocks[thread])
                self._heard[lane][by] = self._news[thread]
                self._news[lane] += lane != thread
        return clock
