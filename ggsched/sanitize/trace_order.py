"""Happens-before in a trace: clocks of host threads and streams while records are read."""

from copy import copy

from ggsched.sanitize.access_map import Mark
from ggsched.sanitize.clock import Clock, join, new_clock
from ggsched.trace.schema import Actor, Alloc, Barrier, Entry, Free, Record, Sync, Trace, Wait


class TraceOrder:
    """What each actor knows to be done.

    A host thread is one lane. A stream is one lane, or two where its device does not keep copies
    and launches in order with each other (STR-1).

    Attributes:
        log: For each lane the records of its work in order. Number n of the lane in a clock stands
            for the first n of these.
    """

    def __init__(self, trace: Trace) -> None:
        self._lanes: list[tuple[int, int]] = []
        count = 0
        for actor in trace.actors:
            is_one = actor.kind == "host" or actor.copy_order == "stream"
            self._lanes.append((count, count if is_one else count + 1))
            count = self._lanes[-1][1] + 1
        self._streams = [a.id for a in trace.actors if a.kind == "stream"]
        self._has_barrier = [_has_barrier(actor) for actor in trace.actors]
        self._clocks = [new_clock(count) for _ in range(count)]
        self._events: dict[int, Clock] = {}
        self._living: dict[int, Alloc] = {}
        self._freed: list[tuple[Alloc, Clock]] = []
        self._is_renewable = trace.events == "latest"
        self.log: list[list[int]] = [[] for _ in range(count)]

    def work(self, record: int, actor: int, by: int, *, is_copy: bool) -> tuple[Mark, Clock]:
        """Give an actor work; return the work's mark and the clock that it begins with."""
        lane = self._lanes[actor][is_copy]
        clock = self._hear(lane, by)
        clock[lane] += 1
        self.log[lane].append(record)
        return (lane, clock[lane]), clock

    def follow(self, entry: Entry) -> None:
        """Follow a record that orders others and touches no memory."""
        match entry:
            case Record(actor=actor, by=by, event=event):
                self.record(actor, by, event)
            case Wait(actor=actor, by=by, event=event):
                self.wait(actor, by, event)
            case Sync(actor=actor, by=by, event=int(event)):
                self.wait(actor, by, event)
            case Sync(actor=actor, by=by, stream=target):
                self.sync(actor, by, target)
            case Barrier(actor=actor, by=by):
                self.barrier(actor, by)
            case Alloc():
                self.alloc(entry)
            case _:
                pass

    def fork(self) -> "TraceOrder":
        """Return clocks of their own that know the same; the log stays behind."""
        other = copy(self)
        other._clocks = [list(clock) for clock in self._clocks]
        other._events, other._living = dict(self._events), dict(self._living)
        other._freed = list(self._freed)
        other.log = [[] for _ in self.log]
        return other

    def alloc(self, entry: Alloc) -> None:
        """Let memory come after what had its addresses before: the allocator sees to that."""
        self._living[entry.memory] = entry
        for former, known in self._freed:
            if former.space == entry.space != "" and _overlap(former, entry):
                self.learn(entry.actor, -1, known)

    def free(self, entry: Free, clock: Clock) -> None:
        """Note that memory ends, by work that has been enqueued with this clock."""
        if entry.memory in self._living:
            self._freed.append((self._living[entry.memory], list(clock)))

    def record(self, actor: int, by: int, event: int) -> None:
        """Let an event stand for all that the actor has so far (EVT-1)."""
        if self._is_renewable or event not in self._events:
            self._events[event] = self.all_of(actor, by)

    def wait(self, actor: int, by: int, event: int) -> None:
        """Hold the actor until an event is done (EVT-2)."""
        known = self._events.get(event)
        if known is not None:
            self.learn(actor, by, known)

    def barrier(self, actor: int, by: int) -> None:
        """Join the two lanes of a stream, where its device has barriers."""
        if self._has_barrier[actor]:
            self.learn(actor, by, self.all_of(actor, by))

    def sync(self, actor: int, by: int, target: int | None) -> None:
        """Let an actor block until another one, or each stream, is done with what it has."""
        for other in self._streams if target is None else [target]:
            if other != actor:
                self.learn(actor, by, self.all_of(other, -1))

    def learn(self, actor: int, by: int, known: Clock) -> None:
        """Let everything that the actor does later come after what is known."""
        for lane in set(self._lanes[actor]):
            join(self._hear(lane, by), known)

    def all_of(self, actor: int, by: int) -> Clock:
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
            join(clock, self._clocks[self._lanes[by][0]])
        return clock


def _has_barrier(actor: Actor) -> bool:
    return actor.kind == "stream" and actor.copy_order == "barrier"


def _overlap(a: Alloc, b: Alloc) -> bool:
    return a.address < b.address + b.nbytes and b.address < a.address + a.nbytes
