"""Mutants: plans with one defect each, to see whether somebody notices.

Every operator is a pure function from a plan to (description, broken plan) pairs. A mutant keeps
dense command ids, so that what is noticed is the defect and not its traces. ``ALL_MUTATIONS``
names them all.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from ggsched.ids import show
from ggsched.ir.intervals import overlap
from ggsched.plan.bundle import Plan
from ggsched.plan.command import (
    Barrier,
    Command,
    Copy,
    Download,
    Fill,
    HostSync,
    Launch,
    Record,
    Upload,
    Wait,
)
from ggsched.plan.effects import Step, touched_values
from ggsched.plan.memory import Memory, Region

Mutants = Iterator[tuple[str, Plan]]


def drop_waits(plan: Plan) -> Mutants:
    """Leave out one wait of a stream."""
    yield from _drop_each(plan, Wait)


def drop_host_syncs(plan: Plan) -> Mutants:
    """Leave out one wait of the host."""
    yield from _drop_each(plan, HostSync)


def drop_barriers(plan: Plan) -> Mutants:
    """Leave out one barrier."""
    yield from _drop_each(plan, Barrier)


def drop_events(plan: Plan) -> Mutants:
    """Leave out the record of an event and every wait for it."""
    for record in plan.commands:
        if isinstance(record, Record):
            event = record.event
            kept = [c for c in plan.commands if event not in (*c.effects.records, *c.effects.waits)]
            yield f"drop {show('event', event)} and its waits", with_commands(plan, kept)


def record_earlier(plan: Plan) -> Mutants:
    """Move a record before the work that comes before it on its stream."""
    for record in plan.commands:
        if not isinstance(record, Record):
            continue
        before = plan.commands[: record.id]
        work = [c for c in before if c.effects.engine and c.stream == record.stream]
        if work:
            moved = _moved(plan.commands, record.id, work[-1].id)
            what = f"record {show('event', record.event)} before {show('command', work[-1].id)}"
            yield what, with_commands(plan, moved)


def wait_later(plan: Plan) -> Mutants:
    """Move a wait behind the work that it holds back."""
    for wait in plan.commands:
        if not isinstance(wait, Wait | Barrier):
            continue
        after = plan.commands[wait.id + 1 :]
        work = next((c for c in after if c.effects.engine and c.stream == wait.stream), None)
        if work is not None and not wait.hazard.next_run:
            what = f"{show('command', wait.id)} behind {show('command', work.id)}"
            yield what, with_commands(plan, _moved(plan.commands, wait.id, work.id))


def wait_for_older_event(plan: Plan) -> Mutants:
    """Let a stream wait for an event that was recorded before the right one."""
    for wait in plan.commands:
        if not isinstance(wait, Wait):
            continue
        records = {c.event: c for c in plan.commands if isinstance(c, Record)}
        right = records[wait.event]
        older = [r for r in records.values() if r.stream == right.stream and r.id < right.id]
        if older:
            wrong = msgspec.structs.replace(wait, event=older[-1].event)
            commands = [wrong if c is wait else c for c in plan.commands]
            what = f"{show('command', wait.id)} waits for {show('event', wrong.event)}"
            yield what, with_commands(plan, commands)


def swap_neighbours(plan: Plan) -> Mutants:
    """Exchange two neighbours of one stream that touch the same bytes."""
    for first, second in zip(plan.commands, plan.commands[1:], strict=False):
        if first.effects.engine and second.effects.engine and _conflict(first, second):
            what = f"swap {show('command', first.id)} and {show('command', second.id)}"
            yield what, with_commands(plan, _moved(plan.commands, second.id, first.id))


def shrink_copies(plan: Plan) -> Mutants:
    """Leave out the second half of a transfer."""
    for command in plan.commands:
        if isinstance(command, Upload | Download | Copy) and command.dst.nbytes > 1:
            half = command.dst.nbytes // 2
            small = msgspec.structs.replace(
                command,
                src=command.src._replace(nbytes=half),
                dst=command.dst._replace(nbytes=half),
            )
            commands = [small if c is command else c for c in plan.commands]
            yield f"{show('command', command.id)} copies half", with_commands(plan, commands)


def shrink_fills(plan: Plan) -> Mutants:
    """Leave out the second half of a fill."""
    for command in plan.commands:
        if isinstance(command, Fill) and command.dst.nbytes > 1:
            dst = command.dst._replace(nbytes=command.dst.nbytes // 2)
            yield _replaced(plan, command, "fills half", dst=dst)


def change_patterns(plan: Plan) -> Mutants:
    """Fill with another pattern."""
    for command in plan.commands:
        if isinstance(command, Fill) and command.dst.nbytes:
            pattern = bytes(255 - byte for byte in command.pattern)
            yield _replaced(plan, command, f"fills with {pattern.hex()}", pattern=pattern)


def drop_fills(plan: Plan) -> Mutants:
    """Leave out a fill."""
    yield from _drop_each(plan, Fill)


def _replaced(plan: Plan, command: Command, what: str, **changes: Any) -> tuple[str, Plan]:
    changed = msgspec.structs.replace(command, **changes)
    commands = [changed if c is command else c for c in plan.commands]
    return f"{show('command', command.id)} {what}", with_commands(plan, commands)


def alias_values(plan: Plan) -> Mutants:
    """Put a value on the bytes of another one that is still needed."""
    uses = _uses(plan)
    regions = plan.memory.regions
    for kept, use in uses.items():
        for moved, other in uses.items():
            a, b = regions[kept], regions[moved]
            inside = use.last_write < other.first_write < use.last_read and a.arena == b.arena
            apart = a.offset >= b.end or b.offset >= a.end
            if inside and apart and a.nbytes and b.nbytes:
                offset = min(a.offset, plan.memory.arenas[a.arena].nbytes - b.nbytes)
                what = f"{show('value', moved)} on top of {show('value', kept)}"
                yield what, relocated(plan, moved, offset)


ALL_MUTATIONS: Final[Mapping[str, Callable[[Plan], Mutants]]] = {
    f.__name__: f
    for f in (
        drop_waits,
        drop_host_syncs,
        drop_barriers,
        drop_events,
        record_earlier,
        wait_later,
        wait_for_older_event,
        swap_neighbours,
        shrink_copies,
        shrink_fills,
        change_patterns,
        drop_fills,
        alias_values,
    )
}


def with_commands(plan: Plan, commands: Sequence[Command]) -> Plan:
    """Return the plan with other commands, numbered anew, hazards included."""
    number = {c.id: i for i, c in enumerate(commands)}
    renumbered = []
    for i, command in enumerate(commands):
        if isinstance(command, Wait | Barrier | HostSync):
            h = command.hazard
            ends = number.get(h.earlier, -1), number.get(h.later, -1)
            h = h._replace(earlier=ends[0], later=ends[1])
            changed: Command = msgspec.structs.replace(command, id=i, hazard=h)
        else:
            changed = msgspec.structs.replace(command, id=i)
        renumbered.append(changed)
    return msgspec.structs.replace(plan, commands=tuple(renumbered))


def _drop_each(plan: Plan, kind: type[Wait | HostSync | Barrier | Fill]) -> Mutants:
    for command in plan.commands:
        if isinstance(command, kind):
            kept = [c for c in plan.commands if c is not command]
            yield f"drop {show('command', command.id)}", with_commands(plan, kept)


def _moved(commands: Sequence[Command], origin: int, target: int) -> list[Command]:
    """Return the list with one command taken out and put in where another one stands."""
    out = list(commands)
    out.insert(target, out.pop(origin))
    return out


def _conflict(first: Command, second: Command) -> bool:
    if first.stream != second.stream:
        return False
    (reads_1, writes_1), (reads_2, writes_2) = _touched(first), _touched(second)
    pairs = ((writes_1, reads_2), (reads_1, writes_2), (writes_1, writes_2))
    return any(
        a.arena == b.arena and overlap(a, b) for some, others in pairs for a in some for b in others
    )


def _touched(command: Command) -> tuple[Sequence[Region], Sequence[Region]]:
    return command.effects.reads, command.effects.writes


class _Use(NamedTuple):
    """When a value is written and read, counting accesses; whole reads and writes only."""

    first_write: int
    last_write: int
    last_read: int


def _uses(plan: Plan) -> dict[int, _Use]:
    """Return the use of each value in compute memory."""
    uses: dict[int, _Use] = {}
    for time, (value, region, mode) in enumerate(_accesses(plan), 1):
        home = plan.memory.regions[value]
        if plan.memory.arenas[home.arena].kind != "compute":
            continue
        use = uses.get(value, _Use(0, 0, 0))
        if mode == "r" and region == home:
            use = use._replace(last_read=time)
        elif mode == "w" and region == home:
            use = _Use(use.first_write or time, time, use.last_read)
        elif mode in "wp":
            use = use._replace(last_write=time)
        uses[value] = use
    return uses


def _accesses(plan: Plan) -> Iterator[tuple[int, Region, str]]:
    for command in plan.commands:
        effects = command.effects
        if effects.is_partial:  # rows that ids choose
            continue
        for step, bound in zip(effects.steps, touched_values(plan.splits, effects), strict=True):
            yield from zip(bound[-len(step.modes) :], step.operands, step.modes, strict=True)


def relocated(plan: Plan, value: int, offset: int) -> Plan:
    """Return the plan with a value elsewhere in its arena, wherever it is named."""
    old = plan.memory.regions[value]
    shift = offset - old.offset
    regions = list(plan.memory.regions)
    regions[value] = old._replace(offset=offset)
    commands: list[Command] = []
    for command in plan.commands:
        if isinstance(command, Upload | Download | Copy):
            transfer = plan.splits.transfers[command.transfer]
            src, dst = command.src, command.dst
            src = _shifted(src, shift) if transfer.src == value else src
            dst = _shifted(dst, shift) if transfer.dst == value else dst
            commands.append(msgspec.structs.replace(command, src=src, dst=dst))
        elif isinstance(command, Launch):
            commands.append(_relocated_launch(plan, command, value, shift))
        else:
            commands.append(command)
    memory = plan.memory
    moved = Memory(memory.arenas, tuple(regions), memory.overwrites, memory.lower_bound)
    return msgspec.structs.replace(plan, memory=moved, commands=tuple(commands))


def _relocated_launch(plan: Plan, launch: Launch, value: int, shift: int) -> Launch:
    steps = []
    for step in launch.steps:
        bound = plan.splits.bindings[step.node]
        operands = tuple(
            _shifted(region, shift) if v == value else region
            for region, v in zip(step.operands, bound, strict=True)
        )
        steps.append(Step(step.node, operands, step.modes))
    touched = [(r, m) for s in steps for r, m in zip(s.operands, s.modes, strict=True)]
    return msgspec.structs.replace(
        launch,
        steps=tuple(steps),
        reads=merged([r for r, m in touched if m == "r"]),
        writes=merged([r for r, m in touched if m in "wp"]),
    )


def _shifted(region: Region, shift: int) -> Region:
    return region._replace(offset=region.offset + shift)


def merged(regions: Sequence[Region]) -> tuple[Region, ...]:
    """Return the same bytes as sorted regions that do not touch."""
    merged: list[Region] = []
    for r in sorted(r for r in regions if r.nbytes):
        last = merged[-1] if merged else None
        if last is not None and last.arena == r.arena and r.offset <= last.end:
            merged[-1] = Region(r.arena, last.offset, max(last.end, r.end) - last.offset)
        else:
            merged.append(r)
    return tuple(merged)


__all__ = ["ALL_MUTATIONS", "Mutants", "merged", "relocated", "with_commands"]
