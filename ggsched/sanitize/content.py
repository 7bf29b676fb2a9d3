"""Contents: does each reader find the bytes that it means?

One run is followed in the order of the events, which is one of the possible orders; whether it is
kept is the question of ``races``. Where nothing races all possible orders leave the same contents,
so one of them is enough. Scratch memory of a plan holds nothing when a run begins.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from ggsched.ir.intervals import IntervalMap
from ggsched.sanitize.events import (
    UNDEFINED,
    UNKNOWN,
    Access,
    Event,
    EventStream,
    Found,
    Held,
    Step,
    content_of,
)
from ggsched.sanitize.report import Finding, FindingKind

_Cell = tuple[Held, Event | None]


def find_wrong_content(stream: EventStream) -> list[Finding]:
    """Return reads of bytes that are undefined, of another owner or too old; bad writes too."""
    walk = _Walk(stream)
    walk.follow(stream.events)
    return list(walk.findings.values())


class _Walk:
    """The walk over the events of one run.

    Attributes:
        findings: What was found, once for each event and owner.
    """

    def __init__(self, stream: EventStream) -> None:
        self._memories = stream.memories
        self._names = stream.names
        memories = stream.memories.items()
        self._free = {i for i, m in memories if m.owner is None and not m.is_constant}
        self._maps: dict[int, IntervalMap[_Cell]] = {
            i: IntervalMap((m.content, None)) for i, m in memories
        }
        self.findings: dict[tuple[str, int, int, object], Finding] = {}

    def follow(self, events: Sequence[Event]) -> None:
        """Follow the accesses of all steps; what each of thousands does mostly comes first."""
        maps, free = self._maps, self._free
        tables = {i: (map_.starts, map_.values) for i, map_ in maps.items()}
        for event in events:
            for step in event.steps:
                modes, contents, i = step.modes, step.contents, 0
                for memory, start, nbytes in step.regions:
                    mode, held = modes[i], contents[i]
                    i += 1  # faster than to count and to zip
                    starts, values = tables[memory]
                    end = start + nbytes
                    if mode == "r":
                        k = bisect_right(starts, start)
                        while values[k - 1][0] == held and k < len(starts) and starts[k] < end:
                            k += 1
                        if values[k - 1][0] == held:
                            continue  # all that is needed
                    elif mode == "w" and memory in free:
                        k = bisect_left(starts, start)
                        if k + 1 < len(starts) and starts[k] == start and starts[k + 1] == end:
                            values[k] = (held, event)
                        elif nbytes:
                            maps[memory].put(start, end, (held, event))
                        continue
                    if nbytes and mode != "-":
                        access = Access(memory, start, end, mode, content_of(held))
                        self._follow(event, step, access, held)

    def _follow(self, event: Event, step: Step, access: Access, held: Held) -> None:
        """Follow an access."""
        memory, start, end, mode, content = access
        bytes_ = self._maps[memory]
        if mode == "r":
            for first, last, (there, writer) in bytes_.pieces(start, end):
                found = content_of(there)
                if found != content:
                    self._check(event, step, access, Found(found, writer, first, last))
        elif mode == "x":
            bytes_.put(start, end, (UNDEFINED, event))
        else:
            self._check_owner(event, step, access)
            if mode == "w":
                bytes_.put(start, end, (held, event))
            else:
                self._write_some(event, step, access)

    def _check_owner(self, event: Event, step: Step, access: Access) -> None:
        """Check who writes memory of a weight or a state."""
        facts = self._memories[access.memory]
        if facts.is_constant:
            what = f"{self._names.step(event, step)} writes weight {facts.name}"
            self._add("weight", event, access, what, "weights are constant")
        elif facts.owner is not None and access.content.owner != facts.owner.owner:
            what = f"{self._names.step(event, step)} writes {self._names.wanted(access)}"
            what += f", which belongs to state {facts.name}"
            self._add("reuse", event, access, what, "states are not reused")

    def _check(self, event: Event, step: Step, access: Access, there: Found) -> None:
        """Compare what a read needs with what it finds."""
        if there.content == UNDEFINED:
            name = self._names.step(event, step)
            where = self._names.wanted(access._replace(start=there.start, end=there.end))
            what = f"{name} reads {where}, which nothing has written"
            self._add("undefined", event, access, what, "fill it before", there)
        elif access.content != UNKNOWN:
            kind, what, fix = self._names.wrong_content(event, step, access, there)
            self._add(kind, event, access, what, fix, there)

    def _write_some(self, event: Event, step: Step, access: Access) -> None:
        """Follow a write that leaves some of the bytes as they were: what is undefined stays so."""
        content, bytes_ = access.content, self._maps[access.memory]
        for first, last, (held, writer) in list(bytes_.pieces(access.start, access.end)):
            found = content_of(held)
            if found == UNDEFINED:
                continue
            if found.owner != content.owner:
                there = Found(found, writer, first, last)
                kind, what, fix = self._names.wrong_content(event, step, access, there)
                self._add(kind, event, access, what, fix, there)
            elif found != content:
                bytes_.put(first, last, (content, event))

    def _add(
        self,
        kind: FindingKind,
        event: Event,
        access: Access,
        what: str,
        fix: str,
        there: Found | None = None,
    ) -> None:
        key = (kind, event.source, access.memory, access.content.owner)
        if key not in self.findings:
            start, end = (access.start, access.end) if there is None else (there.start, there.end)
            source = max(event.source, -1)
            self.findings[key] = Finding(kind, what, source, fix, access.memory, start, end)


# --- memory that does not live --------------------------------------------------------------------


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
            if all(region[0] in alive and region[0] not in freed for region in step.regions):
                continue
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
