"""The program of a plan: is each node and transfer carried out once, where and as the plan says?

The artifacts of a plan say which nodes run in which split, on which stream, on which values, and
where these lie. The commands have to carry out all of it, once, and nothing else.
"""

from collections.abc import Iterator, Sequence

from ggsched.ids import show
from ggsched.ir.intervals import overlap
from ggsched.plan.bundle import Plan
from ggsched.plan.command import Command, Copy, CopyRows, Download, Fill, Launch, Upload
from ggsched.plan.effects import Effects
from ggsched.plan.memory import Region
from ggsched.plan.splits import HOST, Transfer
from ggsched.sanitize.events import EventStream, Span
from ggsched.sanitize.from_plan import splits_of_nodes
from ggsched.sanitize.report import Finding, FindingKind
from ggsched.sanitize.spans import merge, subtract


def find_unfaithful(
    plan: Plan, all_effects: Sequence[Effects], stream: EventStream
) -> list[Finding]:
    """Return commands that do not carry out what the artifacts of their plan say."""
    walk = _Walk(plan)
    for command, effects in zip(plan.commands, all_effects, strict=True):
        if effects.transfer >= 0:
            walk.transfer(command, effects)
        elif effects.steps:
            walk.nodes(command, effects)
    walk.end()
    walk.findings += _values_out_of_place(plan)
    walk.findings += _undeclared(all_effects, stream)
    return walk.findings


