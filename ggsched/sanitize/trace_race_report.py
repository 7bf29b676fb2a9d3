"""A race of a trace in words: who touches what, which order is missing, the shortest repair."""

from typing import Literal

from ggsched.sanitize.report import Finding, Touch
from ggsched.sanitize.trace_walk import TraceClash
from ggsched.trace.schema import Alloc, Free, Record, Trace, Work


def describe_clash(trace: Trace, clash: TraceClash) -> Finding:
    """Return the finding about a race."""
    hazard: Literal["RAW", "WAR", "WAW"] = "WAR"
    if clash.earlier_writes:
        hazard = "WAW" if clash.later_writes else "RAW"
    name = next(
        (e.name for e in trace.entries if isinstance(e, Alloc) and e.memory == clash.memory), "?"
    )
    first, second = _short(trace, clash.earlier), _short(trace, clash.later)
    where = f"{name}[{clash.start}:{clash.end}]"
    return Finding(
        kind="race",
        what=f"{hazard} on {where}: nothing orders {first} before {second}",
        command=clash.later,
        fix=_fix(trace, clash),
        arena=clash.memory,
        start=clash.start,
        end=clash.end,
        hazard=hazard,
        earlier=_touch(trace, clash.earlier, clash.earlier_writes),
        later=_touch(trace, clash.later, clash.later_writes),
    )


def label_of(trace: Trace, i: int) -> str:
    """Return what a record does, for people."""
    entry = trace.entries[i]
    if isinstance(entry, Work):
        return entry.label
    return "free" if isinstance(entry, Free) else type(entry).__name__.lower()


def _short(trace: Trace, i: int) -> str:
    return f"#{i} {trace.actors[trace.entries[i].actor].name} {label_of(trace, i)}"


def _touch(trace: Trace, i: int, writes: bool) -> Touch:
    actor = trace.actors[trace.entries[i].actor]
    who = f"{actor.name} {actor.device}".strip()
    return Touch(i, -1, who, label_of(trace, i), "write" if writes else "read")


def _fix(trace: Trace, clash: TraceClash) -> str:
    """Return the shortest repair."""
    first, second = trace.entries[clash.earlier], trace.entries[clash.later]
    source, target = trace.actors[first.actor], trace.actors[second.actor]
    span = f"after #{clash.earlier} and before #{clash.later}"
    if source.id == target.id:  # two lanes of one stream
        if source.copy_order == "barrier":
            return f"put a barrier on {source.name} {span}"
        return f"let the host wait for {source.name} {span}"
    event = _event_after(trace, clash)
    if event is not None:
        return f"let {target.name} wait for e{event} before #{clash.later}"
    if target.kind == "host" and source.kind == "stream":
        return f"let {target.name} wait for {source.name} {span}"
    return f"record an event on {source.name} and let {target.name} wait for it {span}"


def _event_after(trace: Trace, clash: TraceClash) -> int | None:
    """Return an event that is recorded between the two accesses anyway."""
    actor = trace.entries[clash.earlier].actor
    for entry in trace.entries[clash.earlier + 1 : clash.later]:
        if isinstance(entry, Record) and entry.actor == actor:
            return entry.event
    return None
