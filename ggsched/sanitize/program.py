"""Program order: are the commands listed in an order that means the same as the graph?

The nodes mean what they do when they run one after another, with the transfers before the split
that needs them. Commands may be listed in another order only where they touch no common bytes.
"""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from ggsched.ids import show
from ggsched.plan.bundle import Plan
from ggsched.plan.command import Launch
from ggsched.plan.memory import Region
from ggsched.sanitize.report import Finding

Place = tuple[int, int, int]
"""Where something stands in the program: (split, 0 for transfers and 1 for nodes, number)."""

_START: Final[Place] = (-1, 0, 0)

_Access = tuple[int, Place, list[tuple[Region, bool]]]
"""(command, place in the program, regions and whether they are written)."""


def find_disorder(plan: Plan) -> list[Finding]:
    """Return commands that are listed before what they must follow."""
    places = list(_places(plan))
    if all(a < b for a, b in pairwise(places)):
        return []
    found: dict[tuple[int, int], Finding] = {}
    maps = [_Latest() for _ in plan.memory.arenas]
    for command, place, touched in _accesses(plan):
        for region, writes in touched:
            if not region.nbytes:
                continue
            latest, other = maps[region.arena].touch(region, place, command, writes)
            if latest > place and (other, command) not in found:
                found[other, command] = _finding(command, other, region)
    return list(found.values())


def _finding(command: int, other: int, region: Region) -> Finding:
    late, early = show("command", command), show("command", other)
    place = f"{show('arena', region.arena)}[{region.offset}:{region.end}]"
    what = f"{late} comes after {early}, but before it in the program; both touch {place}"
    fix = f"list {late} before {early}"
    return Finding("disorder", what, command, fix, region.arena, region.offset, region.end)


def _places(plan: Plan) -> Iterator[Place]:
    for command in plan.commands:
        if isinstance(command, Launch):
            for step in command.steps:
                yield command.split, 1, step.node
        elif (transfer := command.effects.transfer) >= 0:
            yield plan.splits.transfers[transfer].before, 0, transfer


def _accesses(plan: Plan) -> Iterator[_Access]:
    for command in plan.commands:
        if isinstance(command, Launch):
            for step in command.steps:
                touched = zip(step.operands, step.modes, strict=True)
                regions = [(r, mode != "r") for r, mode in touched if mode != "-"]
                yield command.id, (command.split, 1, step.node), regions
        elif (effects := command.effects).transfer >= 0:
            place = plan.splits.transfers[effects.transfer].before, 0, effects.transfer
            reads = [(region, False) for region in (*effects.reads, *effects.host_reads)]
            yield command.id, place, reads + [(region, True) for region in effects.writes]


class _Latest:
    """For ranges of one arena the writer and the reader that come last in the program."""

    __slots__ = ("_readers", "_starts", "_writers")

    def __init__(self) -> None:
        self._starts = [0]
        self._writers = [(_START, -1)]
        self._readers = [(_START, -1)]

    def touch(self, region: Region, place: Place, command: int, writes: bool) -> tuple[Place, int]:
        """Note an access; return the last in the program of those that it must follow."""
        first, last = self._cut(region.offset), self._cut(region.end)
        before = self._writers[first:last]
        if writes:
            before += self._readers[first:last]
            self._writers[first:last] = [max((place, command), w) for w in before[: last - first]]
            self._readers[first:last] = [(_START, -1)] * (last - first)
        else:
            readers = self._readers[first:last]
            self._readers[first:last] = [max((place, command), r) for r in readers]
        return max(before)

    def _cut(self, at: int) -> int:
        k = bisect_left(self._starts, at)
        if k == len(self._starts) or self._starts[k] != at:
            self._starts.insert(k, at)
            self._writers.insert(k, self._writers[k - 1])
            self._readers.insert(k, self._readers[k - 1])
        return k
