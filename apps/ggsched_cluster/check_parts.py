"""Parts of a plan as a stream of events with a host for each machine; see ``ggsched.plan.parts``.

Each machine has a host thread and host memory of its own. A message is work of the sending host
that reads the bytes, an event that it records, a wait of the receiving host, and its work that
writes them; what it carries is what the sender's bytes hold at that point. The rules about streams
then find what a cut can do wrong: bytes that are sent before they are made or after they were
overwritten, received over bytes that are still read, messages that are missing, late, of other
bytes or in orders that let machines wait for each other.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, Literal

import msgspec

from ggsched.collector import collector_paused
from ggsched.ids import show
from ggsched.ir.intervals import IntervalMap
from ggsched.plan.bundle import Plan
from ggsched.plan.command import HostSync
from ggsched.plan.memory import Region
from ggsched.plan.parts import Part, PartCommand, Receive, Send
from ggsched.plan.splits import HOST
from ggsched.sanitize.content import find_wrong_content
from ggsched.sanitize.deadlock import find_event_misuse, find_stuck
from ggsched.sanitize.disorder import find_disorder
from ggsched.sanitize.events import (
    HOST_READS,
    HOST_WRITES,
    UNDEFINED,
    Access,
    Actor,
    Content,
    Event,
    EventStream,
    Found,
    Memory,
    Span,
    Step,
    step_of,
)
from ggsched.sanitize.from_plan import PlanNames, from_plan
from ggsched.sanitize.races import find_races
from ggsched.sanitize.report import Finding, Report, Touch, instead

_RULES: Final = (find_event_misuse, find_stuck, find_races, find_disorder, find_wrong_content)


@collector_paused()
def check_parts(
    plan: Plan, parts: Sequence[Part], machine_of: Sequence[int], *, runs: int = 3
) -> Report:
    """Return what is wrong with the parts of a plan when they run several times in a row.

    ``check_plan`` checks the plan itself.

    Args:
        machine_of: The machine of each device.
        runs: How many consecutive runs to look at. Nothing is assumed to order a run of one machine
            after the run before of another.
    """
    findings = _find_unfaithful(plan, parts) or [*_find_elsewhere(plan, parts, machine_of)]
    if not findings:
        writer = _Writer(plan, parts, runs)
        stream = writer.stream()
        findings += writer.stuck()
        for rule in _RULES if not findings else ():
            findings += rule(stream)
    count = sum(len(part.commands) for part in parts)
    return Report(plan.name, count, runs, tuple(findings), ())


def _find_unfaithful(plan: Plan, parts: Sequence[Part]) -> list[Finding]:
    """Return what is missing, twice or out of order, and messages without their other half.

    A wait of the host may stand later than in the plan: what it orders is for the rules to say.
    """
    findings: list[Finding] = []

    def add(what: str, number: int) -> None:
        findings.append(Finding("launch", what, number, "cut the plan anew"))

    seen: dict[int, int] = {}
    ends: dict[int, list[tuple[int, PartCommand]]] = {}
    for part in parts:
        last = -1
        for c in part.commands:
            if isinstance(c, Send | Receive):
                ends.setdefault(c.tag, []).append((part.machine, c))
                continue
            if c.id in seen or c.id >= len(plan.commands) or plan.commands[c.id] != c:
                add(f"{show('command', c.id)} is another one, or stands in two parts", c.id)
            elif c.id <= last and not isinstance(c, HostSync):
                add(f"{show('command', c.id)} stands after c{last}", c.id)
            seen[c.id] = part.machine
            last = max(c.id, last)
    for c in plan.commands:
        if c.id not in seen:
            add(f"{show('command', c.id)} is in no part", c.id)
    for tag, both in ends.items():
        if not _is_message(both):
            add(f"message #{tag} does not have a sender and a receiver of the same bytes", -1)
    wanted = sorted(s.tensor for s in plan.outputs)
    if sorted(t for part in parts for t in part.outputs) != wanted:
        add("the outputs are not handed over once each", -1)
    return findings


def _find_elsewhere(
    plan: Plan, parts: Sequence[Part], machine_of: Sequence[int]
) -> Iterator[Finding]:
    """Yield commands in the part of a machine that lacks a device, memory or event of theirs."""
    arenas = [arena.device for arena in plan.memory.arenas]
    streams = [stream.device for stream in plan.streams.streams]
    recorded = {e: streams[c.stream] for c in plan.commands for e in c.effects.records}
    for part in parts:
        for c in part.commands:
            if isinstance(c, Send | Receive):
                continue
            effects = c.effects
            devices = {streams[q] for q in effects.streams}
            devices |= {arenas[r.arena] for r in (*effects.reads, *effects.writes)}
            devices |= {recorded[e] for e in effects.waits if e in recorded}
            for device in sorted(devices - {HOST}):
                if machine_of[device] != part.machine:
                    says = f"{show('command', c.id)} for {plan.devices[device].name} is on machine"
                    due, fix = machine_of[device], "cut the plan anew"
                    yield instead("launch", says, part.machine, due, c.id, fix)


def _is_message(ends: Sequence[tuple[int, PartCommand]]) -> bool:
    sends = [(m, c) for m, c in ends if isinstance(c, Send)]
    receives = [(m, c) for m, c in ends if isinstance(c, Receive)]
    if len(sends) != 1 or len(receives) != 1:
        return False
    (sender, send), (receiver, receive) = sends[0], receives[0]
    return (send.machine, receive.machine, send.src) == (receiver, sender, receive.dst)


class _Writer:
    def __init__(self, plan: Plan, parts: Sequence[Part], runs: int) -> None:
        effects = [command.effects for command in plan.commands]
        self._plan, self._parts = plan, parts
        self._whole = from_plan(plan, effects, runs)
        self._by_source: dict[int, list[Event]] = {}
        for event in self._whole.events:
            self._by_source.setdefault(event.source, []).append(event)
        self._on_host = {a.id for a in plan.memory.arenas if a.device == HOST}
        self._arenas = len(plan.memory.arenas)
        self._first_event = 1 + max((e for f in effects for e in f.records), default=-1)
        count = len(plan.streams.streams)
        self._host_of = {p.machine: 1 + count + k for k, p in enumerate(parts)}
        self._contents: dict[int, IntervalMap[Content]] = {}
        self._messages: dict[int, list[tuple[int, int, Content]]] = {}
        self._left = {p.machine: deque(p.commands) for p in parts}

    def stream(self) -> EventStream:
        """Return the events of all machines, in an order in which they can happen."""
        events: list[Event] = []
        for part in self._parts:
            events += self._slots(part.machine, HOST_WRITES, self._inputs(part))
        moved = True
        while moved:
            moved = False
            for machine, left in self._left.items():
                while left and self._can(left[0]):
                    events += self._events(machine, left.popleft())
                    moved = True
        for part in self._parts:
            events += self._slots(part.machine, HOST_READS, self._outputs(part))
        hosts = [Actor(f"the host of machine {m}", "", is_host=True) for m in self._host_of]
        return self._whole._replace(
            actors=[*self._whole.actors, *hosts],
            memories=self._memories(),
            events=events,
            names=_PartNames(self._plan, self._arenas),
        )

    def stuck(self) -> list[Finding]:
        """Return for each machine the message that it waits for in vain."""
        return [
            Finding(
                "progress",
                f"machine {machine} waits forever: {left[0].text}",
                left[0].id,
                "send before it is needed, in one order for all machines",
            )
            for machine, left in self._left.items()
            if left
        ]

    def _can(self, command: PartCommand) -> bool:
        return not isinstance(command, Receive) or command.tag in self._messages

    def _events(self, machine: int, command: PartCommand) -> Iterator[Event]:
        if isinstance(command, Send):
            yield from self._send(machine, command)
        elif isinstance(command, Receive):
            yield from self._receive(machine, command)
        else:
            for event in self._by_source.get(command.id, ()):
                yield self._moved(machine, event)

    def _send(self, machine: int, c: Send) -> Iterator[Event]:
        (arena, start, end), host = self._place(machine, c.src), self._host_of[machine]
        self._messages[c.tag] = list(self._content(arena).pieces(start, end))
        read = step_of(-1, None, [Access(arena, start, end, "r")])
        source = _source(self._plan, c)
        yield Event(source, "work", host, reads=((arena, start, end),), steps=(read,))
        yield Event(source, "record", host, host, event=self._first_event + c.tag)

    def _receive(self, machine: int, c: Receive) -> Iterator[Event]:
        (arena, start, end), host = self._place(machine, c.dst), self._host_of[machine]
        source = _source(self._plan, c)
        yield Event(source, "sync", host, event=self._first_event + c.tag)
        written = [
            Access(arena, first, last, "w", content)
            for first, last, content in self._messages[c.tag]
        ]
        for a in written:
            self._content(arena).put(a.start, a.end, a.content)
        step = step_of(-1, None, written)
        yield Event(source, "work", host, writes=((arena, start, end),), steps=(step,))

    def _slots(self, machine: int, source: int, slots: Sequence[Region]) -> Iterator[Event]:
        """Yield what the host of a machine does around a run: to these bytes, of what it would."""
        mine = {arena: IntervalMap(False) for arena in self._on_host}
        for r in slots:
            if r.nbytes:
                mine[r.arena].put(r.offset, r.end, True)
        for event in self._by_source.get(source, ()):
            accesses = [
                a._replace(memory=self._memory(machine, a.memory))
                for step in event.steps
                for a in step.accesses()
                if all(held for _, _, held in mine[a.memory].pieces(a.start, a.end))
            ]
            for a in accesses if source == HOST_WRITES else ():
                self._content(a.memory).put(a.start, a.end, a.content)
            spans = sorted({(a.memory, a.start, a.end) for a in accesses})
            reads, writes = (spans, ()) if source == HOST_READS else ((), spans)
            host = self._host_of[machine]
            if accesses:
                step = step_of(-1, None, accesses)
                yield Event(source, "work", host, reads=reads, writes=writes, steps=(step,))

    def _moved(self, machine: int, event: Event) -> Event:
        """Return an event of the plan as one of a machine."""
        host = self._host_of[machine]
        steps = [self._moved_step(machine, step) for step in event.steps]
        for step in steps:
            for a in step.accesses():
                if a.mode != "r" and a.memory >= self._arenas:
                    self._content(a.memory).put(a.start, a.end, a.content)
        changes = {
            "actor": host if event.actor == 0 else event.actor,
            "by": host if event.by == 0 else event.by,
            "reads": self._spans(machine, event.reads),
            "writes": self._spans(machine, event.writes),
            "steps": steps,
        }
        return msgspec.structs.replace(event, **changes)

    def _moved_step(self, machine: int, step: Step) -> Step:
        regions = [(self._memory(machine, a), first, n) for a, first, n in step.regions]
        return msgspec.structs.replace(step, regions=regions)

    def _spans(self, machine: int, spans: Sequence[Span]) -> list[Span]:
        return [(self._memory(machine, a), start, end) for a, start, end in spans]

    def _memory(self, machine: int, arena: int) -> int:
        """Return the id of an arena of a machine: host memory is there once for each."""
        return arena + self._arenas * (1 + machine) if arena in self._on_host else arena

    def _place(self, machine: int, region: Region) -> Span:
        return self._memory(machine, region.arena), region.offset, region.end

    def _content(self, memory: int) -> IntervalMap[Content]:
        return self._contents.setdefault(memory, IntervalMap(UNDEFINED))

    def _memories(self) -> dict[int, Memory]:
        found: dict[int, Memory] = {}
        for arena, memory in self._whole.memories.items():
            for machine in self._host_of if arena in self._on_host else ():
                number = self._memory(machine, arena)
                name = f"{memory.name} of machine {machine}"
                found[number] = memory._replace(name=name, space=number)
            if arena not in self._on_host:
                found[arena] = memory
        return found

    def _inputs(self, part: Part) -> list[Region]:
        regions = self._plan.memory.regions
        return [regions[s.value] for s in self._plan.inputs if s.name in part.inputs]

    def _outputs(self, part: Part) -> list[Region]:
        regions = self._plan.memory.regions
        return [regions[s.value] for s in self._plan.outputs if s.tensor in part.outputs]


def _source(plan: Plan, command: Send | Receive) -> int:
    """Return a number for a message that no command has."""
    return len(plan.commands) + 2 * command.tag + isinstance(command, Receive)


class _PartNames:
    """What things are called in findings about parts: as in the plan, with the machine."""

    def __init__(self, plan: Plan, arenas: int) -> None:
        self._names = PlanNames(plan)
        self._count, self._arenas = len(plan.commands), arenas

    def ref(self, event: Event) -> str:
        """Return e.g. ``c3`` or ``send #2``."""
        message = event.source - self._count
        if message < 0:
            return self._names.ref(event)
        return f"{('send', 'receive')[message % 2]} #{message // 2}"

    def who(self, event: Event) -> str:
        """Return e.g. ``c3``, ``send #2`` or ``the host's write``."""
        return self.ref(event) if event.source >= self._count else self._names.who(event)

    def step(self, event: Event, step: Step) -> str:
        """Return e.g. ``c3 n7`` or ``send #2``."""
        return self.ref(event) if event.source >= self._count else self._names.step(event, step)

    def bytes_of(self, memory: int, start: int, end: int) -> str:
        """Return e.g. ``a0[0:16]``; of host memory, with its machine."""
        machine, arena = divmod(memory, self._arenas)
        text = self._names.bytes_of(arena, start, end)
        return f"{text} of machine {machine - 1}" if machine else text

    def wanted(self, access: Access) -> str:
        """Return what an access means, e.g. ``v3 at a0[0:16]``."""
        return self._names.wanted(self._plain(access))

    def touch(self, event: Event, run: int, access: Access) -> Touch:
        """Return one side of a race."""
        if event.source < self._count:
            return self._names.touch(event, run, self._plain(access))
        mode: Literal["read", "write"] = "read" if access.mode == "r" else "write"
        return Touch(event.source, run, "host", self.ref(event), mode)

    def wrong_content(
        self, event: Event, step: Step, access: Access, there: Found
    ) -> tuple[Literal["content", "reuse", "stale"], str, str]:
        """Say which other value is there, or that the value is older than its storage."""
        if event.source < self._count:
            return self._names.wrong_content(event, step, self._plain(access), there)
        return "content", f"{self.ref(event)} finds other bytes", "send what was made"

    def sync(self, event: Event) -> str:
        """Return e.g. ``c3, the wait for e1``."""
        return self.ref(event) if event.source >= self._count else self._names.sync(event)

    def _plain(self, access: Access) -> Access:
        return access._replace(memory=access.memory % self._arenas)
