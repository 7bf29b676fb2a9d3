"""Hazards: which work must stay in order because it touches the same bytes.

Found on physical ranges after allocation, so no reuse of memory can slip past.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ggsched.passes.order.access_intervals import ArenaHistory, Conflict
from ggsched.passes.order.enqueue_order import Lanes
from ggsched.passes.order.work import Work
from ggsched.plan.memory import Memory

_LOOK_FIRST: Final = 32
"""Items of the next run that are followed before looking for arenas that are done with."""


@dataclass(frozen=True, slots=True)
class Hazards:
    """For each item the earlier items that it must follow, at most one for each lane.

    Attributes:
        within: Hazards inside one run, by later item.
        history: State of each arena at the end of the run, to go on with the next; None for those
            that have no hazards.
    """

    within: Sequence[Sequence[Conflict]]
    history: tuple[ArenaHistory | None, ...]


def find_hazards(work: Sequence[Work], lanes: Lanes, memory: Memory) -> Hazards:
    """Return the hazards inside one run."""
    history = [
        None if a.kind == "weight" else ArenaHistory(a.id)  # weights are never written
        for a in memory.arenas
    ]
    of_item = lanes.of_item
    within = tuple([_hazards_of(item, i, of_item, history) for i, item in enumerate(work)])
    return Hazards(within, tuple(history))


def next_run_hazards(
    work: Sequence[Work], lanes: Lanes, hazards: Hazards
) -> list[tuple[int, Conflict]]:
    """Return hazards from this run to the next as (later item, dependency)."""
    n = len(work)
    history = [None if past is None else past.copy() for past in hazards.history]
    lane_of = lanes.of_item * 2
    crossing: list[tuple[int, Conflict]] = []
    for i, item in enumerate(work):
        if i >= _LOOK_FIRST and not i & (i - 1):  # at each power of two, so that looking is cheap
            history = [None if p is None or p.is_all_since(n) else p for p in history]
            if not any(history):
                break
        for d in _hazards_of(item, n + i, lane_of, history):
            if d.earlier < n:
                crossing.append((i, d))  # noqa: PERF401  # most items have none
    return crossing


def _hazards_of(
    item: Work, number: int, lane_of: Sequence[int], history: Sequence[ArenaHistory | None]
) -> Sequence[Conflict]:
    """Note the item's accesses; return the latest earlier item of each other lane.

    Reads are noted before writes, so an item does not conflict with itself.
    """
    lane = lane_of[number]
    found: list[Conflict] = []
    for arena, start, nbytes in item.reads:
        past = history[arena]
        if past is not None:
            past.read(start, start + nbytes, number, lane, found)
    for arena, start, nbytes in item.writes:
        past = history[arena]
        if past is not None:
            past.write(start, start + nbytes, number, lane, found)
    if not found:
        return ()
    if len(found) == 1:
        return found if lane_of[found[0].earlier] != lane else ()
    latest: dict[int, Conflict] = {}
    for conflict in found:
        other = lane_of[conflict.earlier]
        if other != lane:
            known = latest.get(other)
            if known is None or known.earlier < conflict.earlier:
                latest[other] = conflict
    return tuple(latest.values())
