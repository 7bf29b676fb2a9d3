"""Progress: waits that nothing can ever end.

A wait ends when the record that it waits for is reached. Records and waits are a graph: each comes
after its stream, after what its host thread did before, and a wait after the record of its event,
wherever that stands. Whatever is on a cycle, or waits for an event that is never recorded, stays
where it is, and so does everything behind it.
"""

from collections.abc import Sequence

from ggsched.sanitize.events import Event, EventStream
from ggsched.sanitize.report import Finding


def find_stuck(stream: EventStream) -> list[Finding]:
    """Return waits for events that are never recorded, and each cycle of waits once."""
    if stream.is_renewable:  # then every wait is for something before it, or for nothing
        return []
    records: dict[int, int] = {}
    for i, event in enumerate(stream.events):
        if event.kind == "record" and event.event is not None:
            records.setdefault(event.event, i)
    findings = []
    is_early = False
    for i, event in enumerate(stream.events):
        if event.kind in ("wait", "sync") and event.event is not None:
            is_early |= records.get(event.event, i + 1) > i
            if event.event not in records:
                who = f"{stream.names.ref(event)} {stream.actors[event.actor].name}"
                what = f"{who} waits for e{event.event}, which is never recorded"
                fix = "record it, or do not wait"
                findings.append(Finding("progress", what, event.source, fix))
    return findings + _find_cycles(stream, records) if is_early else findings


def _find_cycles(stream: EventStream, records: dict[int, int]) -> list[Finding]:
    needs = _needs(stream, records)
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
        findings.append(_finding(stream, cycle))
        stuck -= _behind(cycle, followers)
    return findings


def _needs(stream: EventStream, records: dict[int, int]) -> list[set[int]]:
    """Return for each event those that must be reached before it."""
    last: dict[int, int] = {}
    needs: list[set[int]] = []
    streams = [i for i, a in enumerate(stream.actors) if not a.is_host]
    for i, event in enumerate(stream.events):
        mine = {last[a] for a in (event.actor, event.by) if a in last}
        if event.kind in ("wait", "sync"):
            if event.event is None:
                targets = streams if event.target is None else [event.target]
                mine |= {last[s] for s in targets if s in last}
            elif event.event in records:
                mine.add(records[event.event])
        needs.append(mine)
        last[event.actor] = i
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


def _finding(stream: EventStream, cycle: Sequence[int]) -> Finding:
    """Name the waits of a cycle; what stands between them is in between by the stream's order."""
    waits = [stream.events[i] for i in sorted(cycle) if stream.events[i].kind in ("wait", "sync")]
    waits = [event for event in waits if event.event is not None]
    named = [f"{stream.names.ref(e)} {stream.actors[e.actor].name}" for e in waits]
    what = f"{' and '.join(named)} wait for each other"
    if len(named) == 1:
        what = f"{named[0]} waits for what comes after it"
    return Finding("progress", what, waits[0].source, "record before waiting, on every stream")


# --- events that are misused ----------------------------------------------------------------------


def find_event_misuse(stream: EventStream) -> list[Finding]:
    """Return events recorded twice or waited for too early, and uses of what a device lacks."""
    findings: list[Finding] = []
    recorded: set[int] = set()

    def add(event: Event, does: str, fix: str) -> None:
        what = f"{stream.names.ref(event)} {does}"
        findings.append(Finding("event", what, event.source, fix))

    for event in stream.events:
        actor, number = stream.actors[event.actor], event.event
        if event.kind == "record" and number is not None:
            if number in recorded and not stream.is_renewable:
                add(event, f"records event {number} again", "use an event of its own (EVT-3)")
            if not actor.has_events:
                does = f"records an event on {actor.device}, which has none"
                add(event, does, "let the host wait for the stream")
            recorded.add(number)
        elif event.kind == "barrier" and not actor.has_barrier:
            does = f"is a barrier on {actor.device}, which has none"
            fix = "let the host wait for the stream"
            add(event, does, fix if actor.copy_order == "host" else "leave it out")
        elif event.kind in ("wait", "sync") and number is not None:
            if number not in recorded and not stream.is_renewable:
                does = f"waits for event {number}, which is not recorded before"
                add(event, does, "record it before (EVT-3)")
            if event.kind == "wait" and not actor.has_events:
                does = f"lets {actor.device} wait for an event, which it cannot"
                add(event, does, "let the host wait instead")
    return findings
