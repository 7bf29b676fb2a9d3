"""Races of a trace that is still being written, in memory bounded by what is in use.

Records are added as they come. Accesses that all later work comes after are forgotten, and so is
memory that nothing will touch any more. Of each piece of work its number is kept, eight bytes.
"""

from array import array
from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import overload

from ggsched.sanitize.events import NOBODY, Actor, Event, EventStream, Memory
from ggsched.sanitize.from_trace import TraceNames, event_of, memory_of
from ggsched.sanitize.order import HappensBefore
from ggsched.sanitize.races import AccessMap, Clash, Races, finding_of
from ggsched.sanitize.report import Finding
from ggsched.sanitize.spans import subtract
from ggsched.trace import schema
from ggsched.trace.schema import Entry, Trace


class _Log:
    """Numbers of the records of one lane."""

    def __init__(self) -> None:
        self._numbers = array("q")

    def append(self, work: tuple[int, int], /) -> None:
        """Add a record; there is one run."""
        self._numbers.append(work[0])

    def __getitem__(self, number: int, /) -> tuple[int, int]:
        return self._numbers[number], 0


class _Memories(dict[int, Memory]):
    """Memories in use; of another one nothing is known."""

    def __missing__(self, memory: int) -> Memory:
        return Memory("", 0, memory)


class _Events(Sequence[Event]):
    """Records as events, each made when it is looked at."""

    def __init__(self, trace: Trace, memories: dict[int, Memory]) -> None:
        self._trace, self._memories = trace, memories

    def __len__(self) -> int:
        return len(self._trace.entries)

    @overload
    def __getitem__(self, at: int) -> Event: ...
    @overload
    def __getitem__(self, at: slice) -> list[Event]: ...
    def __getitem__(self, at: int | slice) -> Event | list[Event]:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        return event_of(at, self._trace.entries[at], self._memories)


class LiveRaces:
    """Follows a trace whose memory objects have spaces of their own, and no addresses.

    Args:
        spaces: Memory objects of which accesses are looked at; all if not given.

    Attributes:
        records: Number of records so far.
        actors: Those so far.
    """

    def __init__(self, spaces: Collection[int] | None = None) -> None:
        self.records = 0
        self._spaces = spaces
        self.actors: list[schema.Actor] = []
        self._memories = _Memories()
        self._followed: list[Actor] = []
        self._order = HappensBefore(self._stream(Trace("", (), ())))
        self._maps: defaultdict[int, AccessMap] = defaultdict(AccessMap)
        self._races = Races(self._order, self._maps, lambda _: self._later())
        self._threads: dict[int, int] = {}

    def _stream(self, trace: Trace) -> EventStream:
        names = TraceNames(trace, self._memories)
        size, events = len(trace.entries), _Events(trace, self._memories)
        return EventStream("", size, self._followed, self._memories, events, 1, True, names)

    @property
    def events(self) -> int:
        """Number of events that are kept."""
        return self._order.events

    @property
    def spaces(self) -> int:
        """Number of memory objects whose accesses are kept."""
        return len(self._maps)

    def _later(self) -> dict[int, int]:
        """Return all lanes, one for each actor, and the thread that enqueues all work of each.

        An actor that is added later begins with what a thread knows that is here.
        """
        hosts = [i for i, actor in enumerate(self._followed) if actor.is_host]
        only = hosts[0] if len(hosts) == 1 else NOBODY
        return {
            i: NOBODY if i in hosts else self._threads.get(i, only)
            for i in range(len(self._followed))
        }

    def add_actor(self, actor: schema.Actor) -> None:
        """Follow one more actor."""
        self.actors.append(actor)
        self._followed.append(Actor(actor.name, actor.device, actor.kind == "host"))
        self._order.add_actor(self._followed[-1])
        self._order.log[-1] = _Log()

    def forget(self, memory: int) -> None:
        """Forget a memory object that nothing will touch any more."""
        self._maps.pop(self._memories[memory].space, None)
        self._memories.pop(memory, None)

    def forget_event(self, event: int) -> None:
        """Forget an event that no later record names, or is recorded again before that."""
        self._order.forget(event)

    def add(self, entry: Entry) -> list[Clash]:
        """Follow a record; return what it races with."""
        number, self.records = self.records, self.records + 1
        if isinstance(entry, schema.Alloc):
            self._memories[entry.memory] = memory_of(entry, entry.memory)
        event = event_of(number, entry, self._memories, self._spaces)
        reads, writes = event.reads, event.writes
        reads = subtract(reads, writes) if reads and writes else reads
        if event.kind in ("work", "free"):
            lane = self._order.lane(event)
            is_one = self._threads.get(lane, event.by) == event.by
            self._threads[lane] = event.by if is_one else NOBODY
        clashes = self._races.clashes
        self._races.follow(number, 0, event, reads, writes)
        if not clashes:
            return []
        found = list(clashes.values())
        clashes.clear()  # of a finding that is left out the pair counts once, the place stays free
        return found

    def finding(self, clash: Clash, trace: Trace) -> Finding:
        """Return a race in words.

        Args:
            trace: The records so far; they are looked up by number.
        """
        return finding_of(self._stream(trace), clash)
