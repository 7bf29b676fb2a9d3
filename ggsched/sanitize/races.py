"""Races: overlapping accesses, at least one a write, that nothing orders.

The commands are walked run after run with vector clocks (``order``). For each arena a map of byte
ranges keeps the last write and, since then, the last read of each lane. That is enough to notice
a race wherever there is one: lanes are in order by themselves, and whoever is ordered after the
last write is ordered after everything that this write was ordered after. Of several races on the
same bytes the first is sure to be reported, the others may hide behind it.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from ggsched.plan.bundle import Plan
from ggsched.plan.command import Barrier, Command, HostSync, Record, Upload, Wait
from ggsched.sanitize.access_map import AccessMap, Found, Mark
from ggsched.sanitize.clock import Clock
from ggsched.sanitize.footprint import Footprint, Span, merge
from ggsched.sanitize.order import HOST_LANE, HOST_READS, HOST_WRITES, EventOrder
from ggsched.sanitize.race_report import Clash, describe
from ggsched.sanitize.report import Finding

MAX_RACES: Final = 200
"""A plan without any waits has a race for every pair of commands; nobody reads that many."""

_NOTHING: Final = Footprint((), ())


def find_races(plan: Plan, footprints: Sequence[Footprint | None], runs: int) -> list[Finding]:
    """Return each racing pair of commands once, with the first bytes that show it."""
    walk = _Walk(plan, footprints)
    for run in range(runs):
        walk.run(run)
        if walk.order.host_knows_all:  # then nothing of this run meets the next, nor differs there
            break
    return [describe(plan, clash) for clash in walk.clashes.values()]


class _Walk:
    """The walk over consecutive runs.

    Attributes:
        clashes: Racing pairs found so far.
    """

    def __init__(self, plan: Plan, footprints: Sequence[Footprint | None]) -> None:
        self.plan = plan
        self.order = EventOrder(plan)
        self.clashes: dict[tuple[bool, int, int], Clash] = {}
        regions = plan.memory.regions
        self._inputs = _spans(regions[s.value] for s in plan.inputs)
        self._outputs = _spans(regions[s.value] for s in plan.outputs)
        self._snapshots = {
            c.id
            for c in plan.commands
            if isinstance(c, Upload)
            and plan.devices[plan.streams.streams[c.stream].device].snapshots_uploads
        }
        lanes = [self._lane(c) for c in plan.commands]
        shared = self._shared(lanes, footprints)
        self._maps = {arena: AccessMap() for arena in shared}
        self._inputs = [s for s in self._inputs if s[0] in shared]
        self._outputs = [s for s in self._outputs if s[0] in shared]
        prints = (_only(shared, f) for f in footprints)
        self._script = [
            (command, lane, footprint)
            for command, lane, footprint in zip(plan.commands, lanes, prints, strict=True)
            if lane < 0 or footprint is not None
        ]

    def run(self, run: int) -> None:
        """Walk once more over the commands; the host writes before and reads after."""
        order = self.order
        order.begin_run()
        self._host(HOST_WRITES, run)
        for command, lane, footprint in self._script:
            if footprint is not None:
                clock = order.work(lane, command.id, run)
                self._touch(command.id, run, (lane, clock[lane]), clock, footprint)
            elif isinstance(command, Record):
                order.record(command.stream, command.event)
            elif isinstance(command, Wait):
                order.wait(command.stream, command.event)
            elif isinstance(command, Barrier):
                order.barrier(command.stream)
            elif isinstance(command, HostSync):
                order.host_sync(command.stream, command.event)
        self._host(HOST_READS, run)

    def _lane(self, command: Command) -> int:
        engine = command.effects.engine
        return -1 if engine is None else self.order.lane(command.stream, engine == "copy")

    def _shared(self, of: list[int], footprints: Sequence[Footprint | None]) -> set[int]:
        """Return the arenas that are written at all and that more than one lane touches."""
        lanes: dict[int, set[int]] = {}
        written: set[int] = set()
        for lane, footprint in zip(of, footprints, strict=True):
            if footprint is not None:
                for arena, _, _ in footprint.reads:
                    lanes.setdefault(arena, set()).add(lane)
                for arena, _, _ in footprint.host:
                    lanes.setdefault(arena, set()).add(HOST_LANE)
                for arena, _, _ in footprint.writes:
                    lanes.setdefault(arena, set()).add(lane)
                    written.add(arena)
        snapshots = [span for i in self._snapshots for span in (footprints[i] or _NOTHING).reads]
        for arena, _, _ in (*self._inputs, *self._outputs, *snapshots):
            lanes.setdefault(arena, set()).add(HOST_LANE)
        written.update(arena for arena, _, _ in self._inputs)
        return {arena for arena in written if len(lanes[arena]) > 1}

    def _host(self, command: int, run: int) -> None:
        clock = self.order.host_work(command, run)
        mark = (HOST_LANE, clock[HOST_LANE])
        if command == HOST_WRITES:
            self._touch(command, run, mark, clock, Footprint((), self._inputs))
        else:
            self._touch(command, run, mark, clock, Footprint(self._outputs, ()))

    def _touch(self, i: int, run: int, mark: Mark, clock: Clock, footprint: Footprint) -> None:
        found: Found = []
        maps = self._maps
        reader, known = mark, clock
        if i in self._snapshots:
            # The source is read while the host enqueues (CPY-4): what the stream waits for does
            # not help, and the host goes on after it.
            known = self.order.host_work(i, run)
            reader = HOST_LANE, known[HOST_LANE]
        if footprint.host:  # ids of rows: the host goes on once it has read them
            seen = self.order.host_work(i, run)
            for arena, start, end in footprint.host:
                maps[arena].read(start, end, (HOST_LANE, seen[HOST_LANE]), seen, found)
                if found:
                    self._note(i, run, arena, False, found)
        for arena, start, end in footprint.reads:
            maps[arena].read(start, end, reader, known, found)
            if found:
                self._note(i, run, arena, False, found)
        for arena, start, end in footprint.writes:
            maps[arena].write(start, end, mark, clock, found)
            if found:
                self._note(i, run, arena, True, found)

    def _note(self, i: int, run: int, arena: int, writes: bool, found: Found) -> None:
        for earlier_reads, (lane, number), start, end in found:
            command, earlier_run = self.order.log[lane][number - 1]
            key = (earlier_reads, command, i)
            if key not in self.clashes and len(self.clashes) < MAX_RACES:
                self.clashes[key] = Clash(
                    command, earlier_run, not earlier_reads, i, run, writes, arena, start, end
                )
        found.clear()


def _spans(regions: Iterable[tuple[int, int, int]]) -> list[Span]:
    return merge((arena, offset, offset + nbytes) for arena, offset, nbytes in regions)


def _only(arenas: set[int], footprint: Footprint | None) -> Footprint | None:
    if footprint is None:
        return None
    reads = [s for s in footprint.reads if s[0] in arenas]
    writes = [s for s in footprint.writes if s[0] in arenas]
    host = [s for s in footprint.host if s[0] in arenas]
    return Footprint(reads, writes, host) if reads or writes or host else None
