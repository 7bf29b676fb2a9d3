"""A race in words: who touches what, which order is missing, and the shortest repair."""

from typing import Literal, NamedTuple

from ggsched.ids import show
from ggsched.plan.bundle import Plan
from ggsched.plan.command import Copy, CopyRows, Download, Launch, Record, Upload
from ggsched.plan.effects import Step
from ggsched.sanitize.order import HOST_WRITES
from ggsched.sanitize.report import Finding, Touch


class Clash(NamedTuple):
    """Two accesses without an order; a command below zero is the host itself."""

    earlier: int
    earlier_run: int
    earlier_writes: bool
    later: int
    later_run: int
    later_writes: bool
    arena: int
    start: int
    end: int


def describe(plan: Plan, clash: Clash) -> Finding:
    """Return the finding about a race."""
    reads_first = _reads_first(plan, clash)
    hazard: Literal["RAW", "WAR", "WAW"] = "WAR"
    if clash.earlier_writes:
        hazard = "RAW" if reads_first else "WAW"
    later_mode: Literal["read", "write"] = "read" if hazard == "RAW" else "write"
    earlier_mode: Literal["read", "write"] = "write" if clash.earlier_writes else "read"
    earlier = _touch(plan, clash, clash.earlier, clash.earlier_run, earlier_mode)
    later = _touch(plan, clash, clash.later, clash.later_run, later_mode)
    where = f"{show('arena', clash.arena)}[{clash.start}:{clash.end}]"
    before = _name(clash.later) + (" of a later run" if clash.later_run > clash.earlier_run else "")
    what = f"{hazard} on {where}: nothing orders {_name(clash.earlier)} before {before}"
    return Finding(
        kind="race",
        what=what,
        command=max(clash.later, -1),
        fix=_fix(plan, clash),
        arena=clash.arena,
        start=clash.start,
        end=clash.end,
        hazard=hazard,
        earlier=earlier,
        later=later,
    )


def _name(command: int) -> str:
    if command >= 0:
        return show("command", command)
    return "the host's write" if command == HOST_WRITES else "the host's read"


def _reads_first(plan: Plan, clash: Clash) -> bool:
    """Whether the later command's first access to these bytes is a read."""
    if not clash.later_writes:
        return True
    command = plan.commands[clash.later] if clash.later >= 0 else None
    if not isinstance(command, Launch):
        return False
    for step in command.steps:
        mode = _mode_there(step, clash)
        if mode:
            return mode == "r"
    return False


def _mode_there(step: Step, clash: Clash) -> str:
    """Return how a step first touches the bytes; empty if it does not."""
    for region, mode in zip(step.operands, step.modes, strict=True):
        overlaps = region.offset < clash.end and clash.start < region.end
        if mode != "-" and region.arena == clash.arena and overlaps:
            return mode
    return ""


def _touch(
    plan: Plan, clash: Clash, number: int, run: int, mode: Literal["read", "write"]
) -> Touch:
    if number < 0:
        slots = plan.inputs if number == HOST_WRITES else plan.outputs
        names = [repr(s.name) for s in slots if _overlaps(plan, clash, s.value)]
        return Touch(-1, run, "host", ", ".join(names), mode)
    command = plan.commands[number]
    stream = plan.streams.streams[command.stream]
    actor = f"{show('stream', stream.id)} {plan.devices[stream.device].name}"
    return Touch(number, run, actor, _action(plan, clash, number, mode), mode)


def _overlaps(plan: Plan, clash: Clash, value: int) -> bool:
    region = plan.memory.regions[value]
    inside = region.offset < clash.end and clash.start < region.end
    return region.arena == clash.arena and inside


def _action(plan: Plan, clash: Clash, number: int, mode: str) -> str:
    command = plan.commands[number]
    match command:
        case CopyRows(ids=ids) if mode == "read" and ids.arena == clash.arena:
            return "the host reads the ids of its rows"
        case Upload() | Download() | Copy() | CopyRows():
            transfer = plan.splits.transfers[command.transfer]
            return f"{type(command).__name__.lower()} of {show('value', transfer.src)}"
        case Launch():
            wanted = "r" if mode == "read" else "wp"
            for step in command.steps:
                touched = zip(step.operands, step.modes, strict=True)
                if any(m in wanted and _mode_there(Step(0, (r,), m), clash) for r, m in touched):
                    info = plan.nodes[step.node]
                    label = f" '{info.label}'" if info.label else ""
                    node = f"{show('node', step.node)} {info.op}{label}"
                    return f"launch {show('split', command.split)}, {node}"
            return f"launch {show('split', command.split)}"
        case _:
            return type(command).__name__.lower()


def _fix(plan: Plan, clash: Clash) -> str:
    """Return the shortest repair that the devices allow."""
    first = plan.commands[clash.earlier]
    source = show("stream", first.stream)
    crosses = clash.later_run > clash.earlier_run
    host_only = clash.later < 0
    target = first.stream if host_only else plan.commands[clash.later].stream
    facts = [plan.devices[plan.streams.streams[q].device] for q in (first.stream, target)]
    until = "the run ends" if crosses or host_only else show("command", clash.later)
    done = show("command", clash.earlier)
    if target == first.stream and not host_only and facts[0].copy_order == "barrier":
        return f"put a barrier on {source} after {done} and before {until}"
    if not all(f.has_events for f in facts) or (target == first.stream and not host_only):
        return f"let the host wait for {source} after {done} and before {until}"
    waiter = "let the host wait" if host_only else "wait"
    on = "" if host_only else f" on {show('stream', target)}"
    event = _event_after(plan, clash)
    if event is not None:
        return f"{waiter} for {show('event', event)}{on} before {until}"
    return f"record an event after {done} on {source} and {waiter} for it{on} before {until}"


def _event_after(plan: Plan, clash: Clash) -> int | None:
    """Return an event that is recorded between the two commands anyway."""
    stream = plan.commands[clash.earlier].stream
    same_run = clash.later_run == clash.earlier_run and clash.later >= 0
    last = clash.later if same_run else len(plan.commands)
    for command in plan.commands[clash.earlier + 1 : last]:
        if isinstance(command, Record) and command.stream == stream:
            return command.event
    return None
