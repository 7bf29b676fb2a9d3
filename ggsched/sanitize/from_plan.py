"""A plan as a stream of events, from the effects of its commands.

The plan's ids must exist (see ``references``). Contents follow the values: each byte of an arena
belongs to a value, and where several values hold bytes of one storage, has a version, the number of
the last write of a node to these bytes of the storage.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal

from ggsched.ids import show
from ggsched.ir.intervals import IntervalMap
from ggsched.plan.bundle import HostSlot, Plan
from ggsched.plan.command import Command
from ggsched.plan.effects import Effects
from ggsched.plan.effects import Step as PlanStep
from ggsched.plan.memory import Region
from ggsched.sanitize.events import (
    HOST_READS,
    HOST_WRITES,
    UNDEFINED,
    UNKNOWN,
    Access,
    Actor,
    Content,
    Event,
    EventStream,
    Found,
    Held,
    Memory,
    Span,
    Step,
    content_of,
    step_of,
)
from ggsched.sanitize.report import Touch
from ggsched.sanitize.spans import merge

_HOST: Final = 0
"""The one host thread; the stream q is actor ``1 + q``."""

_NO_BYTES: Final = Region(0, 0, 0)


def from_plan(plan: Plan, effects: Sequence[Effects], runs: int) -> EventStream:
    """Return the events of consecutive runs of a plan.

    The host fills weights and states once, writes the inputs before each run and reads the outputs
    after it.

    Args:
        effects: Those of its commands.
        runs: How many runs.
    """
    writer = _Writer(plan, effects)
    actors = [Actor("the host", "", is_host=True)]
    for q in plan.streams.streams:
        facts = plan.devices[q.device]
        has_barrier = facts.copy_order == "barrier"
        actors.append(
            Actor(
                show("stream", q.id),
                facts.name,
                False,
                facts.copy_order,
                facts.has_events,
                has_barrier,
            )
        )
    return EventStream(
        name=plan.name,
        size=len(plan.commands),
        actors=actors,
        memories=_memories(plan),
        events=list(writer.events()),
        runs=runs,
        is_renewable=False,
        names=PlanNames(plan),
    )


def _memories(plan: Plan) -> dict[int, Memory]:
    owners: dict[int, int] = {}
    for value, region in zip(plan.splits.values, plan.memory.regions, strict=True):
        if value.bound:
            owners[region.arena] = value.id
    regions = plan.memory.regions
    filled = {regions[t.dst].arena for t in plan.splits.transfers if t.pattern is not None}
    memories = {}
    for arena in plan.memory.arenas:
        held: Held = UNKNOWN if arena.kind == "cache" else owners.get(arena.id, UNDEFINED)
        if arena.id in filled:
            held = UNDEFINED
        owner = content_of(owners.get(arena.id, UNDEFINED)) if arena.kind == "state" else None
        memories[arena.id] = Memory(
            show("arena", arena.id),
            arena.nbytes,
            arena.id,
            content=held,
            is_constant=arena.kind == "weight",
            owner=owner,
            is_scratch=arena.kind not in ("weight", "state"),
        )
    return memories


def splits_of_nodes(plan: Plan) -> list[int]:
    """Return the split of each node, -1 for none."""
    split_of = [-1] * len(plan.nodes)
    for split in plan.splits.splits:
        split_of[split.first : split.end] = [split.id] * (split.end - split.first)
    return split_of


def _first_for_next_run(effects: Sequence[Effects]) -> int:
    """Return the first of the waits at the end that are enqueued when the next run begins."""
    end = len(effects)
    while end and (hazard := effects[end - 1].hazard) and hazard.next_run:
        end -= 1
    return end


class _Writer:
    def __init__(self, plan: Plan, effects: Sequence[Effects]) -> None:
        self._plan = plan
        self._effects = effects
        self._contents = _Contents(plan, effects)
        self._group_ends = {f.nodes[-1]: f.nodes[:-1] for f in plan.fusions}
        self._grouped = {n for f in plan.fusions for n in f.nodes}
        self._results: dict[int, Region] = {}
        self._split_of = splits_of_nodes(plan)

    def events(self) -> Iterator[Event]:
        """Yield the events of one run."""
        plan = self._plan
        yield from self._host(HOST_WRITES, plan.inputs, "w")
        until = _first_for_next_run(self._effects)
        for source, effects in enumerate(self._effects):
            if source == until:
                yield from self._host(HOST_READS, plan.outputs, "r")
            if effects.waits or effects.blocks_host or effects.is_barrier:
                yield from self._waits(source, effects)
            if effects.steps:
                is_node = effects.transfer < 0
                yield from (self._nodes if is_node else self._transfer)(source, effects)
            for event in effects.records:
                yield Event(source, "record", 1 + effects.streams[0], _HOST, event=event)
        if until == len(self._effects):
            yield from self._host(HOST_READS, plan.outputs, "r")

    def _host(self, source: int, slots: Sequence[HostSlot], mode: str) -> Iterator[Event]:
        regions = [self._plan.memory.regions[slot.value] for slot in slots]
        accesses: list[Access] = []
        for slot, region in zip(slots, regions, strict=True):
            accesses += self._contents.of(slot.value, region, mode)
        if accesses:
            spans = _union(regions)
            reads, writes = (spans, ()) if mode == "r" else ((), spans)
            step = step_of(-1, None, accesses)
            yield Event(source, "work", _HOST, reads=reads, writes=writes, steps=(step,))

    def _waits(self, source: int, effects: Effects) -> Iterator[Event]:
        for q in effects.streams:
            actor = 1 + q
            if effects.blocks_host and not effects.waits:
                yield Event(source, "sync", _HOST, target=actor)
            for event in effects.waits:
                if effects.blocks_host:
                    yield Event(source, "sync", _HOST, event=event)
                else:
                    yield Event(source, "wait", actor, _HOST, event=event)
            if effects.is_barrier:
                yield Event(source, "barrier", actor, _HOST)

    def _transfer(self, source: int, effects: Effects) -> Iterator[Event]:
        """Yield the work of a transfer, and before it what the host reads while enqueueing it."""
        plan, contents = self._plan, self._contents
        t = plan.splits.transfers[effects.transfer]
        place = (t.before, 0, t.id)
        actor = 1 + effects.streams[0]
        device = plan.streams.streams[effects.streams[0]].device
        is_early = effects.reads_at_enqueue and plan.devices[device].snapshots_uploads  # CPY-4
        ((_, operands, modes),) = effects.steps
        is_plain = t.has_source and modes == "rw" and not is_early and not effects.host_reads
        if is_plain and not (t.src in contents.followed or t.dst in contents.followed):
            moved = _union(operands[:1]), _union(operands[1:])
            steps = (Step(-1, place, operands, modes, (t.src, t.dst)),)
            yield Event(source, "work", actor, _HOST, True, False, *moved, steps)
            return
        src, *caches, dst = operands if modes[0] == "r" else (_NO_BYTES, *operands)
        if t.has_source:
            reads, copied = contents.of(t.src, src, "r"), contents.copied(t.dst, dst)
        else:
            reads, copied = [], contents.of(t.dst, dst, "w")
        writes = [_plain(cache, "w") for cache in caches if cache.nbytes] + copied
        early: list[Access] = []
        if effects.host_reads and t.rows is not None:
            for region in effects.host_reads:
                early += contents.of(t.rows.ids, region, "r")
        if is_early:
            early += reads
            reads = []
        if early:
            spans = merge([(a.memory, a.start, a.end) for a in early])
            step = step_of(-1, place, early)
            yield Event(source, "work", _HOST, reads=spans, steps=(step,))
        moved = _union((src,)) if reads else [], _union((*caches, dst))
        steps = (step_of(-1, place, [*reads, *writes]),)
        yield Event(source, "work", actor, _HOST, True, False, *moved, steps)

    def _nodes(self, source: int, effects: Effects) -> Iterator[Event]:
        """Yield the work of nodes. A fusion group leaves all but its last result undefined."""
        bindings, split_of = self._plan.splits.bindings, self._split_of
        grouped, followed = self._grouped, self._contents.followed
        reads: set[Region] = set()
        writes: set[Region] = set()
        steps = []
        known: str | None = None
        for node, operands, modes in effects.steps:
            if node >= 0:
                bound, place = bindings[node], (split_of[node], 1, node)
                contents: Sequence[Held] = bound
            else:
                bound, place = (-1,) * len(operands), None
                contents = (UNKNOWN,) * len(operands)
            if modes != known:
                known, (reads_first, is_plain, read, written) = modes, _sides[modes]
            has_versions = followed and not followed.isdisjoint(bound)
            if has_versions or not reads_first or node in grouped:
                accesses = list(self._node(node, operands, modes, bound))
                steps.append(step_of(node, place, accesses))
            else:
                steps.append(Step(node, place, operands, modes, contents))
            if is_plain:
                reads.update(operands[:-1])
                writes.add(operands[-1])
            else:
                reads.update([operands[k] for k in read])
                writes.update([operands[k] for k in written])
        touched, is_copy = (_union(reads), _union(writes)), effects.engine == "copy"
        yield Event(source, "work", 1 + effects.streams[0], _HOST, is_copy, False, *touched, steps)

    def _node(
        self, node: int, operands: Sequence[Region], modes: str, bound: Sequence[int]
    ) -> Iterator[Access]:
        """Yield the accesses of a node: reads, then what its group forgets, then writes."""
        touched = list(zip(bound, operands, modes, strict=True))
        for value, region, mode in touched:
            if mode == "r":
                yield from self._contents.of(value, region, mode)
        self._results[node] = operands[-1]
        for member in self._group_ends.get(node, ()):
            if member in self._results:
                yield _plain(self._results[member], "x")._replace(content=UNDEFINED)
        for value, region, mode in touched:
            if mode in "wp":
                yield from self._contents.of(value, region, mode)


_Sides = tuple[bool, bool, tuple[int, ...], tuple[int, ...]]
"""What the modes of operands mean.

