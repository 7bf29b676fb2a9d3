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
from ggsched.sanitize.report import Finding, instead
from ggsched.sanitize.spans import merge, subtract


def find_unfaithful(
    plan: Plan, all_effects: Sequence[Effects], stream: EventStream
) -> list[Finding]:
    """Return commands that do not carry out what the artifacts of their plan say."""
    walk = _CarriedOut(plan)
    for command, effects in zip(plan.commands, all_effects, strict=True):
        if effects.transfer >= 0:
            walk.transfer(command, effects)
        elif effects.steps:
            walk.nodes(command, effects)
    walk.end()
    walk.findings += _values_out_of_place(plan)
    walk.findings += _undeclared(all_effects, stream)
    return walk.findings


class _CarriedOut:
    """Which command carries out each node and transfer.

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
        plan, name = self._plan, show("command", command.id)
        t = plan.splits.transfers[effects.transfer]
        if isinstance(command, Fill):
            self.findings += _misfilled(plan, command, t)
        elif t.has_source:
            self.findings += _misplaced(plan, command.id, effects, t)
        if t.id in self._moved:
            first = show("command", self._moved[t.id])
            self._add(f"{name} carries out transfer {t.id}, as {first} does", command.id)
        self._moved[t.id] = command.id
        says, due = f"{name} of transfer {t.id} is", _command_of(plan, t)
        if type(command) is not due:
            self._differ(f"{says} a", _name_of(type(command)), _name_of(due), command.id)
        on, stream = effects.streams[0], plan.streams.of_transfer[t.id]
        if on != stream:
            self._differ(f"{says} on", show("stream", on), show("stream", stream), command.id)

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
            self._add(f"{runs}, as {show('command', self._launched[node])} does", i)
        due, part = self._plan.streams.of_node[node], self._split_of[node]
        if on != due:
            self._differ(f"{runs} on", show("stream", on), show("stream", due), i)
        if split is not None and split != part:
            self._differ(f"{runs} as of", show("split", split), show("split", part), i)

    def end(self) -> None:
        """Name what no command carries out."""
        for node in range(len(self._plan.nodes)):
            if node not in self._launched:
                self._add(f"no command runs {show('node', node)}")
        for t in self._plan.splits.transfers:
            if t.id not in self._moved:
                self._add(f"no command carries out transfer {t.id}")

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
                self.findings.append(Finding("region", what, i, "copy it", arena))

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

    def _differ(self, says: str, found: str, due: str, i: int) -> None:
        self.findings.append(instead("launch", says, found, due, i))

    def _add(self, what: str, i: int = -1) -> None:
        self.findings.append(Finding("launch", what, i, "carry it out once"))


# --- transfers ------------------------------------------------------------------------------------


def _command_of(plan: Plan, t: Transfer) -> type[Command]:
    """Return the command that carries out a transfer."""
    src, dst = plan.splits.values[t.src], plan.splits.values[t.dst]
    if t.rows is not None:
        return CopyRows
    if t.pattern is not None:
        return Fill
    if src.device == HOST:
        return Upload
    return Download if dst.device == HOST else Copy


def _name_of(command: type[Command]) -> str:
    return command.__name__.lower()


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
        yield Finding("region", what, i, "", *src.span)
    else:
        begin = home._replace(offset=home.offset + skipped, nbytes=to.nbytes)
        for verb, region, due, vid in (("reads", src, begin, t.src), ("fills", dst, to, t.dst)):
            if region != due:
                yield _elsewhere(f"{name} {verb}", region, due, vid, i)
    if src.arena == dst.arena and overlap(src, dst):
        what = f"{name} copies bytes onto themselves (CPY-3)"
        yield Finding("region", what, i, "", *dst.span)
    arenas = plan.memory.arenas
    ends = [arenas[region.arena].device for region in (src, dst)]
    yield from _not_at(plan, f"{name} (CPY-1)", effects.streams[0], ends, i)


def _misfilled(plan: Plan, command: Fill, t: Transfer) -> Iterator[Finding]:
    """Yield how a fill sets other bytes than those of its value, or sets them otherwise."""
    i, dst = command.id, command.dst
    name, due = show("command", i), plan.memory.regions[t.dst]
    if command.pattern != t.pattern:
        wanted = "a copy" if t.pattern is None else t.pattern.hex()
        says, found = f"the pattern of {name}, transfer {t.id}, is", command.pattern.hex()
        yield instead("region", says, found, wanted, i, at=dst.span)
    if dst != due:
        yield _elsewhere(f"{name} fills", dst, due, t.dst, i)
    ends = [plan.memory.arenas[dst.arena].device]
    yield from _not_at(plan, f"{name} (FIL-3)", command.stream, ends, i)


def _elsewhere(says: str, found: Region, due: Region, value: int, i: int) -> Finding:
    """Return that a command touches other bytes than those of a value."""
    wanted = f"{show('value', value)} at {due.text}"
    return instead("region", says, found.text, wanted, i, at=found.span)


def _not_at(plan: Plan, name: str, stream: int, ends: Sequence[int], i: int) -> Iterator[Finding]:
    """Yield that a command runs on a device that holds none of its bytes."""
    here = plan.streams.streams[stream].device
    if here not in ends:
        due = " or ".join(plan.devices[device].name for device in ends if device != HOST)
        yield instead("region", f"{name} runs on", plan.devices[here].name, due, i)


# --- memory ---------------------------------------------------------------------------------------


def _values_out_of_place(plan: Plan) -> Iterator[Finding]:
    """Yield values and arenas off their alignment, and values in places of another length."""
    arenas = plan.memory.arenas
    for value, region in zip(plan.splits.values, plan.memory.regions, strict=True):
        alignment = max(arenas[region.arena].alignment, 1)
        is_aligned = not region.nbytes or region.offset % alignment == 0
        if not is_aligned or region.nbytes != value.nbytes:
            due = f"{value.nbytes} bytes aligned to {alignment}"
            says = f"the place of {show('value', value.id)} is"
            yield instead("region", says, region.text, due, at=region.span)
    for arena in arenas:
        if arena.device != HOST and arena.alignment % plan.devices[arena.device].alignment:
            facts = plan.devices[arena.device]
            says = f"the alignment of {show('arena', arena.id)} on {facts.name} is"
            yield instead("region", says, arena.alignment, facts.alignment, at=(arena.id, 0, 0))


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
            holes: list[Span] = merge(r.span for r in declared)
            for arena, start, end in subtract(touched, holes)[:1]:
                where = f"{show('arena', arena)}[{start}:{end}]"
                what = f"{show('command', event.source)} {mode} {where} without declaring it"
                fix = "declare the union of what the steps touch"
                yield Finding("declared", what, event.source, fix, arena, start, end)
