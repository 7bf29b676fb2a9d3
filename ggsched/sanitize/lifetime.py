"""Lifetimes: does each reader find the bytes that it means?

One run is followed in the order of the list, which is the order of the program. A map of byte
ranges for each arena says which value's bytes are there: none when a run starts, except for
weights, states, and the inputs that the host has written. Reading bytes of another value is the
use of memory that was given away too early. Reading a replica that is older than its storage is
a copy that is missing. Whether the order is *kept* when the streams run is the question of
``races``.
"""

from collections.abc import Sequence
from typing import Final

from ggsched.ids import show
from ggsched.plan.bundle import Plan
from ggsched.plan.command import CopyRows, Fill, Launch
from ggsched.plan.effects import Step
from ggsched.plan.memory import Region
from ggsched.plan.splits import HOST
from ggsched.sanitize.content_map import ContentMap
from ggsched.sanitize.kinds import TRANSFERS, Transferring
from ggsched.sanitize.report import Finding, FindingKind

NOBODY: Final = -1
"""The owner of bytes that nothing has written in this run."""


def find_bad_reads(plan: Plan) -> list[Finding]:
    """Return reads of bytes that are undefined, of another value, or too old."""
    walk = _Walk(plan)
    for command in plan.commands:
        if isinstance(command, Launch):
            walk.launch(command)
        elif isinstance(command, TRANSFERS):
            walk.transfer(command)
        elif isinstance(command, Fill):
            walk.fill(command)
    walk.outputs()
    return list(walk.findings.values())