Whether all reads stand before all writes; whether all operands but the last are read and the last
is written; which operands are read, and which are written.
"""


class _SidesOf(dict[str, _Sides]):
    """The same by modes, worked out when they are first asked for."""

    def __missing__(self, modes: str) -> _Sides:
        written = tuple(k for k, mode in enumerate(modes) if mode not in "r-")
        read = tuple(k for k, mode in enumerate(modes) if mode == "r")
        is_plain = written == (len(modes) - 1,) and len(read) == len(modes) - 1
        sides = self[modes] = "r" not in modes.lstrip("r-"), is_plain, read, written
        return sides


_sides: Final = _SidesOf()


def _union(regions: Iterable[Region]) -> list[Span]:
    """Return the bytes of regions as sorted spans that do not touch each other."""
    merged: list[Span] = []
    current, begin, until = -1, 0, 0
    for arena, start, nbytes in sorted(regions):
        if arena == current and start <= until:
            if start + nbytes > until:
                until = start + nbytes
                merged[-1] = (arena, begin, until)
        elif nbytes > 0:
            current, begin, until = arena, start, start + nbytes
            merged.append((arena, begin, until))
    return merged


def _plain(region: Region, mode: str) -> Access:
    return Access(region.arena, region.offset, region.end, mode)


class _Contents:
    """Which content each access to a value means, while the commands are followed in order."""

    def __init__(self, plan: Plan, effects: Sequence[Effects]) -> None:
        values, regions = plan.splits.values, plan.memory.regions
        self._effects = effects
        self._storage = [v.storage for v in values]
        followed = self._followed(plan)
        self.followed = {v.id for v in values if v.storage in followed} if followed else set()
        self._origins = {v: regions[v].offset - values[v].start for v in self.followed}
        self._versions = {storage: IntervalMap(0) for storage in followed}
        self._now = 0

    def _followed(self, plan: Plan) -> set[int]:
        """Return the storages of which a value can be older than another one.

        They have several values, and two writes, or one write and content before it.
        """
        count = Counter(self._storage)
        several = {storage for storage, n in count.items() if n > 1}
        if not several:
            return several
        values, bindings = plan.splits.values, plan.splits.bindings
        writes = Counter(v.storage for v in values if v.bound or v.kind == "input")
        writes.update(values[t.dst].storage for t in plan.splits.transfers if not t.has_source)
        written = [
            bindings[node][k]
            for effects in self._effects
            if effects.transfer < 0
            for node, _, modes in effects.steps
            if node >= 0
            for k in _sides[modes][3]
        ]
        writes.update(map(self._storage.__getitem__, written))
        return {storage for storage in several if writes[storage] > 1}

    def of(self, value: int, region: Region, mode: str) -> list[Access]:
        """Return the accesses of one mode to bytes of a value; writes are new versions."""
        arena, offset, nbytes = region
        if not nbytes:
            return []
        if value not in self.followed:
            content = Content(value) if value >= 0 else UNKNOWN
            return [Access(arena, offset, offset + nbytes, mode, content)]
        versions, origin = self._versions[self._storage[value]], self._origins[value]
        start, end = offset - origin, offset + nbytes - origin
        if mode == "r":
            return self._pieces(versions, arena, origin, start, end, "r", value)
        self._now += 1
        versions.put(start, end, self._now)
        return [Access(arena, offset, offset + nbytes, mode, Content(value, self._now))]

    def copied(self, dst: int, to: Region) -> list[Access]:
        """Return the writes of a transfer, which bring its destination up to date."""
        arena, offset, nbytes = to
        if dst not in self.followed or not nbytes:
            return self.of(dst, to, "w")
        versions, origin = self._versions[self._storage[dst]], self._origins[dst]
        start, end = offset - origin, offset + nbytes - origin
        return self._pieces(versions, arena, origin, start, end, "w", dst)

    def _pieces(
        self,
        versions: IntervalMap[int],
        arena: int,
        origin: int,
        start: int,
        end: int,
        mode: str,
        value: int,
    ) -> list[Access]:
        return [
            Access(arena, first + origin, last + origin, mode, Content(value, version))
            for first, last, version in versions.pieces(start, end)
        ]


class PlanNames:
    """What things are called in findings about a plan."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def ref(self, event: Event) -> str:
        """Return e.g. ``c3``."""
        return show("command", event.source) if event.source >= 0 else "the host"

    def who(self, event: Event) -> str:
        """Return e.g. ``c3`` or ``the host's write``."""
        if event.source >= 0:
            return show("command", event.source)
        return "the host's write" if event.source == HOST_WRITES else "the host's read"

    def step(self, event: Event, step: Step) -> str:
        """Return e.g. ``c3 n7``."""
        name = self.ref(event)
        return f"{name} {show('node', step.node)}" if step.node >= 0 else name

    def bytes_of(self, memory: int, start: int, end: int) -> str:
        """Return e.g. ``a0[0:16]``."""
        return f"{show('arena', memory)}[{start}:{end}]"

    def wanted(self, access: Access) -> str:
        """Return e.g. ``v3 at a0[0:16]``."""
        where = self.bytes_of(access.memory, access.start, access.end)
        owner = access.content.owner
        return f"{show('value', owner)} at {where}" if isinstance(owner, int) else where

    def touch(self, event: Event, run: int, access: Access) -> Touch:
        """Return one side of a race."""
        plan = self._plan
        mode: Literal["read", "write"] = "read" if access.mode == "r" else "write"
        if event.source < 0:
            slots = plan.inputs if event.source == HOST_WRITES else plan.outputs
            names = [repr(s.name) for s in slots if _touches(plan.memory.regions[s.value], access)]
            return Touch(-1, run, "host", ", ".join(names), mode)
        command = plan.commands[event.source]
        effects = command.effects
        stream = plan.streams.streams[effects.streams[0]]
        actor = f"{show('stream', stream.id)} {plan.devices[stream.device].name}"
        return Touch(event.source, run, actor, self._action(command, effects, access), mode)

    def wrong_content(
        self, event: Event, step: Step, access: Access, there: Found
    ) -> tuple[Literal["content", "reuse", "stale"], str, str]:
        """Say which other value is there, or that the value is older than its storage."""
        plan, who = self._plan, self.step(event, step)
        value, owner = access.content.owner, there.content.owner
        name = show("value", value) if isinstance(value, int) else "bytes"
        if owner == value and isinstance(value, int):
            storage = show("tensor", plan.splits.values[value].storage)
            what = f"{who} reads {name}, older than {storage}"
            return "stale", what, "copy it again after the last write"
        verb = "reads" if access.mode == "r" else "writes into"
        where = self.bytes_of(access.memory, there.start, there.end)
        state = "whose content is unknown"
        if isinstance(owner, int):
            other = show("value", owner)
            state = f"which holds {other} by now"
            if plan.memory.overwrites.get(owner) == value:
                state = f"which {other} took over before"
        what = f"{who} {verb} {name} at {where}, {state}"
        return "reuse", what, f"keep the bytes of {name} until then"

    def sync(self, event: Event) -> str:
        """Return e.g. ``c3, the wait for e1``."""
        command = self._plan.commands[event.source]
        name, effects = self.ref(event), command.effects
        if effects.transfer >= 0:
            kind = type(command).__name__.lower()
            dst = self._plan.splits.transfers[effects.transfer].dst
            return f"{name}, the {kind} to {show('value', dst)},"
        if event.kind == "record":
            return f"{name}, the record of e{event.event}"
        if event.kind == "barrier":
            return f"{name}, the barrier"
        target = show("stream", effects.streams[0]) if event.event is None else f"e{event.event}"
        return f"{name}, the wait for {target}"

    def _action(self, command: Command, effects: Effects, access: Access) -> str:
        plan = self._plan
        if any(_touches(r, access) for r in effects.host_reads) and access.mode == "r":
            return "the host reads the ids of its rows"
        if effects.transfer >= 0:
            src = plan.splits.transfers[effects.transfer].src
            return f"{type(command).__name__.lower()} of {show('value', src)}"
        for step in effects.steps:
            if step.node >= 0 and _does(step, access):
                info, split = plan.nodes[step.node], self._split_of(step.node)
                label = f" '{info.label}'" if info.label else ""
                return f"launch {show('split', split)}, {show('node', step.node)} {info.op}{label}"
        return command.text

    def _split_of(self, node: int) -> int:
        return next((s.id for s in self._plan.splits.splits if s.first <= node < s.end), -1)


def _touches(region: Region, access: Access) -> bool:
    near = region.offset < access.end and access.start < region.end
    return region.arena == access.memory and near


def _does(step: PlanStep, access: Access) -> bool:
    modes = "r" if access.mode == "r" else "wp"
    pairs = zip(step.operands, step.modes, strict=True)
    return any(m in modes and _touches(r, access) for r, m in pairs)
