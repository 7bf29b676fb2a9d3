"""What can be said about a plan without following the order: ids, regions, events."""

from collections.abc import Iterator

from ggsched.ids import show
from ggsched.plan.bundle import Plan
from ggsched.plan.command import (
    Barrier,
    CopyRows,
    Fill,
    HostSync,
    Launch,
    Record,
    Wait,
)
from ggsched.plan.memory import Region
from ggsched.plan.stats import device_name
from ggsched.sanitize.kinds import TRANSFERS, Transferring
from ggsched.sanitize.report import Finding
from ggsched.sanitize.rows import misplaced_rows


def find_unknown(plan: Plan) -> list[Finding]:
    """Return what is named but does not exist; after that nothing else can be looked at."""
    return [*_unknown_in_artifacts(plan), *_unknown_in_commands(plan)]


def find_misuse(plan: Plan) -> list[Finding]:
    """Return misused events and barriers and regions that are out of place."""
    findings = list(_unfilled(plan))
    recorded: set[int] = set()
    for command in plan.commands:
        if isinstance(command, TRANSFERS):
            findings += _misplaced(plan, command)
        elif isinstance(command, Fill):
            findings += _misfilled(plan, command)
        elif not isinstance(command, Launch):
            findings += _misused_event(plan, command, recorded)
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
        named = t.src if t.rows is None else t.rows.ids
        if not all(0 <= v < values for v in (t.src, t.dst, named)):
            yield Finding("id", f"transfer {t.id} is between unknown values", -1)


def _unknown_in_commands(plan: Plan) -> Iterator[Finding]:
    streams, transfers = len(plan.streams.streams), len(plan.splits.transfers)
    for i, command in enumerate(plan.commands):
        if command.id != i:
            what = f"{show('command', i)} calls itself {command.id}"
            yield Finding("id", what, i, "number from zero")
        if not 0 <= command.stream < streams:
            what = f"{show('command', i)} is on unknown stream {command.stream}"
            yield Finding("id", what, i)
        if isinstance(command, (*TRANSFERS, Fill)):
            if not 0 <= command.transfer < transfers:
                what = f"{show('command', i)} is unknown transfer {command.transfer}"
                yield Finding("id", what, i)
            for region in _regions(command):
                if problem := _bad_region(plan, region):
                    what = f"{show('command', i)} {problem}"
                    yield Finding("region", what, i, "", *_bytes(region))
        elif isinstance(command, Launch):
            yield from _unknown_in_launch(plan, command)


def _regions(command: Transferring | Fill) -> tuple[Region, ...]:
    if isinstance(command, Fill):
        return (command.dst,)
    if not isinstance(command, CopyRows):
        return command.src, command.dst
    cache = () if command.cache is None else (command.cache,)
    return (command.src, command.dst, command.ids, *cache)


def _unknown_in_launch(plan: Plan, command: Launch) -> Iterator[Finding]:
    name, bindings = show("command", command.id), plan.splits.bindings
    for node, operands, modes in command.steps:
        if not 0 <= node < len(bindings):
            yield Finding("id", f"{name} runs unknown node {node}", command.id)
            continue
        if not len(operands) == len(modes) == len(bindings[node]):
            what = f"{name} runs {show('node', node)} with a wrong number of operands"
            yield Finding("id", what, command.id)
        for region in operands:
            if problem := _bad_region(plan, region):
                what = f"{name} {show('node', node)} {problem}"
                yield Finding("region", what, command.id, "", *_bytes(region))


def _bad_region(plan: Plan, region: Region) -> str:
    arena, offset, nbytes = region
    arenas = plan.memory.arenas
    if not 0 <= arena < len(arenas):
        return f"lies in unknown arena {arena}"
    size = arenas[arena].nbytes
    if offset < 0 or nbytes < 0 or offset + nbytes > size:
        where = f"{show('arena', arena)}[{offset}:{offset + nbytes}]"
        return f"lies at {where}, outside the arena's {size} bytes"
    return ""


def _bytes(region: Region) -> tuple[int, int, int]:
    return region.arena, region.offset, region.end


def _misused_event(
    plan: Plan, command: Record | Wait | Barrier | HostSync, recorded: set[int]
) -> Iterator[Finding]:
    name = show("command", command.id)
    facts = plan.devices[plan.streams.streams[command.stream].device]
    if isinstance(command, Record):
        if command.event in recorded:
            what = f"{name} records event {command.event} again"
            yield Finding("event", what, command.id, "use an event of its own (EVT-3)")
        if not facts.has_events:
            what = f"{name} records an event on {facts.name}, which has none"
            yield Finding("event", what, command.id, "let the host wait for the stream")
        recorded.add(command.event)
    elif isinstance(command, Barrier):
        if facts.copy_order == "host":
            what = f"{name} is a barrier on {facts.name}, which has none"
            yield Finding("event", what, command.id, "let the host wait for the stream")
    elif command.event is not None:
        if command.event not in recorded:
            what = f"{name} waits for event {command.event}, not recorded in this run"
            yield Finding("event", what, command.id, "record it before (EVT-3)")
        if isinstance(command, Wait) and not facts.has_events:
            what = f"{name} lets {facts.name} wait for an event, which it cannot"
            yield Finding("event", what, command.id, "let the host wait instead")


