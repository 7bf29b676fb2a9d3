"""What can be said about a plan without following the order: ids, regions, events."""

from collections.abc import Iterator

from ggsched.ids import show
from ggsched.plan.bundle import Plan
from ggsched.plan.command import (
    Barrier,
    Command,
    Copy,
    Download,
    HostSync,
    Launch,
    Record,
    Upload,
    Wait,
)
from ggsched.plan.memory import Region
from ggsched.plan.stats import device_name
from ggsched.sanitize.report import Finding


def find_unknown(plan: Plan) -> list[Finding]:
    """Return what is named but does not exist; after that nothing else can be looked at."""
    return [*_unknown_in_artifacts(plan), *_unknown_in_commands(plan)]


def find_misuse(plan: Plan) -> list[Finding]:
    """Return misused events and barriers and regions that are out of place."""
    findings: list[Finding] = []
    recorded: set[int] = set()
    for command in plan.commands:
        findings += _misused_event(plan, command, recorded)
        findings += _misplaced(plan, command)
    return findings


def _unknown_in_artifacts(plan: Plan) -> Iterator[Finding]:
    for i, stream in enumerate(plan.streams.streams):
        if not 0 <= stream.device < len(plan.devices):
            yield Finding("id", f"{show('stream', i)} is on an unknown device", -1)
    for i, region in enumerate(plan.memory.regions):
        if problem := _bad_region(plan, region):
            yield Finding("region", f"{show('value', i)} {problem}", -1)
    values = min(len(plan.memory.regions), len(plan.splits.values))
    for slot in (*plan.inputs, *plan.outputs):
        if not 0 <= slot.value < values:
            yield Finding("id", f"{slot.name!r} is in unknown value {slot.value}", -1)
    for node, bound in enumerate(plan.splits.bindings):
        if any(not 0 <= v < values for v in bound):
            yield Finding("id", f"{show('node', node)} is bound to an unknown value", -1)
    for t in plan.splits.transfers:
        if not (0 <= t.src < values and 0 <= t.dst < values):
            yield Finding("id", f"transfer {t.id} is between unknown values", -1)


def _unknown_in_commands(plan: Plan) -> Iterator[Finding]:
    for i, command in enumerate(plan.commands):
        name = show("command", i)
        if command.id != i:
            yield Finding("id", f"{name} calls itself {command.id}", i, "number from zero")
        if not 0 <= command.stream < len(plan.streams.streams):
            yield Finding("id", f"{name} is on unknown stream {command.stream}", i)
        if isinstance(command, Upload | Download | Copy):
            if not 0 <= command.transfer < len(plan.splits.transfers):
                yield Finding("id", f"{name} is unknown transfer {command.transfer}", i)
            for region in (command.src, command.dst):
                if problem := _bad_region(plan, region):
                    yield Finding("region", f"{name} {problem}", i, "", *_bytes(region))
        elif isinstance(command, Launch):
            yield from _unknown_in_launch(plan, command)


def _unknown_in_launch(plan: Plan, command: Launch) -> Iterator[Finding]:
    name, arenas = show("command", command.id), plan.memory.arenas
    for step in command.steps:
        if not 0 <= step.node < len(plan.splits.bindings):
            yield Finding("id", f"{name} runs unknown node {step.node}", command.id)
            continue
        bound = plan.splits.bindings[step.node]
        if not len(step.operands) == len(step.modes) == len(bound):
            what = f"{name} runs {show('node', step.node)} with a wrong number of operands"
            yield Finding("id", what, command.id)
        for region in step.operands:
            arena, offset, nbytes = region
            known = 0 <= arena < len(arenas)
            if not known or offset < 0 or nbytes < 0 or offset + nbytes > arenas[arena].nbytes:
                what = f"{name} {show('node', step.node)} {_bad_region(plan, region)}"
                yield Finding("region", what, command.id, "", arena, offset, offset + nbytes)


