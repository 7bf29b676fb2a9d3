"""References: does everything exist that a plan or a trace names? All other rules need that."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final, Protocol

from ggsched.errors import UsageError
from ggsched.ids import LETTER, IdKind, show
from ggsched.plan.bundle import Plan
from ggsched.plan.effects import Effects, Step
from ggsched.plan.memory import Region
from ggsched.plan.splits import HOST
from ggsched.sanitize.report import Finding
from ggsched.trace import schema

_HOST_KINDS: Final = ("input", "output", "staging")
"""Kinds of arenas that are host memory."""


class _OnDevice(Protocol):
    @property
    def device(self) -> int: ...


# --- plans ----------------------------------------------------------------------------------------


def find_unknown(plan: Plan, effects: Sequence[Effects]) -> tuple[list[Finding], list[Finding]]:
    """Look at all ids and regions of a plan.

    Returns:
        Ids that are not dense or name nothing and regions outside their arena, after which nothing
        else can be looked at; and operands that lie outside their values.
    """
    found = [Finding("id", f"{where}: {what}", -1) for what, where in _in_artifacts(plan)]
    if found:
        return found, []
    sizes = [arena.nbytes for arena in plan.memory.arenas]
    regions = {*plan.memory.regions}
    inside = {r for r in regions if r[1] >= 0 and r[2] >= 0 and r[1] + r[2] <= sizes[r[0]]}
    for i, region in enumerate(plan.memory.regions) if len(inside) < len(regions) else ():
        if region not in inside:
            found.append(Finding("region", f"{show('value', i)} {_bad_region(plan, region)}", -1))
    odd: list[tuple[int, Step]] = []
    found += _in_commands(plan, effects, inside, odd)
    return found, [] if found else [f for i, step in odd for f in _outside(plan, i, step)]


def require_known(plan: Plan, where: str) -> None:
    """Check that a plan names nothing that is not there, so that it can be followed.

    Args:
        where: File and line that it comes from.

    Raises:
        UsageError: it does.
    """
    findings, outside = find_unknown(plan, [command.effects for command in plan.commands])
    for finding in (*findings, *outside):
        what = f"the plan {plan.name!r} is malformed: {finding.what}"
        raise UsageError(what, where=where, hint="record the run again")


def _in_artifacts(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield what is wrong and where."""
    yield from _numbering(plan)
    yield from _lengths(plan)
    yield from _places(plan)
    yield from _in_splits(plan)
    yield from _groups(plan)


def _in_splits(plan: Plan) -> Iterator[tuple[str, str]]:
    values, nodes = range(len(plan.splits.values)), range(len(plan.nodes))
    for t in plan.splits.transfers:
        if t.src not in values or t.dst not in values:
            yield f"from value {t.src} to {t.dst}", f"transfer {t.id}"
        if not 0 <= t.before <= len(plan.splits.splits):
            yield f"before split {t.before} of {len(plan.splits.splits)}", f"transfer {t.id}"
        if t.rows is not None and t.rows.ids not in values:
            yield f"rows by value {t.rows.ids}", f"transfer {t.id}"
    for slot in (*plan.inputs, *plan.outputs):
        if slot.value not in values:
            yield f"in value {slot.value}", repr(slot.name)
    yield from _in_bindings(plan)
    for s in plan.splits.splits:
        if s.first not in nodes or not s.first < s.end <= len(nodes):
            yield f"nodes [{s.first}, {s.end}) of {len(nodes)}", show("split", s.id)
    overwrites = plan.memory.overwrites
    odd = {*overwrites, *overwrites.values()} - {*values}
    for v, taken in overwrites.items() if odd else ():
        if v in odd or taken in odd:
            yield f"value {v} overwrites {taken}", "memory"


def _in_bindings(plan: Plan) -> Iterator[tuple[str, str]]:
    values = range(len(plan.splits.values))
    if not {*chain.from_iterable(plan.splits.bindings)} <= {*values}:
        for node, bound in enumerate(plan.splits.bindings):
            if all(v in values for v in bound):
                continue
            yield f"bound to values {bound}", show("node", node)


def _groups(plan: Plan) -> Iterator[tuple[str, str]]:
    nodes = range(len(plan.nodes))
    grouped: set[int] = set()
    for f in plan.fusions:
        if not f.nodes or any(n not in nodes for n in f.nodes):
            yield f"a group of nodes {f.nodes}", f.pattern
        if grouped & set(f.nodes) or len(set(f.nodes)) < len(f.nodes):
            yield f"nodes {f.nodes} belong to two groups", f.pattern
        grouped |= set(f.nodes)