class _Walk:
    """The walk over the commands.

    Attributes:
        findings: What was found.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._split_of = splits_of_nodes(plan)
        self._launched: dict[int, int] = {}
        self._moved: dict[int, int] = {}
        self.findings: list[Finding] = []

    def transfer(self, command: Command, effects: Effects) -> None:
        """Compare a command with its transfer."""
        plan = self._plan
        t = plan.splits.transfers[effects.transfer]
        if isinstance(command, Fill):
            self.findings += _misfilled(plan, command, t)
        elif t.has_source:
            self.findings += _misplaced(plan, command.id, effects, t)
        if t.id in self._moved:
            name, first = show("command", command.id), show("command", self._moved[t.id])
            what = f"{name} carries out transfer {t.id}, as {first} does"
            self._add("launch", command.id, what, "carry it out once")
        self._moved[t.id] = command.id
        if kind := _wrong_kind(plan, command, t):
            name = show("command", command.id)
            what = f"{name} is not a {kind}, which transfer {t.id} is"
            self._add("launch", command.id, what, f"make it a {kind}")
        on, due = effects.streams[0], plan.streams.of_transfer[t.id]
        if on != due:
            name = show("command", command.id)
            what = f"{name} is on {show('stream', on)}, transfer {t.id} on {show('stream', due)}"
            self._add("launch", command.id, what, f"put it on {show('stream', due)}")

    def nodes(self, command: Command, effects: Effects) -> None:
        """Compare the steps of a command with their nodes."""
        plan, i, on = self._plan, command.id, effects.streams[0]
        split = command.split if isinstance(command, Launch) else None
        of_node, split_of, launched = plan.streams.of_node, self._split_of, self._launched
        for node, _, _ in effects.steps:
            if node < 0:
                continue
            is_elsewhere = split is not None and split != split_of[node]
            if is_elsewhere or on != of_node[node] or node in launched:
                self._wrong_launch(i, node, on, split)
            launched[node] = i
        self._on_its_device(i, effects)

    def _wrong_launch(self, i: int, node: int, on: int, split: int | None) -> None:
        runs = f"{show('command', i)} runs {show('node', node)}"
        if node in self._launched:
            first = show("command", self._launched[node])
            self._add("launch", i, f"{runs}, as {first} does", "run it once")
        due, part = self._plan.streams.of_node[node], self._split_of[node]
        if on != due:
            where = f"on {show('stream', on)} instead of {show('stream', due)}"
            self._add("launch", i, f"{runs} {where}")
        if split is not None and part != split:
            what = f"{runs} as of {show('split', split)} instead of {show('split', part)}"
            self._add("launch", i, what)

    def end(self) -> None:
        """Name what no command carries out."""
        plan = self._plan
        for node in range(len(plan.nodes)):
            if node not in self._launched:
                self._add("launch", -1, f"no command runs {show('node', node)}", "launch it")
        for t in plan.splits.transfers:
            if t.id not in self._moved:
                self._add("launch", -1, f"no command carries out transfer {t.id}", "carry it out")

    def _on_its_device(self, i: int, effects: Effects) -> None:
        """Check that nodes touch memory of their own device, or host memory that it shares."""
        plan = self._plan
        device = plan.streams.streams[effects.streams[0]].device
        allowed = {device, HOST} if plan.devices[device].is_host else {device}
        for arena in {r[0] for _, operands, _ in effects.steps for r in operands}:
            where = plan.memory.arenas[arena].device
            if where >= 0 and where != device and self._may_read(device, where, arena, effects):
                continue
            if where not in allowed:
                place = f"{show('arena', arena)}, which is not in its memory"
                what = f"{show('command', i)} on {plan.devices[device].name} uses {place}"
                self._add("region", i, what, "copy it", Region(arena, 0, 0))

    def _may_read(self, device: int, where: int, arena: int, effects: Effects) -> bool:
        """Whether the command only reads an arena of a peer (COL-1)."""
        here, there = self._plan.devices[device], self._plan.devices[where]
        if here.backend != there.backend or not (here.reads_peers and there.reads_peers):
            return False
        return all(
            region.arena != arena or mode not in "wp"
            for _, operands, modes in effects.steps
            for region, mode in zip(operands, modes, strict=True)
        )

    def _add(
        self, kind: FindingKind, i: int, what: str, fix: str = "", region: Region | None = None
    ) -> None:
        where = (-1, 0, 0) if region is None else (region.arena, region.offset, region.end)
        self.findings.append(Finding(kind, what, i, fix, *where))


# --- transfers ------------------------------------------------------------------------------------


def _wrong_kind(plan: Plan, command: Command, t: Transfer) -> str:
    """Return what a command should be; empty if it is that."""
    src, dst = plan.splits.values[t.src], plan.splits.values[t.dst]
    due: type[Command] = Copy
    if t.rows is not None:
        due = CopyRows
    elif t.pattern is not None:
        due = Fill
    elif src.device == HOST:
        due = Upload
    elif dst.device == HOST:
        due = Download
    return "" if type(command) is due else due.__name__.lower()


def _misplaced(plan: Plan, i: int, effects: Effects, t: Transfer) -> Iterator[Finding]:
    """Yield how a transfer moves other bytes than those of its values."""
    name = show("command", i)
    source, target = plan.splits.values[t.src], plan.splits.values[t.dst]
    home, to = plan.memory.regions[t.src], plan.memory.regions[t.dst]
    ((_, (src, *_, dst), _),) = effects.steps
    skipped = target.start - source.start
    if source.storage != target.storage or skipped < 0 or target.end > source.end:
        missing, held = show("value", target.id), show("value", source.id)
        what = f"{name} fills {missing} from {held}, which does not hold it"
        yield Finding("region", what, i, "", *_bytes(src))
    elif dst != to or src != (home.arena, home.offset + skipped, to.nbytes):
        begin = home._replace(offset=home.offset + skipped)
        yield from _moves(i, src, dst, begin, to, t)
    if src.arena == dst.arena and overlap(src, dst):
        what = f"{name} copies bytes onto themselves (CPY-3)"
        yield Finding("region", what, i, "", *_bytes(dst))
    arenas = plan.memory.arenas
    here = plan.streams.streams[effects.streams[0]].device
    if here != arenas[src.arena].device and here != arenas[dst.arena].device:
        what = f"{name} runs on {plan.devices[here].name}, which holds neither end"
        yield Finding("region", what, i, "run it on a stream of one end (CPY-1)")


def _misfilled(plan: Plan, command: Fill, t: Transfer) -> Iterator[Finding]:
    """Yield how a fill sets other bytes than those of its value, or sets them otherwise."""
    name, due = show("command", command.id), plan.memory.regions[t.dst]
    if t.pattern is None or command.pattern != t.pattern:
        wanted = "a copy" if t.pattern is None else f"a fill with {t.pattern.hex()}"
        what = f"{name} fills with {command.pattern.hex()}, but transfer {t.id} is {wanted}"
        yield Finding("region", what, command.id, "", *_bytes(command.dst))
    if command.dst != due:
        what = f"{name} fills {command.dst.text} instead of {show('value', t.dst)} at {due.text}"
        yield Finding("region", what, command.id, "fill all of it", *_bytes(command.dst))
    here = plan.streams.streams[command.stream].device
    if here != plan.memory.arenas[command.dst.arena].device:
        what = f"{name} runs on {plan.devices[here].name}, which does not hold its bytes"
        yield Finding("region", what, command.id, "run it on their own device (FIL-3)")


def _moves(
    i: int, src: Region, dst: Region, begin: Region, to: Region, t: Transfer
) -> Iterator[Finding]:
    """Yield in what a transfer differs from one that starts at ``begin`` and fills ``to``."""
    name = show("command", i)
    if src.nbytes != dst.nbytes:
        what = f"{name} copies {src.nbytes} bytes onto {dst.nbytes}"
        yield Finding("region", what, i, "", *_bytes(dst))
    elif dst.nbytes < to.nbytes:
        what = f"{name} fills only {dst.nbytes} bytes of {show('value', t.dst)}"
        yield Finding("region", what, i, "copy all of it", *_bytes(dst))
    ends = (("reads", src, begin, t.src), ("fills", dst, to, t.dst))
    for verb, region, due, vid in ends:
        if region[:2] != due[:2] or region.nbytes > to.nbytes:
            right = due._replace(nbytes=to.nbytes).text
            what = f"{name} {verb} {region.text} instead of {show('value', vid)} at {right}"
            yield Finding("region", what, i, "", *_bytes(region))


def _bytes(region: Region) -> tuple[int, int, int]:
    return region.arena, region.offset, region.end


# --- memory ---------------------------------------------------------------------------------------


def _values_out_of_place(plan: Plan) -> Iterator[Finding]:
    """Yield values off their alignment, in caches, or of another length than their place."""
    arenas = plan.memory.arenas
    alignments = [0 if a.kind == "cache" else max(a.alignment, 1) for a in arenas]
    for value, region in zip(plan.splits.values, plan.memory.regions, strict=True):
        at, offset, nbytes = region
        if nbytes == value.end - value.start and alignments[at] and not offset % alignments[at]:
            continue
        arena = arenas[at]
        is_aligned = not nbytes or offset % max(arena.alignment, 1) == 0
        name = show("value", value.id)
        if not is_aligned:
            what = f"{name} lies at {region.text}, which is not aligned to {arena.alignment}"
            yield Finding("region", what, -1, "align it", *_bytes(region))
        if region.nbytes != value.end - value.start:
            what = f"{name} of {value.nbytes} bytes lies at {region.text}"
            yield Finding("region", what, -1, "give it all of its bytes", *_bytes(region))
        if arena.kind == "cache":
            what = f"{name} lies in a cache, whose rows are kept from run to run"
            yield Finding("reuse", what, -1, "give it memory of its own", *_bytes(region))
    for arena in plan.memory.arenas:
        if arena.device != HOST and arena.alignment % plan.devices[arena.device].alignment:
            facts = plan.devices[arena.device]
            what = f"{show('arena', arena.id)} is aligned to {arena.alignment}, {facts.name} to"
            yield Finding("region", f"{what} {facts.alignment}", -1, "align it", arena.id)


def _undeclared(all_effects: Sequence[Effects], stream: EventStream) -> Iterator[Finding]:
    """Yield commands that declare less than their steps touch."""
    for event in stream.events:
        if event.kind != "work" or event.source < 0 or event.is_copy or not event.actor:
            continue
        effects = all_effects[event.source]
        for mode, touched, declared in (
            ("reads", event.reads, effects.reads),
            ("writes", event.writes, effects.writes),
        ):
            if [*touched] == [(arena, start, start + n) for arena, start, n in declared]:
                continue
            holes: list[Span] = merge((r.arena, r.offset, r.end) for r in declared)
            for arena, start, end in subtract(touched, holes)[:1]:
                where = f"{show('arena', arena)}[{start}:{end}]"
                what = f"{show('command', event.source)} {mode} {where} without declaring it"
                fix = "declare the union of what the steps touch"
                yield Finding("declared", what, event.source, fix, arena, start, end)
