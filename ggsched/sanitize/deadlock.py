"""Progress: waits that nothing can ever end.

A wait ends when the record that it waits for is reached. The records and waits of a trace are a
graph: each comes after its stream, after what its host thread did before, and a wait after the
record of its event, wherever that stands. Whatever is on a cycle, or waits for an event that is
never recorded, stays where it is, and so does everything behind it.
"""

from collections.abc import Sequence

from ggsched.sanitize.report import Finding
from ggsched.trace.schema import NOBODY, Alloc, Entry, Record, Sync, Trace, Wait


def find_stuck(trace: Trace) -> list[Finding]:
    """Return waits for events that are never recorded, and cycles of waits."""
    if trace.events == "latest":  # then every wait is for something before it, or for nothing
        return []
    records = _records(trace)
    findings = []
    for i, entry in enumerate(trace.entries):
        event = _event(entry)
        if event is not None and event not in records:
            who = trace.actors[entry.actor].name
            what = f"#{i} {who} waits for e{event}, which is never recorded"
            findings.append(Finding("progress", what, i, "record it, or do not wait"))
    return findings + find_cycles(trace)


def find_cycles(trace: Trace) -> list[Finding]:
    """Return each group of records that wait for one another, once."""
    needs = _needs(trace, _records(trace))
    left = [len(mine) for mine in needs]
    followers: list[list[int]] = [[] for _ in needs]
    for i, mine in enumerate(needs):
        for j in mine:
            followers[j].append(i)
    reached = [i for i, count in enumerate(left) if not count]
    for i in reached:  # grows while it is walked
        for j in followers[i]:
            left[j] -= 1
            if not left[j]:
                reached.append(j)
    stuck = {i for i, count in enumerate(left) if count}
    findings = []
    while stuck:
        cycle = _walk_back(min(stuck), stuck, needs)
        findings.append(_cycle_finding(trace, cycle))
        stuck -= _behind(cycle, followers)
    return findings


def _records(trace: Trace) -> dict[int, int]:
    """Return where each event is first recorded."""
    records: dict[int, int] = {}
    for i, entry in enumerate(trace.entries):
        if isinstance(entry, Record):
            records.setdefault(entry.event, i)
    return records


def _event(entry: Entry) -> int | None:
    return entry.event if isinstance(entry, Wait | Sync) else None


def _needs(trace: Trace, records: dict[int, int]) -> list[set[int]]:
    """Return for each record those that must be reached before it."""
    last: dict[int, int] = {}
    needs: list[set[int]] = []
    for i, entry in enumerate(trace.entries):
        by = NOBODY if isinstance(entry, Alloc) else entry.by
        mine = {last[a] for a in (entry.actor, by) if a in last}
        event = _event(entry)
        if event in records:
            mine.add(records[event])
        elif isinstance(entry, Sync) and event is None:
            streams = [a.id for a in trace.actors if a.kind == "stream"]
            targets = streams if entry.stream is None else [entry.stream]
            mine |= {last[s] for s in targets if s in last}
        needs.append(mine)
        last[entry.actor] = i
    return needs


def _walk_back(i: int, stuck: set[int], needs: Sequence[set[int]]) -> list[int]:
    """Follow needs that are stuck until one comes again; return the cycle."""
    path: list[int] = []
    place: dict[int, int] = {}
    while i not in place:
        place[i] = len(path)
        path.append(i)
        i = max(needs[i] & stuck)
    return path[place[i] :]


def _behind(cycle: Sequence[int], followers: Sequence[Sequence[int]]) -> set[int]:
    seen = set(cycle)
    todo = list(cycle)
    for i in todo:  # grows while it is walked
        for j in followers[i]:
            if j not in seen:
                seen.add(j)
                todo.append(j)
    return seen


def _cycle_finding(trace: Trace, cycle: Sequence[int]) -> Finding:
    """Name the waits of a cycle; what stands between them is in between by the stream's order."""
    waits = [i for i in sorted(cycle) if _event(trace.entries[i]) is not None]
    named = [f"#{i} {trace.actors[trace.entries[i].actor].name}" for i in waits]
    what = f"{' and '.join(named)} wait for each other" if len(waits) > 1 else ""
    if not what:
        what = f"{named[0]} waits for what comes after it"
    return Finding("progress", what, waits[0], "record before waiting, on every stream")
