"""A plan as the trace of several runs in a row, as it would come from devices.

Contents are tagged by storage and version, as they should be when the nodes run one after another.
The records stand in the order of the commands, so a plan that lists them in another order, or
that lets values share bytes, shows as reads that find other content than they need.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from ggsched.ids import show
from ggsched.plan.bundle import Plan
from ggsched.plan.command import Command
from ggsched.plan.effects import Effects, Step
from ggsched.plan.memory import Region
from ggsched.plan.splits import Value
from ggsched.plan.stats import device_name
from ggsched.trace.schema import Access, Actor, Alloc, Entry, Record, Sync, Trace, Wait, Work
from ggsched.trace.schema import Barrier as BarrierEntry

HOST: Final = 0
"""The one host thread."""


_NO_STEP: Final = Step(-1, (), "")


class Unrolled(NamedTuple):
    """A plan as a trace.

    Attributes:
        origins: For each record the command that it comes from; -1 for what the host itself does.
    """

    trace: Trace
    origins: tuple[int, ...]


def unroll(plan: Plan, runs: int = 2) -> Unrolled:
    """Return the trace of consecutive runs of a plan.

    The host fills weights and states once, writes the inputs before each run and reads the
    outputs after it. The plan's ids must mean something (see ``ggsched.sanitize.references``).
    """
    writer = _Writer(plan)
    pairs: list[tuple[int, Entry]] = [(-1, entry) for entry in writer.memory()]
    for run in range(runs):
        pairs += writer.run(run)
    actors = [Actor(HOST, "host", "host")]
    for s in plan.streams.streams:
        facts = plan.devices[s.device]
        name = show("stream", s.id)
        actors.append(Actor(1 + s.id, name, "stream", facts.name, facts.copy_order))
    trace = Trace(plan.name, tuple(actors), tuple(entry for _, entry in pairs))
    return Unrolled(trace, tuple(origin for origin, _ in pairs))


class _Writer:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._versions = Versions()
        effects = [c.effects for c in plan.commands]
        self._stride = 1 + max((n for e in effects for n in (*e.records, *e.waits)), default=0)

    def memory(self) -> Iterator[Entry]:
        """Yield the arenas; weights and states have content."""
        for arena in self.plan.memory.arenas:
            where = device_name(self.plan, arena.device)
            name = arena.name or f"{show('arena', arena.id)} {where}"
            yield Alloc(HOST, arena.id, name, arena.nbytes)
        for value, region in zip(self.plan.splits.values, self.plan.memory.regions, strict=False):
            if value.bound and region.nbytes:
                tags = self._versions.write(value, region, region)
                yield Work(HOST, f"fill {value.bound!r}", HOST, (), tags)

    def run(self, run: int) -> Iterator[tuple[int, Entry]]:
        """Yield one run."""
        plan = self.plan
        writes = [a for s in plan.inputs for a in self._writes(s.value)]
        if writes:
            yield -1, Work(HOST, "write inputs", HOST, (), tuple(writes))
        meant = self._meant()
        for command in plan.commands:
            for entry in self._entries(command, run, meant):
                yield command.id, entry
        reads = [a for s in plan.outputs for a in self._reads(s.value)]
        if reads:
            yield -1, Work(HOST, "read outputs", HOST, tuple(reads))

    def _meant(self) -> dict[tuple[int, int], Work]:
        """Return what each step and transfer is meant to touch, in the order of the program.

        The key is (command, node), with -1 for the node of a transfer, and -2 where the host reads
        its ids.
        """
        splits, regions = self.plan.splits, self.plan.memory.regions
        firsts = [split.first for split in splits.splits] + [len(self.plan.nodes)]
        program: list[tuple[tuple[int, int, int], Command | None, Step]] = [
            ((firsts[t.before], 0, t.id), None, _NO_STEP)
            for t in splits.transfers
            if not t.has_source  # it makes a version, whatever the commands do
        ]
        for command in self.plan.commands:
            effects = command.effects
            for step in effects.steps:
                place = (step.node, 1, 0)
                if effects.transfer >= 0:
                    place = (firsts[splits.transfers[effects.transfer].before], 0, effects.transfer)
                program.append((place, command, step))
        program.sort(key=lambda item: item[0])
        meant: dict[tuple[int, int], Work] = {}
        for (_, _, transfer), c, step in program:
            if c is None:
                value = splits.transfers[transfer].dst
                self._versions.write(splits.values[value], regions[value], regions[value])
                continue
            effects = c.effects
            if effects.host_reads:
                meant[c.id, -2] = self._ids(effects)
            is_transfer = effects.transfer >= 0
            meant[c.id, step.node] = self._transfer(c) if is_transfer else self._step(c, step)
        return meant

    def _transfer(self, command: Command) -> Work:
        effects, plan = command.effects, self.plan
        values, regions = plan.splits.values, plan.memory.regions
        t = plan.splits.transfers[effects.transfer]
        label = f"{show('command', command.id)} {type(command).__name__.lower()}"
        reads: tuple[Access, ...] = ()
        for region in effects.reads:
            reads = self._versions.read(values[t.src], regions[t.src], region)
        writes = self._versions.copy(values[t.dst], regions[t.dst], effects.writes[-1])
        return Work(1 + effects.streams[0], label, HOST, reads, writes, is_copy=True)

    def _step(self, command: Command, step: Step) -> Work:
        values = self.plan.splits.values
        label = f"{show('command', command.id)} {show('node', step.node)}"
        bound = self.plan.splits.bindings[step.node]
        reads: list[Access] = []
        writes: list[Access] = []
        operands = list(zip(step.operands, step.modes, bound, strict=True))
        for region, mode, value in operands:
            if mode in "rp":
                home = self.plan.memory.regions[value]
                reads += self._versions.read(values[value], home, region, partly=mode == "p")
        for region, mode, value in operands:
            if mode in "wp":
                home = self.plan.memory.regions[value]
                writes += self._versions.write(values[value], home, region)
        return Work(1 + command.stream, label, HOST, tuple(reads), tuple(writes))

    def _entries(
        self, command: Command, run: int, meant: dict[tuple[int, int], Work]
    ) -> Iterator[Entry]:
        effects = command.effects
        actor, events = 1 + effects.streams[0], [run * self._stride + e for e in effects.waits]
        for event in effects.records:
            yield Record(actor, run * self._stride + event, HOST)
        if not effects.blocks_host:
            yield from (Wait(actor, event, HOST) for event in events)
        elif events:
            yield from (Sync(HOST, event=event) for event in events)
        else:
            yield Sync(HOST, stream=actor)
        if effects.is_barrier:
            yield BarrierEntry(actor, HOST)
        if effects.host_reads:
            yield meant[command.id, -2]
        for step in effects.steps:
            work = meant[command.id, step.node]
            if effects.reads_at_enqueue and self._snapshots(command):
                yield Work(HOST, work.label, HOST, work.reads)
                yield Work(actor, work.label, HOST, (), work.writes, is_copy=True)
            else:
                yield work

    def _ids(self, effects: Effects) -> Work:
        """Return the host's read; which rows are named is not known here, so all are copied."""
        rows = self.plan.splits.transfers[effects.transfer].rows
        assert rows is not None
        value, home = self.plan.splits.values[rows.ids], self.plan.memory.regions[rows.ids]
        reads = self._versions.read(value, home, effects.host_reads[0])
        return Work(HOST, "read ids: 1 copies", HOST, reads)

    def _snapshots(self, command: Command) -> bool:
        device = self.plan.streams.streams[command.stream].device
        return self.plan.devices[device].snapshots_uploads

    def _writes(self, value: int) -> tuple[Access, ...]:
        region = self.plan.memory.regions[value]
        return self._versions.write(self.plan.splits.values[value], region, region)

    def _reads(self, value: int) -> tuple[Access, ...]:
        region = self.plan.memory.regions[value]
        return self._versions.read(self.plan.splits.values[value], region, region)