def _bad_region(plan: Plan, region: Region) -> str:
    if not 0 <= region.arena < len(plan.memory.arenas):
        return f"lies in unknown arena {region.arena}"
    size = plan.memory.arenas[region.arena].nbytes
    if region.offset < 0 or region.nbytes < 0 or region.end > size:
        where = f"{show('arena', region.arena)}[{region.offset}:{region.end}]"
        return f"lies at {where}, outside the arena's {size} bytes"
    return ""


def _bytes(region: Region) -> tuple[int, int, int]:
    return region.arena, region.offset, region.end


def _misused_event(plan: Plan, command: Command, recorded: set[int]) -> Iterator[Finding]:
    name = show("command", command.id)
    device = plan.streams.streams[command.stream].device
    facts = plan.devices[device]
    if isinstance(command, Record):
        if command.event in recorded:
            what = f"{name} records event {command.event} again"
            yield Finding("event", what, command.id, "use an event of its own (EVT-3)")
        if not facts.has_events:
            what = f"{name} records an event on {facts.name}, which has none"
            yield Finding("event", what, command.id, "let the host wait for the stream")
        recorded.add(command.event)
    elif isinstance(command, Wait | HostSync) and command.event is not None:
        if command.event not in recorded:
            what = f"{name} waits for event {command.event}, not recorded in this run"
            yield Finding("event", what, command.id, "record it before (EVT-3)")
        if isinstance(command, Wait) and not facts.has_events:
            what = f"{name} lets {facts.name} wait for an event, which it cannot"
            yield Finding("event", what, command.id, "let the host wait instead")
    elif isinstance(command, Barrier) and facts.copy_order == "host":
        what = f"{name} is a barrier on {facts.name}, which has none"
        yield Finding("event", what, command.id, "let the host wait for the stream")


def _misplaced(plan: Plan, command: Command) -> Iterator[Finding]:
    """Yield copies that overlap themselves, move bytes askew, or leave their values."""
    if not isinstance(command, Upload | Download | Copy):
        return
    name, src, dst = show("command", command.id), command.src, command.dst
    if src.nbytes != dst.nbytes:
        what = f"{name} copies {src.nbytes} bytes onto {dst.nbytes}"
        yield Finding("region", what, command.id, "", *_bytes(dst))
    if src.arena == dst.arena and src.offset < dst.end and dst.offset < src.end:
        what = f"{name} copies bytes onto themselves (CPY-3)"
        yield Finding("region", what, command.id, "", *_bytes(dst))
    transfer = plan.splits.transfers[command.transfer]
    for end, region, vid in (("source", src, transfer.src), ("target", dst, transfer.dst)):
        home = plan.memory.regions[vid]
        if region.arena != home.arena or not home.offset <= region.offset <= region.end <= home.end:
            place = f"{show('arena', home.arena)}[{home.offset}:{home.end}]"
            what = f"the {end} of {name} is not within {show('value', vid)} at {place}"
            yield Finding("region", what, command.id, "", *_bytes(region))
    if dst.nbytes < plan.memory.regions[transfer.dst].nbytes:
        what = f"{name} fills only {dst.nbytes} bytes of {show('value', transfer.dst)}"
        yield Finding("region", what, command.id, "copy all of it", *_bytes(dst))
    values, regions = plan.splits.values, plan.memory.regions
    read = src.offset - regions[transfer.src].offset + values[transfer.src].start
    written = dst.offset - regions[transfer.dst].offset + values[transfer.dst].start
    if read != written:
        storage = show("tensor", values[transfer.src].storage)
        what = f"{name} moves bytes from {read} of {storage} to {written}"
        yield Finding("region", what, command.id, "read the bytes that belong there", *_bytes(src))
    arenas = plan.memory.arenas
    here = plan.streams.streams[command.stream].device
    if here not in (arenas[src.arena].device, arenas[dst.arena].device):
        what = f"{name} runs on {device_name(plan, here)}, which holds neither end"
        yield Finding("region", what, command.id, "run it on a stream of one end (CPY-1)")
