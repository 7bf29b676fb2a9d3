"""Waste: waits and copies that nobody needs. Advice, never an error.

A wait is needless if without it everything that touches the same bytes is still in order. To find
out, the records are followed once, to learn for each piece of work what must be known to be done
when it begins; that does not depend on the waits. Then for each wait the clocks are followed from
there on without it, until something is missing or the end is reached. A wait that is found
needless stays left out while the next are looked at, so that all advice can be taken together;
waits of the host, which cost most, come first.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ggsched.sanitize.access_map import AccessMap, Found
from ggsched.sanitize.content_map import ContentMap
from ggsched.sanitize.report import Finding
from ggsched.sanitize.trace_order import TraceOrder
from ggsched.trace.schema import (
    Access,
    Alloc,
    Barrier,
    Entry,
    Free,
    Record,
    Sync,
    Trace,
    Wait,
    Work,
)

Group = tuple[int, ...]
"""Records that stand for one thing: those of one command of a plan, in all its runs."""

_WAITS = (Sync, Barrier, Wait)
_TOUCHING = (Work, Free)


class Waste(NamedTuple):
    """What nobody needs, by group.

    Attributes:
        waits: Waits without which everything is still in order.
        records: Records of events that nobody waits for.
        copies: Copies whose bytes nobody reads.
    """

    waits: list[Group]
    records: list[Group]
    copies: list[Group]


def find_waste(
    trace: Trace, groups: Iterable[Group] | None = None, scratch: frozenset[int] = frozenset()
) -> Waste:
    """Return what a trace without races could do without.

    Args:
        trace: The trace.
        groups: What to leave out together; each record by itself if not given.
        scratch: Memory objects whose content does not matter after the end.
    """
    parts = [(i,) for i in range(len(trace.entries))] if groups is None else list(groups)
    copies = _idle_copies(trace, scratch)
    awaited = {e.event for e in trace.entries if isinstance(e, Wait | Sync)}
    return Waste(
        _needless_waits(trace, parts),
        [g for g in parts if all(_is_unheard(trace.entries[i], awaited) for i in g)],
        [g for g in parts if all(i in copies for i in g)],
    )


def advise(trace: Trace) -> tuple[Finding, ...]:
    """Return the waste of a trace as advice."""
    waste = find_waste(trace)
    findings = []
    for (i,) in waste.waits:
        what = f"#{i} {trace.actors[trace.entries[i].actor].name} waits, and nobody needs it"
        findings.append(Finding("waste", what, i, "leave it out"))
    for (i,) in waste.records:
        findings.append(Finding("waste", f"nobody waits for the event of #{i}", i, "leave it out"))
    for (i,) in waste.copies:
        what = f"nobody reads what #{i} copies"
        findings.append(Finding("waste", what, i, "leave it out"))
    return tuple(sorted(findings, key=lambda f: f.command))


def _is_unheard(entry: Entry, awaited: set[int | None]) -> bool:
    return isinstance(entry, Record) and entry.event not in awaited


# --- waits ----------------------------------------------------------------------------------------


def _needless_waits(trace: Trace, groups: Sequence[Group]) -> list[Group]:
    waits = [g for g in groups if g and all(isinstance(trace.entries[i], _WAITS) for i in g)]
    if not waits:
        return []
    needs = _needs(trace)
    skipped: set[int] = set()
    needless = []
    for kinds in ((Sync,), (Barrier, Wait)):
        chosen = [g for g in waits if isinstance(trace.entries[g[0]], kinds)]
        start = _Clocks(trace, needs)
        for group in sorted(chosen):
            start.run(group[0], skipped)
            if start.copy().run(len(trace.entries), {*skipped, *group}):
                skipped.update(group)
                needless.append(group)
    return sorted(needless)


def _needs(trace: Trace) -> list[list[tuple[int, int]]]:
    """Return for each record the (lane, number) pairs that must be done when it begins."""
    order = TraceOrder(trace)
    nothing = [0] * len(order.log)
    maps: dict[str, AccessMap] = {}
    places: dict[int, tuple[str, int, int]] = {}
    needs: list[list[tuple[int, int]]] = []
    for i, entry in enumerate(trace.entries):
        latest: dict[int, int] = {}
        if isinstance(entry, Alloc):
            space = entry.space or f"\0{entry.memory}"
            places[entry.memory] = space, entry.address, entry.nbytes
            maps.setdefault(space, AccessMap())
        elif isinstance(entry, _TOUCHING):
            is_copy = isinstance(entry, Work) and entry.is_copy
            mark, _ = order.work(i, entry.actor, -1, is_copy=is_copy)
            found: Found = []
            for access, writes in _touched(entry, places):
                if access.memory in places and access.start < access.end:
                    space, base, _ = places[access.memory]
                    touch = maps[space].write if writes else maps[space].read
                    touch(base + access.start, base + access.end, mark, nothing, found)
            for _, (lane, number), _, _ in found:
                if lane != mark[0]:
                    latest[lane] = max(number, latest.get(lane, 0))
        needs.append(list(latest.items()))
    return needs


def _touched(
    entry: Work | Free, places: dict[int, tuple[str, int, int]]
) -> list[tuple[Access, bool]]:
    if isinstance(entry, Free):
        size = places[entry.memory][2] if entry.memory in places else 0
        return [(Access(entry.memory, 0, size), True)]
    return [(a, False) for a in entry.reads] + [(a, True) for a in entry.writes]


class _Clocks:
    """The clocks while the records are followed."""

    def __init__(self, trace: Trace, needs: Sequence[Sequence[tuple[int, int]]]) -> None:
        self._trace = trace
        self._needs = needs
        self._order = TraceOrder(trace)
        self._at = 0

    def copy(self) -> "_Clocks":
        """Return clocks of their own in the same place."""
        other = _Clocks.__new__(_Clocks)
        other._trace, other._needs, other._at = self._trace, self._needs, self._at
        other._order = self._order.fork()
        return other

    def run(self, until: int, skipped: set[int]) -> bool:
        """Follow the records up to one; return whether everything was in order until then."""
        entries, needs, order = self._trace.entries, self._needs, self._order
        for i in range(self._at, until):
            entry = entries[i]
            if isinstance(entry, _TOUCHING):
                is_copy = isinstance(entry, Work) and entry.is_copy
                _, clock = order.work(i, entry.actor, entry.by, is_copy=is_copy)
                if any(clock[lane] < number for lane, number in needs[i]):
                    return False
                if isinstance(entry, Free):
                    order.free(entry, clock)
            elif i not in skipped:
                order.follow(entry)
        self._at = until
        return True


# --- copies ---------------------------------------------------------------------------------------


def _idle_copies(trace: Trace, scratch: frozenset[int]) -> set[int]:
    """Return copies of which no byte is read before it is overwritten, freed or forgotten."""
    maps: dict[int, ContentMap[int]] = {}
    used: set[int] = set()
    copies: set[int] = set()
    for i, entry in enumerate(trace.entries):
        if isinstance(entry, Alloc):
            maps[entry.memory] = ContentMap(-1)
        elif isinstance(entry, Free):
            maps.pop(entry.memory, None)
        elif isinstance(entry, Work):
            for memory, start, end, _ in entry.reads:
                if memory in maps and start < end:
                    used.update(writer for writer, _, _ in maps[memory].pieces(start, end))
            for memory, start, end, _ in entry.writes:
                if memory in maps and start < end and not entry.is_partial:
                    maps[memory].give(start, end, i)
                    copies |= {i} if entry.is_copy else set()
    for memory, content in maps.items():
        if memory not in scratch:
            used.update(writer for writer, _, _ in content.pieces(0, 1 << 62))
    return copies - used
