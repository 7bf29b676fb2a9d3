"""Lifetimes of memory: is it used after it begins and before it ends?"""

from ggsched.sanitize.events import Event, EventStream
from ggsched.sanitize.report import Finding


def find_dead_memory(stream: EventStream) -> list[Finding]:
    """Return uses of memory before it is allocated or after it is freed, and second frees."""
    begun = {event.memory for event in stream.events if event.kind == "alloc"}
    if not begun:
        return []
    alive: set[int] = set()
    freed: dict[int, Event] = {}
    findings: list[Finding] = []
    for event in stream.events:
        if event.kind == "alloc":
            alive.add(event.memory)
        elif event.kind == "free":
            findings += _free(stream, event, alive, freed)
            freed.setdefault(event.memory, event)
        for step in event.steps:
            for memory, start, end, _, _ in step.accesses():
                label, name = stream.names.step(event, step), stream.memories[memory].name
                if memory in freed:
                    what = f"{label} uses {name}, which {stream.names.ref(freed[memory])} has freed"
                    fix = f"free it after {stream.names.ref(event)}"
                elif memory not in alive:
                    what, fix = f"{label} uses {name} before it is allocated", "allocate it before"
                else:
                    continue
                findings.append(Finding("freed", what, event.source, fix, memory, start, end))
    return findings


def _free(
    stream: EventStream, event: Event, alive: set[int], freed: dict[int, Event]
) -> list[Finding]:
    ref, name = stream.names.ref(event), stream.memories[event.memory].name
    if event.memory in freed:
        what, fix = f"{ref} frees {name} again", "free it once"
    elif event.memory not in alive:
        what, fix = f"{ref} frees {name} before it is allocated", "allocate it before"
    else:
        return []
    return [Finding("freed", what, event.source, fix, event.memory)]
