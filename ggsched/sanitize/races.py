"""Races: overlapping accesses, at least one a write, that nothing orders.

The events are followed run after run with clocks (``order``). For each address space a map keeps
the last write and, since then, the last read of each lane. That is enough to notice a race wherever
there is one: lanes are in order by themselves, and whoever is ordered after the last write is
ordered after everything that this write was ordered after. Of several races on the same bytes the
first is sure to be reported, the others may hide behind it. Freeing memory writes it: nothing is
forgotten, so whatever uses the same addresses later has to come after.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from ggsched.ir.intervals import IntervalMap
from ggsched.sanitize.events import NOBODY, Access, Event, EventStream, Span
from ggsched.sanitize.order import MASK, SHIFT, Clock, HappensBefore, Mark, knows
from ggsched.sanitize.report import Finding, Hazard
from ggsched.sanitize.spans import subtract

# --- the last accesses to each byte ---------------------------------------------------------------

Clashes = list[tuple[bool, Mark, Span]]
"""(whether the earlier access reads, the earlier access, the bytes)."""


class _Last:
    """The last write, and the last read of each lane since then.

    Attributes:
        reader: The last read of the lane that was the first to read; mostly no other one does.
        others: Numbers of the last reads of other lanes, by lane.
    """

    __slots__ = ("others", "reader", "writer")

    def __init__(
        self, writer: Mark | None, reader: Mark | None = None, others: dict[int, int] | None = None
    ) -> None:
        self.writer = writer
        self.reader = reader
        self.others = others

    def copy(self) -> "_Last":
        others = None if self.others is None else dict(self.others)
        return _Last(self.writer, self.reader, others)


FORGET_ABOVE: Final = 512, 2
"""A map forgets what is past with more segments than that, and this many times what it kept."""


def _limit(kept: int) -> int:
    least, growth = FORGET_ABOVE
    return max(least, growth * kept)


class AccessMap:
    """Last accesses to the bytes of one address space.

    Attributes:
        segments: For each byte its last accesses.
        limit: With more segments than that it is time to forget.
    """

    __slots__ = ("limit", "segments")

    def __init__(self) -> None:
        self.segments = IntervalMap(_Last(None), _Last.copy)
        self.limit = _limit(0)

    def forget(self, passed: Clock) -> None:
        """Drop accesses that all later work comes after, and join what is the same without them."""
        starts: list[int] = []
        values: list[_Last] = []
        before: tuple[Mark | None, dict[int, int]] | None = None
        for start, here in zip(self.segments.starts, self.segments.values, strict=True):
            writer = here.writer
            if writer is not None and knows(passed, *writer):
                writer = None
            marks = (*((here.reader,) if here.reader else ()), *(here.others or {}).items())
            readers = {k: n for k, n in marks if not knows(passed, k, n)}
            if (writer, readers) != before:
                before = writer, readers
                starts.append(start)
                reader = next(iter(readers.items()), None)
                others = {k: n for k, n in readers.items() if (k, n) != reader} or None
                values.append(_Last(writer, reader, others))
        self.segments.starts[:], self.segments.values[:] = starts, values
        self.limit = _limit(len(starts))


# All spans of an event are noted at once. Mostly each is the one segment of its map, which is found
# without a call: a check of a plan spends its time here.


def note(
    maps: Mapping[int, AccessMap],
    spans: Sequence[Span],
    mark: Mark,
    clock: Clock,
    found: Clashes,
    is_write: bool,
) -> list[AccessMap]:
    """Note accesses; add those before them that conflict and are not known to be done.

    Returns:
        Maps that have become too large.
    """
    large: list[AccessMap] = []
    for span in spans:
        map_ = maps[span[0]]
        segments = map_.segments
        starts, values = segments.starts, segments.values
        if len(starts) == 2 and starts[0] == span[1] and starts[1] == span[2]:
            first, last = 0, 1
        else:
            first, last = segments.cut(span[1], span[2])
            if len(starts) > map_.limit:
                large.append(map_)
        for k in range(first, last):
            here = values[k]
            writer, reader = here.writer, here.reader
            if writer is not None and writer[1] > clock[writer[0] >> SHIFT][writer[0] & MASK]:
                found.append((False, writer, _part(segments, k, span)))
            if not is_write:
                if reader is None or reader[0] == mark[0]:
                    here.reader = mark
                else:
                    here.others = here.others or {}
                    here.others[mark[0]] = mark[1]
                continue
            if reader is not None and reader[1] > clock[reader[0] >> SHIFT][reader[0] & MASK]:
                found.append((True, reader, _part(segments, k, span)))
            if here.others is not None:
                others = (mark for mark in here.others.items() if not knows(clock, *mark))
                found += ((True, other, _part(segments, k, span)) for other in others)
        if is_write and last - first == 1:
            here = values[first]
            here.writer, here.reader, here.others = mark, None, None
        elif is_write:
            segments.put(span[1], span[2], _Last(mark))
    return large


def _part(segments: IntervalMap[_Last], k: int, span: Span) -> Span:
    """Return the bytes of a segment that a span touches."""
    space, _, end = span
    starts = segments.starts
    following = starts[k + 1] if k + 1 < len(starts) else end
    return space, starts[k], min(end, following)


# --- races ----------------------------------------------------------------------------------------


MAX_RACES: Final = 200
"""A plan without any waits has a race for every pair of commands; nobody reads that many."""


class Clash(NamedTuple):
    """Two accesses that nothing orders.

    Attributes:
        earlier: Index of the event that is enqueued first.
        earlier_writes: Whether it writes.
        later: Index of the other event.
        later_writes: Whether that writes.
        span: The first bytes that show it.
    """

    earlier: int
    earlier_run: int
    earlier_writes: bool
    later: int
    later_run: int
    later_writes: bool
    span: Span


class Races:
    """Races of events that are followed one by one.

    Attributes:
        clashes: Racing pairs found so far.

    Args:
        order: The clocks.
        maps: Last accesses by space; of a space without a map accesses do not count.
        later: Returns, for an event, the lanes with work behind it, and for each the one thread
            that enqueues all of that; below zero of several.
    """

    def __init__(
        self,
        order: HappensBefore,
        maps: Mapping[int, AccessMap],
        later: Callable[[int], dict[int, int]],
    ) -> None:
        self._order, self._maps, self._later = order, maps, later
        self._found: Clashes = []
        self.clashes: dict[tuple[int, bool, int], Clash] = {}

    def follow(
        self, i: int, run: int, event: Event, reads: Sequence[Span], writes: Sequence[Span]
    ) -> None:
        """Follow the next event, which touches these bytes."""
        order, maps, found = self._order, self._maps, self._found
        if event.kind != "work" and event.kind != "free":
            order.follow(event)
            return
        mark, clock = order.work(event, i, run)
        large = note(maps, reads, mark, clock, found, is_write=False)
        if found:
            self._note(i, run, False)
        large += note(maps, writes, mark, clock, found, is_write=True)
        if found:
            self._note(i, run, True)
        if large and (later := self._later(i)):  # what this and all work behind it come after
            passed = order.passed(later)
            for map_ in large:
                map_.forget(passed)
        if event.kind == "free":
            order.free(event, clock)

    def _note(self, i: int, run: int, writes: bool) -> None:
        for earlier_reads, (lane, number), span in self._found:
            earlier, earlier_run = self._order.log[lane][number - 1]
            key = (earlier, earlier_reads, i)
            if key not in self.clashes and len(self.clashes) < MAX_RACES:
                self.clashes[key] = Clash(
                    earlier, earlier_run, not earlier_reads, i, run, writes, span
                )
        self._found.clear()


def find_races(stream: EventStream) -> list[Finding]:
    """Return each racing pair of events once, with the first bytes that show it."""
    if not any(event.writes for event in stream.events):
        return []
    walk = _Walk(stream)
    for run in range(stream.runs):
        walk.run(run)
        if walk.order.is_settled:  # then nothing of this run meets the next, nor differs there
            break
    return [finding_of(stream, clash) for clash in walk.races.clashes.values()]


class _Walk:
    """The walk over consecutive runs.

    Attributes:
        order: The clocks.
        races: What is found.
    """

    def __init__(self, stream: EventStream) -> None:
        self.order = HappensBefore(stream)
        shared = self._shared(stream)
        self.races = Races(self.order, {space: AccessMap() for space in shared}, self._later)
        self._threads = self._enqueuers(stream)
        self._script: list[tuple[int, Event, Sequence[Span], Sequence[Span]]] = []
        # Each command of a queue counts, since it hears its thread, where another thread waits for
        # the queue or nobody knows who has enqueued what comes later.
        hosts = {i for i, actor in enumerate(stream.actors) if actor.is_host}
        by = {e.by for e in stream.events if e.kind != "alloc" and e.actor not in hosts}
        are_all = len(hosts) > 1 or NOBODY in by
        for i, event in enumerate(stream.events):
            writes = event.writes and [s for s in event.writes if s[0] in shared]
            reads = event.reads and [s for s in event.reads if s[0] in shared]
            if reads and writes:
                reads = subtract(reads, writes)
            is_order = event.kind not in ("work", "capture", "capture_end")
            if are_all or is_order or reads or writes:
                self._script.append((i, event, reads, writes))

    def run(self, run: int) -> None:
        """Walk once more over the events, up to the last race that is reported."""
        self.order.begin_run()
        clashes = self.races.clashes
        for i, event, reads, writes in self._script:
            if len(clashes) == MAX_RACES:
                return
            self.races.follow(i, run, event, reads, writes)

    def _shared(self, stream: EventStream) -> set[int]:
        """Return the spaces that are written at all and that more than one lane touches."""
        lanes: dict[int, set[int]] = {}
        written: set[int] = set()
        for event in stream.events:
            if event.reads or event.writes:
                lane = self.order.lane(event)
                for space, _, _ in event.reads:
                    lanes.setdefault(space, set()).add(lane)
                for space, _, _ in event.writes:
                    lanes.setdefault(space, set()).add(lane)
                    written.add(space)
        return {space for space in written if len(lanes[space]) > 1}

    def _enqueuers(self, stream: EventStream) -> dict[int, tuple[int, int]]:
        """Return by lane its last work, and the thread that enqueues all of it, if it is one.

        Of several runs nothing is the last.
        """
        threads: dict[int, tuple[int, int]] = {}
        if stream.runs == 1:
            for i, event in enumerate(stream.events):
                if event.kind in ("work", "free"):
                    lane, by = self.order.lane(event), event.by
                    is_one = threads.get(lane, (i, by))[1] == by
                    threads[lane] = i, by if is_one else NOBODY
        return threads

    def _later(self, i: int) -> dict[int, int]:
        return {lane: by for lane, (last, by) in self._threads.items() if last >= i}


# --- in words -------------------------------------------------------------------------------------


def finding_of(stream: EventStream, clash: Clash) -> Finding:
    """Say who touches what, which order is missing, and the shortest repair."""
    names, events = stream.names, stream.events
    first, second = events[clash.earlier], events[clash.later]
    later = _access(stream, second, clash, "r" if not clash.later_writes else "")
    earlier = _access(stream, first, clash, "wp" if clash.earlier_writes else "r")
    hazard: Hazard = "WAR"
    if clash.earlier_writes:
        hazard = "RAW" if later.mode == "r" else "WAW"
    elif later.mode == "r":  # it reads before it writes; what races is the write
        later = _access(stream, second, clash, "wp")
    crosses = " of a later run" if clash.later_run > clash.earlier_run else ""
    where = names.bytes_of(later.memory, later.start, later.end)
    what = f"{hazard} on {where}: nothing orders {names.who(first)} before {names.who(second)}"
    return Finding(
        kind="race",
        what=what + crosses,
        command=max(second.source, -1),
        fix=_fix(stream, clash),
        arena=later.memory,
        start=later.start,
        end=later.end,
        hazard=hazard,
        earlier=names.touch(first, clash.earlier_run, earlier),
        later=names.touch(second, clash.later_run, later),
    )


def _access(stream: EventStream, event: Event, clash: Clash, modes: str) -> Access:
    """Return the first access of an event to the bytes of a clash, cut to them."""
    space, start, end = clash.span
    if event.kind == "free":
        memory = stream.memories[event.memory]
        return Access(event.memory, start - memory.address, end - memory.address, "w")
    for step in event.steps:
        for access in step.accesses():
            memory = stream.memories[access.memory]
            first, last = start - memory.address, end - memory.address
            is_near = memory.space == space and access.start < last and first < access.end
            if is_near and access.mode != "x" and (not modes or access.mode in modes):
                return access._replace(start=first, end=last)
    raise AssertionError(f"event {event.source} does not touch {clash.span}")


def _fix(stream: EventStream, clash: Clash) -> str:
    names = stream.names
    first, second = stream.events[clash.earlier], stream.events[clash.later]
    source, target = stream.actors[first.actor], stream.actors[second.actor]
    crosses = clash.later_run > clash.earlier_run or second.source < 0
    until = "before the run ends" if crosses else f"before {names.ref(second)}"
    span = f"after {names.ref(first)} and {until}"
    host = target.name if target.is_host else "the host"
    if first.actor == second.actor and not source.is_host and source.copy_order == "barrier":
        return f"put a barrier on {source.name} {span}"
    if first.actor == second.actor or not (source.has_events and target.has_events):
        return f"let {host} wait for {source.name} {span}"
    event = _event_after(stream, clash)
    if event is not None:
        return f"let {target.name} wait for e{event} {until}"
    if target.is_host and not source.is_host:
        return f"let {host} wait for {source.name} {span}"
    return f"record an event on {source.name} and let {target.name} wait for it {span}"


def _event_after(stream: EventStream, clash: Clash) -> int | None:
    """Return an event that is recorded between the two accesses anyway."""
    actor = stream.events[clash.earlier].actor
    last = clash.later if clash.later_run == clash.earlier_run else len(stream.events)
    for event in stream.events[clash.earlier + 1 : last]:
        if event.kind == "record" and event.actor == actor:
            return event.event
    return None