def _numbering(plan: Plan) -> Iterator[tuple[str, str]]:
    numbers = {
        "value": [v.id for v in plan.splits.values],
        "transfer": [t.id for t in plan.splits.transfers],
        "split": [s.id for s in plan.splits.splits],
        "stream": [s.id for s in plan.streams.streams],
        "arena": [a.id for a in plan.memory.arenas],
    }
    for kind, ids in numbers.items():
        if ids == list(range(len(ids))):
            continue
        for i, number in enumerate(ids):
            if number != i:
                yield f"has the id {number}", f"{kind} {i}"


def _lengths(plan: Plan) -> Iterator[tuple[str, str]]:
    tables = (
        ("choices", len(plan.placement.choices), len(plan.nodes)),
        ("bindings", len(plan.splits.bindings), len(plan.nodes)),
        ("regions", len(plan.memory.regions), len(plan.splits.values)),
        ("streams of nodes", len(plan.streams.of_node), len(plan.nodes)),
        ("streams of transfers", len(plan.streams.of_transfer), len(plan.splits.transfers)),
    )
    for name, found, wanted in tables:
        if found != wanted:
            yield f"{found} {name} instead of {wanted}", "plan"


def _places(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield unknown devices, streams and arenas."""
    devices = range(len(plan.devices))
    named: tuple[tuple[Sequence[_OnDevice], IdKind], ...] = (
        (plan.memory.arenas, "arena"),
        (plan.splits.values, "value"),
        (plan.splits.splits, "split"),
        (plan.streams.streams, "stream"),
        (plan.placement.choices, "node"),
    )
    for items, kind in named:
        lowest = HOST if kind in ("arena", "value") else 0
        if {item.device for item in items} <= {*range(lowest, len(devices))}:
            continue
        for i, item in enumerate(items):
            if not lowest <= item.device < len(devices):
                yield f"on device {item.device}", f"{LETTER[kind]}{i}"
    for arena in plan.memory.arenas:
        if (arena.device == HOST) != (arena.kind in _HOST_KINDS):
            where = "host memory" if arena.device == HOST else f"device {arena.device}"
            yield f"{arena.kind} memory in {where}", show("arena", arena.id)
    yield from _tables(plan)


def _tables(plan: Plan) -> Iterator[tuple[str, str]]:
    devices, streams = range(len(plan.devices)), range(len(plan.streams.streams))
    arenas, splits = range(len(plan.memory.arenas)), range(len(plan.splits.splits))
    odd = {*plan.placement.homes.values()} - {*devices}
    for tensor, device in plan.placement.homes.items() if odd else ():
        if device in odd:
            yield f"on device {device}", f"home of tensor {tensor}"
    for stream in {*plan.streams.of_node, *plan.streams.of_transfer}:
        if stream not in streams:
            yield f"uses stream {stream}", "plan"
    for gain in plan.streams.gains:
        if gain.split not in splits:
            yield f"gain of split {gain.split}", "streams"
    if not {region[0] for region in plan.memory.regions} <= {*arenas}:
        for i, region in enumerate(plan.memory.regions):
            if region.arena not in arenas:
                yield f"in arena {region.arena}", show("value", i)
    for arena in (*plan.memory.lower_bound, *plan.memory.hinted_bound):
        if arena not in arenas:
            yield f"lower bound of arena {arena}", "memory"


def _in_commands(
    plan: Plan,
    all_effects: Sequence[Effects],
    inside: set[Region],
    odd: list[tuple[int, Step]],
) -> Iterator[Finding]:
    streams, transfers = len(plan.streams.streams), len(plan.splits.transfers)
    for i, (command, effects) in enumerate(zip(plan.commands, all_effects, strict=True)):
        if command.id != i:
            what = f"{show('command', i)} calls itself {command.id}"
            yield Finding("id", what, i, "number from zero")
        for q in effects.streams:
            if not 0 <= q < streams:
                yield Finding("id", f"{show('command', i)} is on unknown stream {q}", i)
        events = effects.records or effects.waits
        if events and min(*effects.records, *effects.waits, 0) < 0:
            yield Finding("id", f"{show('command', i)} names an event below zero", i)
        if effects.transfer != -1:
            if not 0 <= effects.transfer < transfers:
                what = f"{show('command', i)} is unknown transfer {effects.transfer}"
                yield Finding("id", what, i)
            if not inside.issuperset(effects.steps[0].operands):
                yield from _bad_regions(plan, i, effects.steps[0])
        elif effects.steps:
            yield from _in_steps(plan, i, effects.steps, odd)
        for region in effects.host_reads:
            if problem := _bad_region(plan, region):
                yield Finding("region", f"{show('command', i)} {problem}", i, "", *region.span)


def _in_steps(
    plan: Plan, i: int, steps: Sequence[Step], odd: list[tuple[int, Step]]
) -> Iterator[Finding]:
    bindings, home = plan.splits.bindings, plan.memory.regions.__getitem__
    count = len(bindings)
    for step in steps:
        node, operands, modes = step
        if 0 <= node < count:  # mostly all of each value
            bound = bindings[node]
            if len(bound) == len(modes) and operands == tuple(map(home, bound)):
                continue
        if node == -1:
            yield from _bad_regions(plan, i, step)
        elif not 0 <= node < count:
            yield Finding("id", f"{show('command', i)} runs unknown node {node}", i)
        elif not len(operands) == len(modes) == len(bindings[node]):
            what = f"{show('command', i)} runs {show('node', node)} with a wrong number of operands"
            yield Finding("id", what, i)
        else:
            yield from _bad_regions(plan, i, step)
            odd.append((i, step))


def _outside(plan: Plan, i: int, step: Step) -> Iterator[Finding]:
    """Yield operands that do not lie within their values."""
    for region, value in zip(step.operands, plan.splits.bindings[step.node], strict=True):
        home = plan.memory.regions[value]
        inside = home.offset <= region.offset and region.end <= home.end
        if region.arena != home.arena or not inside:
            who = f"{show('command', i)} {show('node', step.node)}"
            what = f"{who} uses {region.text} as {show('value', value)}, which is not there"
            yield Finding("region", what, i, f"it lies at {home.text}", *region.span)


def _bad_regions(plan: Plan, i: int, step: Step) -> Iterator[Finding]:
    for region in step.operands:
        if problem := _bad_region(plan, region):
            name = show("command", i)
            who = f"{name} {show('node', step.node)}" if step.node >= 0 else name
            yield Finding("region", f"{who} {problem}", i, "", *region.span)


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


# --- traces ---------------------------------------------------------------------------------------


def find_unknown_in_trace(trace: schema.Trace) -> list[Finding]:
    """Return actors and memory of a trace that are named and do not exist, and bytes outside."""
    findings = [
        Finding("id", f"actor {i} calls itself {actor.id}", -1, "number from zero")
        for i, actor in enumerate(trace.actors)
        if actor.id != i
    ]
    sizes: dict[int, int] = {}
    for i, entry in enumerate(trace.entries):
        if isinstance(entry, schema.Alloc):
            if entry.memory in sizes:
                what = f"#{i} allocates memory {entry.memory} again"
                findings.append(Finding("id", what, i, "give each allocation a number of its own"))
            if entry.nbytes < 0:
                what = f"#{i} allocates {entry.nbytes} bytes"
                findings.append(Finding("region", what, i))
            sizes[entry.memory] = entry.nbytes
    for i, entry in enumerate(trace.entries):
        findings += _in_entry(trace, i, entry, sizes)
    return findings


def _in_entry(
    trace: schema.Trace, i: int, entry: schema.Entry, sizes: dict[int, int]
) -> Iterator[Finding]:
    actors = len(trace.actors)
    if not 0 <= entry.actor < actors:
        yield Finding("id", f"#{i} is of unknown actor {entry.actor}", i)
        return
    by = schema.NOBODY if isinstance(entry, schema.Alloc) else entry.by
    if by != schema.NOBODY and not (0 <= by < actors and trace.actors[by].kind == "host"):
        yield Finding("id", f"#{i} was enqueued by {by}, which is not a host thread", i)
    if (
        isinstance(entry, schema.Sync)
        and entry.stream is not None
        and not 0 <= entry.stream < actors
    ):
        yield Finding("id", f"#{i} waits for unknown actor {entry.stream}", i)
    if (
        isinstance(entry, schema.CaptureBegin | schema.CaptureEnd)
        and trace.actors[entry.actor].kind == "host"
    ):
        yield Finding("id", f"#{i} captures {trace.actors[entry.actor].name}, not a stream", i)
    if isinstance(entry, schema.Free) and entry.memory not in sizes:
        yield Finding("id", f"#{i} frees unknown memory {entry.memory}", i)
    if isinstance(entry, schema.Work):
        for access in (*entry.reads, *entry.writes):
            if problem := _bad_access(access, sizes):
                yield Finding("region", f"#{i} {entry.label} {problem}", i, "", *access[:3])


def _bad_access(access: schema.Access, sizes: dict[int, int]) -> str:
    if access.memory not in sizes:
        return f"touches unknown memory {access.memory}"
    if not 0 <= access.start <= access.end <= sizes[access.memory]:
        size = sizes[access.memory]
        return f"touches [{access.start}:{access.end}] of memory of {size} bytes"
    return ""
