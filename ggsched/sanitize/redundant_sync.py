"""Redundant synchronisation: waits, records and copies that are not needed. Advice, never an error.

A wait is redundant if without it everything that touches the same bytes is still in order. To find
out, the events are followed once, to learn for each piece of work what must be known to be done
when it begins; that does not depend on the waits. Then for each wait the clocks are followed from
there on without it, until something is missing or the end is reached. A wait that is found
redundant stays left out while the next are looked at, so that all advice can be taken together;
waits of the host, which cost most, come first.
"""

from collections.abc import Container, Iterable, Sequence
from typing import Final, NamedTuple

from ggsched.ir.intervals import IntervalMap
from ggsched.sanitize.events import Access, Event, EventStream
from ggsched.sanitize.order import HappensBefore, knows, nothing
from ggsched.sanitize.races import AccessMap, Clashes, note
from ggsched.sanitize.report import Finding

Group = tuple[int, ...]
"""Indices of the events of one command or record."""

_WAITS: Final = ("wait", "sync", "barrier")
_TOUCHING: Final = ("work", "free")


class Redundant(NamedTuple):
    """What nobody needs, by the number of the command or record.

    Attributes:
        waits: Waits without which everything is still in order.
        records: Records of events that nobody waits for.
        copies: Copies whose bytes nobody reads.
    """

    waits: list[int]
    records: list[int]
    copies: list[int]


def find_redundant(stream: EventStream, kept: Container[int] = ()) -> Redundant:
    """Return what a stream of events without races could do without.

    Args:
        kept: Commands or records that stay, whether somebody needs them or not.
    """
    by_source: dict[int, list[int]] = {}
    for i, event in enumerate(stream.events):
        if event.source >= 0:
            by_source.setdefault(event.source, []).append(i)
    groups = [tuple(group) for source, group in by_source.items() if source not in kept]
    events = stream.events
    copies = _idle_copies(stream)
    awaited = {e.event for e in events if e.kind in ("wait", "sync")}
    unheard = {i for i, e in enumerate(events) if e.kind == "record" and e.event not in awaited}
    return Redundant(
        [events[g[0]].source for g in _needless_waits(stream, groups)],
        [events[g[0]].source for g in groups if all(i in unheard for i in g)],
        [events[g[-1]].source for g in groups if g[-1] in copies],
    )


def advise(stream: EventStream, kept: Container[int] = ()) -> tuple[Finding, ...]:
    """Return what is redundant as advice; see ``find_redundant``."""
    redundant = find_redundant(stream, kept)
    of = {event.source: event for event in stream.events}
    names, findings = stream.names, []
    for source in redundant.waits:
        what = f"nobody needs {names.sync(of[source])}"
        findings.append(Finding("waste", what, source, "leave it out"))
    for source in redundant.records:
        what = f"nobody waits for {names.sync(of[source])}"
        findings.append(Finding("waste", what, source, "leave it out"))
    for source in redundant.copies:
        what = f"nobody reads what {names.sync(of[source])} copies"
        findings.append(Finding("waste", what, source, "leave it out"))
    return tuple(sorted(findings, key=lambda f: f.command))


# --- waits ----------------------------------------------------------------------------------------


def _needless_waits(stream: EventStream, groups: Sequence[Group]) -> list[Group]:
    waits = [g for g in groups if all(stream.events[i].kind in _WAITS for i in g)]
    if not waits:
        return []
    needs = _needs(stream)
    skipped: set[int] = set()
    needless = []
    for kinds in (("sync",), ("barrier", "wait")):
        chosen = [g for g in waits if stream.events[g[0]].kind in kinds]
        start = _Clocks(stream, needs)
        for group in sorted(chosen):
            start.run(group[0], skipped)
            if start.copy().run(len(needs), {*skipped, *group}):
                skipped.update(group)
                needless.append(group)
    return sorted(needless)


def _needs(stream: EventStream) -> list[list[tuple[int, int]]]:
    """Return for each event of each run the (lane, number) that must be done when it begins."""
    order = HappensBefore(stream)
    unaware = nothing(len(order.log))
    maps = {memory.space: AccessMap() for memory in stream.memories.values()}
    needs: list[list[tuple[int, int]]] = []
    for run in range(stream.runs):
        for i, event in enumerate(stream.events):
            latest: dict[int, int] = {}
            if event.kind in _TOUCHING:
                mark, _ = order.work(event, i, run)
                found: Clashes = []
                note(maps, event.reads, mark, unaware, found, is_write=False)
                note(maps, event.writes, mark, unaware, found, is_write=True)
                for _, (lane, number), _ in found:
                    if lane != mark[0]:
                        latest[lane] = max(number, latest.get(lane, 0))
            needs.append(list(latest.items()))
    return needs


class _Clocks:
    """The clocks while the events are followed, run after run."""

    def __init__(self, stream: EventStream, needs: Sequence[Sequence[tuple[int, int]]]) -> None:
        self._stream = stream
        self._needs = needs
        self._order = HappensBefore(stream)
        self._at = 0

    def copy(self) -> "_Clocks":
        """Return clocks of their own in the same place."""
        other = _Clocks.__new__(_Clocks)
        other._stream, other._needs, other._at = self._stream, self._needs, self._at
        other._order = self._order.fork()
        return other

    def run(self, until: int, skipped: set[int]) -> bool:
        """Follow the events up to one; return whether everything was in order until then."""
        events, order = self._stream.events, self._order
        for at in range(self._at, until):
            run, i = divmod(at, len(events))
            event = events[i]
            if not i and run:
                order.begin_run()
            if event.kind in _TOUCHING:
                _, clock = order.work(event, i, run)
                if not all(knows(clock, lane, number) for lane, number in self._needs[at]):
                    return False
                if event.kind == "free":
                    order.free(event, clock)
            elif i not in skipped:
                order.follow(event)
        self._at = until
        return True


# --- copies ---------------------------------------------------------------------------------------


def _idle_copies(stream: EventStream) -> set[int]:
    """Return copies of which no byte is read before it is overwritten, freed or forgotten."""
    maps: dict[int, IntervalMap[int]] = {i: IntervalMap(-1) for i in stream.memories}
    used: set[int] = set()
    copies: set[int] = set()
    for _ in range(stream.runs):
        for i, event in enumerate(stream.events):
            if event.kind == "free":
                maps[event.memory].put(0, 1 << 62, -1)
            for step in event.steps:
                _follow_copies(i, event, step.accesses(), maps, used, copies)
    for memory, content in maps.items():
        if not stream.memories[memory].is_scratch:
            used.update(content.values)
    return copies - used


def _follow_copies(
    i: int,
    event: Event,
    accesses: Iterable[Access],
    maps: dict[int, IntervalMap[int]],
    used: set[int],
    copies: set[int],
) -> None:
    for memory, start, end, mode, _ in accesses:
        if mode == "r":
            used.update(writer for _, _, writer in maps[memory].pieces(start, end))
        elif mode != "p" and not event.is_partial:  # else some of the bytes stay as they were
            maps[memory].put(start, end, i)
            copies |= {i} if event.is_copy else set()
