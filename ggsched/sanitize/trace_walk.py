"""Races and lifetimes in a trace: one walk over the records with clocks and maps of bytes.

Accesses are noted by address, and freeing is one of them. So nothing is forgotten when memory is
freed: what uses the same addresses later has to come after whoever used them before.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from ggsched.sanitize.access_map import AccessMap, Found, Mark
from ggsched.sanitize.clock import Clock
from ggsched.sanitize.report import Finding
from ggsched.sanitize.trace_order import TraceOrder
from ggsched.trace.schema import Access, Alloc, Free, Trace, Work

MAX_RACES: Final = 200
"""A trace without any waits has a race for every pair of records; nobody reads that many."""


class TraceClash(NamedTuple):
    """Two accesses without an order, by their records."""

    earlier: int
    earlier_writes: bool
    later: int
    later_writes: bool
    memory: int
    start: int
    end: int


class TraceWalk:
    """The walk.

    Attributes:
        clashes: Racing pairs, each once, with the first bytes that show it.
        findings: Uses of memory after it was freed.
    """

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._order = TraceOrder(trace)
        self._maps: dict[str, AccessMap] = {}
        self._places: dict[int, tuple[str, int]] = {}
        self._names: dict[int, str] = {}
        self._freed: dict[int, int] = {}
        self._sizes: dict[int, int] = {}
        self.clashes: dict[tuple[int, bool, int, bool], TraceClash] = {}
        self.findings: list[Finding] = []

    def run(self) -> None:
        """Walk over all records."""
        order = self._order
        for i, entry in enumerate(self._trace.entries):
            match entry:
                case Work():
                    self._work(i, entry)
                case Alloc():
                    self._alloc(entry)
                case Free():
                    self._free(i, entry)
                case _:
                    order.follow(entry)

    def _work(self, i: int, work: Work) -> None:
        mark, clock = self._order.work(i, work.actor, work.by, is_copy=work.is_copy)
        for access in (*work.reads, *work.writes):
            self._check_alive(i, work.label, access)
        self._note(i, work.reads, mark, clock, writes=False)
        self._note(i, work.writes, mark, clock, writes=True)

    def _alloc(self, entry: Alloc) -> None:
        space = entry.space or f"\0{entry.memory}"
        self._places[entry.memory] = space, entry.address
        self._names[entry.memory] = entry.name
        self._sizes[entry.memory] = entry.nbytes
        self._maps.setdefault(space, AccessMap())
        self._order.alloc(entry)

    def _free(self, i: int, entry: Free) -> None:
        if entry.memory in self._freed:
            what = f"#{i} frees {self._names[entry.memory]} again"
            self.findings.append(Finding("freed", what, i, "free it once", entry.memory))
            return
        mark, clock = self._order.work(i, entry.actor, entry.by, is_copy=False)
        whole = Access(entry.memory, 0, self._sizes[entry.memory])
        self._note(i, (whole,), mark, clock, writes=True)
        self._freed[entry.memory] = i
        self._order.free(entry, clock)

    def _check_alive(self, i: int, label: str, access: Access) -> None:
        if access.memory in self._freed:
            name, at = self._names[access.memory], self._freed[access.memory]
            what = f"#{i} {label} uses {name}, which #{at} has freed"
            fix = f"free it after #{i}"
            self.findings.append(Finding("freed", what, i, fix, *access[:3]))
        elif access.memory not in self._places:
            what = f"#{i} {label} uses memory {access.memory} before it is allocated"
            self.findings.append(Finding("freed", what, i, "allocate it before", *access[:3]))

    def _note(
        self, i: int, touched: Iterable[Access], mark: Mark, clock: Clock, *, writes: bool
    ) -> None:
        found: Found = []
        for memory, start, end, _ in touched:
            place = self._places.get(memory)
            if place is None or start == end:
                continue
            space, base = place
            touch = self._maps[space].write if writes else self._maps[space].read
            touch(base + start, base + end, mark, clock, found)
            for earlier_reads, (lane, number), first, last in found:
                earlier = self._order.log[lane][number - 1]
                key = (earlier, earlier_reads, i, writes)
                if key not in self.clashes and len(self.clashes) < MAX_RACES and earlier != i:
                    self.clashes[key] = TraceClash(
                        earlier, not earlier_reads, i, writes, memory, first - base, last - base
                    )
            found.clear()
