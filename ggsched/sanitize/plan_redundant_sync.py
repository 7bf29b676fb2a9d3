"""Advice about a plan: what its commands could leave out."""

from ggsched.ids import show
from ggsched.plan.bundle import Plan
from ggsched.plan.command import Copy, CopyRows, Download, HostSync, Record, Upload, Wait
from ggsched.sanitize.deadlock import find_cycles
from ggsched.sanitize.redundant_sync import Group, find_waste
from ggsched.sanitize.report import Finding
from ggsched.trace.unroll import Unrolled, unroll


def advise_on_plan(plan: Plan, runs: int) -> tuple[Finding, ...]:
    """Return waits, events and copies of a clean plan that nobody needs."""
    unrolled = unroll(plan, runs)
    scratch = frozenset(a.id for a in plan.memory.arenas if a.kind not in ("weight", "state"))
    waste = find_waste(unrolled.trace, _groups(unrolled), scratch)
    findings = []
    for group in (*waste.waits, *waste.records, *waste.copies):
        number = unrolled.origins[group[0]]
        findings.append(Finding("waste", _what(plan, number), number, "leave it out"))
    return tuple(sorted(findings, key=lambda f: f.command))


def find_cycles_in_plan(plan: Plan) -> list[Finding]:
    """Return waits that can never end because they wait for each other, by command."""
    unrolled = unroll(plan, 1)
    return [_renumbered(finding, unrolled) for finding in find_cycles(unrolled.trace)]


def _groups(unrolled: Unrolled) -> list[Group]:
    groups: dict[int, list[int]] = {}
    for i, origin in enumerate(unrolled.origins):
        if origin >= 0:
            groups.setdefault(origin, []).append(i)
    return [tuple(group) for group in groups.values()]


def _what(plan: Plan, number: int) -> str:
    command = plan.commands[number]
    name = show("command", number)
    match command:
        case Record():
            return f"{name} records {show('event', command.event)}, for which nobody waits"
        case Upload() | Download() | Copy() | CopyRows():
            kind = type(command).__name__.lower()
            value = show("value", plan.splits.transfers[command.transfer].dst)
            return f"nobody reads what {name}, the {kind} to {value}, copies"
        case Wait() | HostSync():
            target = show("stream", command.stream) if command.event is None else ""
            what = target or show("event", command.event or 0)
            return f"nobody needs {name}, the wait for {what}"
        case _:
            return f"nobody needs {name}, the {type(command).__name__.lower()}"


def _renumbered(finding: Finding, unrolled: Unrolled) -> Finding:
    """Put commands for records."""
    words = []
    for word in finding.what.split(" "):
        number = word[1:].rstrip(",")
        if word.startswith("#") and number.isdigit():
            word = word.replace(f"#{number}", show("command", unrolled.origins[int(number)]))
        words.append(word)
    command = unrolled.origins[finding.command]
    return Finding(finding.kind, " ".join(words), command, finding.fix)