# --- versions of values ---------------------------------------------------------------------------


_NEVER = 0


class Versions:
    """Which write of the program last reached each byte of each storage."""

    def __init__(self) -> None:
        self._count = 0
        self._pieces: dict[int, list[tuple[int, int, int]]] = {}

    def write(self, value: Value, home: Region, region: Region) -> tuple[Access, ...]:
        """Note a write of a region of a value whose bytes begin at ``home``; return it tagged."""
        if not region.nbytes:
            return ()
        self._count += 1
        start = value.start + region.offset - home.offset
        end = start + region.nbytes
        kept = []
        for first, last, version in self._pieces.get(value.storage, ()):
            kept += [(first, min(last, start), version)] if first < start else []
            kept += [(max(first, end), last, version)] if last > end else []
        self._pieces[value.storage] = sorted([*kept, (start, end, self._count)])
        tag = _tag(value.storage, self._count)
        return (Access(region.arena, region.offset, region.end, tag),)

    def read(
        self, value: Value, home: Region, region: Region, *, partly: bool = False
    ) -> tuple[Access, ...]:
        """Return a read of a region of a value, with the tags that it needs.

        Bytes that no node has written have no tag; with ``partly`` they are left out.
        """
        return tuple(
            Access(region.arena, first, last, _tag(value.storage, version))
            for first, last, version in self._versions(value, home, region)
            if version != _NEVER or not partly
        )

    def copy(self, value: Value, home: Region, region: Region) -> tuple[Access, ...]:
        """Return a write of a region of a value that brings it up to date."""
        return self.read(value, home, region)

    def _versions(self, value: Value, home: Region, region: Region) -> list[tuple[int, int, int]]:
        """Return the region's bytes as (first, one past the last, version), in the arena."""
        shift = home.offset - value.start
        start, end = region.offset - shift, region.end - shift
        found: list[tuple[int, int, int]] = []
        at = start
        for first, last, version in self._pieces.get(value.storage, ()):
            if last <= start or end <= first:
                continue
            if first > at:
                found.append((at, first, _NEVER))
            found.append((max(first, start), min(last, end), version))
            at = min(last, end)
        if at < end:
            found.append((at, end, _NEVER))
        return [(first + shift, last + shift, version) for first, last, version in found]


def _tag(storage: int, version: int) -> str:
    return f"t{storage}.{version}" if version else ""