def _misplaced(plan: Plan, command: Transferring) -> Iterator[Finding]:
    """Yield how a transfer moves other bytes than those of its values."""
    transfer = plan.splits.transfers[command.transfer]
    source, target = plan.splits.values[transfer.src], plan.splits.values[transfer.dst]
    home, to = plan.memory.regions[transfer.src], plan.memory.regions[transfer.dst]
    src, dst = command.src, command.dst
    skipped = target.start - source.start
    if source.storage != target.storage or skipped < 0 or target.end > source.end:
        missing, held = show("value", target.id), show("value", source.id)
        what = f"{show('command', command.id)} fills {missing} from {held}, which does not hold it"
        yield Finding("region", what, command.id, "", *_bytes(src))
    elif dst != to or src != (home.arena, home.offset + skipped, to.nbytes):
        yield from _moves(plan, command, home._replace(offset=home.offset + skipped), to)
    if isinstance(command, CopyRows):
        yield from misplaced_rows(plan, command)
    if src.arena == dst.arena and src.offset < dst.end and dst.offset < src.end:
        what = f"{show('command', command.id)} copies bytes onto themselves (CPY-3)"
        yield Finding("region", what, command.id, "", *_bytes(dst))
    arenas = plan.memory.arenas
    here = plan.streams.streams[command.stream].device
    if here != arenas[src.arena].device and here != arenas[dst.arena].device:
        name, place = show("command", command.id), device_name(plan, here)
        what = f"{name} runs on {place}, which holds neither end"
        yield Finding("region", what, command.id, "run it on a stream of one end (CPY-1)")


def _unfilled(plan: Plan) -> Iterator[Finding]:
    """Yield transfers that fill a value and that no command carries out."""
    done = {command.effects.transfer for command in plan.commands}
    for t in plan.splits.transfers:
        if not t.has_source and t.id not in done:
            what = f"no command fills {show('value', t.dst)}, which is transfer {t.id}"
            yield Finding("region", what, -1, "fill it before it is read")


def _misfilled(plan: Plan, command: Fill) -> Iterator[Finding]:
    """Yield how a fill sets other bytes than those of its value, or sets them otherwise."""
    name, transfer = show("command", command.id), plan.splits.transfers[command.transfer]
    due = plan.memory.regions[transfer.dst]
    if transfer.pattern is None or command.pattern != transfer.pattern:
        wanted = "a copy" if transfer.pattern is None else f"a fill with {transfer.pattern.hex()}"
        what = f"{name} fills with {command.pattern.hex()}, but transfer {transfer.id} is {wanted}"
        yield Finding("region", what, command.id, "", *_bytes(command.dst))
    if command.dst != due:
        right = f"{show('value', transfer.dst)} at {due.text}"
        what = f"{name} fills {command.dst.text} instead of {right}"
        yield Finding("region", what, command.id, "fill all of it", *_bytes(command.dst))
    here = plan.streams.streams[command.stream].device
    if here != plan.memory.arenas[command.dst.arena].device:
        what = f"{name} runs on {device_name(plan, here)}, which does not hold its bytes"
        yield Finding("region", what, command.id, "run it on their own device (FIL-3)")


def _moves(plan: Plan, command: Transferring, begin: Region, to: Region) -> Iterator[Finding]:
    """Yield in what a transfer differs from one that starts at ``begin`` and fills ``to``."""
    name, transfer = show("command", command.id), plan.splits.transfers[command.transfer]
    src, dst = command.src, command.dst
    if src.nbytes != dst.nbytes:
        what = f"{name} copies {src.nbytes} bytes onto {dst.nbytes}"
        yield Finding("region", what, command.id, "", *_bytes(dst))
    elif dst.nbytes < to.nbytes:
        what = f"{name} fills only {dst.nbytes} bytes of {show('value', transfer.dst)}"
        yield Finding("region", what, command.id, "copy all of it", *_bytes(dst))
    ends = (("reads", src, begin, transfer.src), ("fills", dst, to, transfer.dst))
    for verb, region, due, vid in ends:
        if region[:2] != due[:2] or region.nbytes > to.nbytes:
            place = f"{show('arena', region.arena)}[{region.offset}:{region.end}]"
            right = f"{show('arena', due.arena)}[{due.offset}:{due.offset + to.nbytes}]"
            what = f"{name} {verb} {place} instead of {show('value', vid)} at {right}"
            yield Finding("region", what, command.id, "", *_bytes(region))