class _Walk:
    """The walk over the commands of one run.

    Attributes:
        findings: What was found, once for each command and value.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.findings: dict[tuple[str, int, int], Finding] = {}
        owners = [NOBODY] * len(plan.memory.arenas)
        filled = {t.dst for t in plan.splits.transfers if t.pattern is not None}
        for value, region in zip(plan.splits.values, plan.memory.regions, strict=False):
            if value.bound and value.id not in filled:
                owners[region.arena] = value.id
        self._content = [ContentMap(owner) for owner in owners]
        self._is_weight = [arena.kind == "weight" for arena in plan.memory.arenas]
        for slot in plan.inputs:
            self._give(plan.memory.regions[slot.value], slot.value)
        self._versions = _Versions(plan)
        self._ends = {f.nodes[-1]: f.nodes[:-1] for f in plan.fusions if f.nodes}
        self._inside = {n for nodes in self._ends.values() for n in nodes}
        self._made: dict[int, Region] = {}

    def transfer(self, command: Transferring) -> None:
        """Follow a transfer: it reads one value and fills another."""
        t = self.plan.splits.transfers[command.transfer]
        if isinstance(command, CopyRows) and t.rows is not None:
            self._read(command.id, -1, command.ids, t.rows.ids)
        self._read(command.id, -1, command.src, t.src)
        self._write(command.id, -1, command.dst, t.dst)
        self._versions.copied(t.src, t.dst)

    def fill(self, command: Fill) -> None:
        """Follow a fill: it makes all bytes of a value anew."""
        value = self.plan.splits.transfers[command.transfer].dst
        self._write(command.id, -1, command.dst, value)
        self._versions.written(value, command.dst)

    def launch(self, command: Launch) -> None:
        """Follow a launch step by step."""
        bindings, regions = self.plan.splits.bindings, self.plan.memory.regions
        for step in command.steps:
            bound = bindings[step.node]
            for region, mode, value in zip(step.operands, step.modes, bound, strict=True):
                arena, offset, nbytes = region
                home = regions[value]
                if arena != home[0] or offset < home[1] or offset + nbytes > home[1] + home[2]:
                    self._outside(command, step, region, value)
                elif mode == "r":
                    self._read(command.id, step.node, region, value)
            if step.node in self._inside:
                self._made[step.node] = step.operands[-1]
            elif step.node in self._ends:
                self._forget(self._ends[step.node])
            for region, mode, value in zip(step.operands, step.modes, bound, strict=True):
                if mode == "w":
                    self._write(command.id, step.node, region, value)
                    self._versions.written(value, region)
                elif mode == "p":
                    self._write_part(command.id, step.node, region, value)
                    self._versions.written(value, region)
        self._on_its_device(command)

    def outputs(self) -> None:
        """Follow the host, which reads the outputs last."""
        for slot in self.plan.outputs:
            self._read(-1, -1, self.plan.memory.regions[slot.value], slot.value)

    def _read(self, command: int, node: int, region: Region, value: int) -> None:
        arena, offset, nbytes = region
        if not nbytes:
            return
        foreign = self._content[arena].foreign(offset, offset + nbytes, value)
        if foreign is not None:
            self._report(command, node, "reads", value, arena, foreign)
        elif self._versions.is_stale(value, region):
            who, storage = _who(command, node), self.plan.splits.values[value].storage
            what = f"{who} reads {show('value', value)}, older than {show('tensor', storage)}"
            self._add("stale", command, value, what, "copy it again after the last write", region)

    def _write(self, command: int, node: int, region: Region, value: int) -> None:
        if region.nbytes:
            self._check_bound(command, node, region, value)
            self._give(region, value)

    def _write_part(self, command: int, node: int, region: Region, value: int) -> None:
        """Follow a write that leaves some of the bytes as they were."""
        arena, offset, nbytes = region
        if not nbytes:
            return
        self._check_bound(command, node, region, value)
        foreign = self._content[arena].foreign(offset, offset + nbytes, value)
        if foreign is not None and foreign[0] != NOBODY:
            self._report(command, node, "writes into", value, arena, foreign)

    def _check_bound(self, command: int, node: int, region: Region, value: int) -> None:
        arena = self.plan.memory.arenas[region.arena]
        if arena.kind == "weight":
            what = f"{_who(command, node)} writes weight {arena.name!r}"
            self._add("weight", command, value, what, "weights are constant", region)
        elif arena.kind == "state" and not self.plan.splits.values[value].bound:
            what = f"{_who(command, node)} writes {show('value', value)} into state {arena.name!r}"
            self._add("reuse", command, value, what, "states are not reused", region)

    def _give(self, region: Region, value: int) -> None:
        if region.nbytes:
            self._content[region.arena].give(region.offset, region.end, value)

    def _report(
        self, command: int, node: int, verb: str, value: int, arena: int, at: tuple[int, int, int]
    ) -> None:
        owner, start, end = at
        place = f"{show('arena', arena)}[{start}:{end}]"
        kind: FindingKind = "undefined"
        state, fix = "which nothing has written in this run", "fill it before"
        if owner != NOBODY:
            kind, state = "reuse", f"which holds {show('value', owner)} by now"
            fix = f"keep the bytes of {show('value', value)} until then"
            if self.plan.memory.overwrites.get(owner) == value:
                state = f"which {show('value', owner)} took over before"
        what = f"{_who(command, node)} {verb} {show('value', value)} at {place}, {state}"
        self._add(kind, command, value, what, fix, Region(arena, start, end - start))

    def _outside(self, command: Launch, step: Step, region: Region, value: int) -> None:
        place = f"{show('arena', region.arena)}[{region.offset}:{region.end}]"
        what = f"{_who(command.id, step.node)} uses {place} as {show('value', value)}, not there"
        fix = f"it lies at {self.plan.memory.regions[value]}"
        self._add("region", command.id, value, what, fix, region)

    def _forget(self, nodes: Sequence[int]) -> None:
        """Follow the end of a group: what its other nodes computed is undefined (LCH-6)."""
        for node in nodes:
            if node in self._made:
                self._give(self._made[node], NOBODY)

    def _on_its_device(self, command: Launch) -> None:
        """Check that a launch touches memory of its own device, or host memory that it shares."""
        plan = self.plan
        device = plan.streams.streams[command.stream].device
        allowed = {device, HOST} if plan.devices[device].is_host else {device}
        for arena in {r.arena for step in command.steps for r in step.operands}:
            if plan.memory.arenas[arena].device not in allowed:
                place = f"{show('arena', arena)}, which is not in its memory"
                what = f"{show('command', command.id)} on {plan.devices[device].name} uses {place}"
                self._add("region", command.id, arena, what, "copy it", Region(arena, 0, 0))

    def _add(
        self, kind: FindingKind, command: int, about: int, what: str, fix: str, region: Region
    ) -> None:
        key = (kind, command, about)
        if key not in self.findings:
            arena, start, end = region.arena, region.offset, region.end
            self.findings[key] = Finding(kind, what, command, fix, arena, start, end)


class _Versions:
    """Which values are older than the last write to their storage.

    Values of one storage hold the same bytes in several memories. A write goes to one of them;
    the others are stale there until they are copied again.
    """

    def __init__(self, plan: Plan) -> None:
        self._values = plan.splits.values
        count: dict[int, int] = {}
        for value in self._values:
            count[value.storage] = count.get(value.storage, 0) + 1
        self._several = {storage for storage, number in count.items() if number > 1}
        self._origin = [
            region.offset - value.start
            for value, region in zip(self._values, plan.memory.regions, strict=False)
        ]
        self._now = 0
        self._age = [0] * len(self._values)
        self._writes: dict[int, dict[int, list[tuple[int, int, int]]]] = {}

    def copied(self, src: int, dst: int) -> None:
        """Note that ``dst`` is as new as ``src`` is."""
        storage = self._values[src].storage
        by = self._writes.get(storage)
        self._age[dst] = self._now if by is not None and src in by else self._age[src]

    def written(self, value: int, region: Region) -> None:
        """Note a write of a node to a value."""
        storage = self._values[value].storage
        if storage in self._several:
            self._now += 1
            start = region.offset - self._origin[value]
            writes = self._writes.setdefault(storage, {}).setdefault(value, [])
            writes.append((self._now, start, start + region.nbytes))

    def is_stale(self, value: int, region: Region) -> bool:
        """Whether another value of the storage has newer bytes of these."""
        by = self._writes.get(self._values[value].storage)
        if by is None:
            return False
        start = region.offset - self._origin[value]
        end, age = start + region.nbytes, self._age[value]
        for writer, writes in by.items():
            if writer == value:
                continue
            for when, first, last in reversed(writes):
                if when <= age:
                    break
                if first < end and start < last:
                    return True
        return False


def _who(command: int, node: int) -> str:
    if command < 0:
        return "the host"
    name = show("command", command)
    return f"{name} {show('node', node)}" if node >= 0 else name
