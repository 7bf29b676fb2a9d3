"""Checks of the command list against the artifacts it was made from, by itself."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, assert_never

from ggsched.errors import PlanError
from ggsched.ids import show
from ggsched.plan.bundle import Plan
from ggsched.plan.command import (
    Barrier,
    Command,
    Copy,
    CopyRows,
    Download,
    Fill,
    HostSync,
    Launch,
    Record,
    Upload,
    Wait,
)
from ggsched.plan.effects import Hazard, Step
from ggsched.plan.fusions import run_order
from ggsched.plan.memory import Region
from ggsched.plan.splits import HOST, Transfer, Value
from ggsched.plan.verify_references import verify_references
from ggsched.plan.verify_rows import verify_copy_rows

_HOST_COMMAND: Final = -1


def verify_commands(plan: Plan) -> None:
    """Check the commands of a plan.

    Raises:
        PlanError: ids that are not dense, a stream of the wrong device, an event that is not
            recorded exactly once before each wait for it, a split or a transfer that does not
            appear exactly once with the bytes and in the order of the artifacts, a wait whose
            hazard is none.
    """
    verify_references(plan)
    progress = _Progress(plan)
    for i, command in enumerate(plan.commands):
        where = show("command", i)
        if command.id != i:
            raise PlanError(f"has the id {command.id}", where=where, why="ids are dense")
        if not 0 <= command.stream < len(plan.streams.streams):
            raise PlanError(f"on stream {command.stream}, which does not exist", where=where)
        _verify_command(progress, command, where)
    if progress.transfer != len(plan.splits.transfers):
        raise PlanError(f"transfer {progress.transfer} does not appear", where="commands")
    if progress.split != len(plan.splits.splits):
        raise PlanError(f"{show('split', progress.split)} does not appear", where="commands")
    for command in plan.commands:
        if isinstance(command, Wait | Barrier | HostSync):
            _verify_hazard(progress, command)


class _Progress:
    """How far the walk over the commands has come.

    Attributes:
        plan: The plan.
        transfer: The transfer that comes next.
        split: The split that is under way or comes next.
        due: Its nodes that have not been launched yet, by stream; empty before the first.
        recorded: Position of the record of each event.
        order: Nodes in the order in which they run.
        whole: Number of nodes of each group, by its last node.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.transfer = 0
        self.split = 0
        self.due: dict[int, list[int]] = {}
        self.recorded: dict[int, int] = {}
        self.order = run_order(len(plan.nodes), plan.fusions)
        self.whole = {f.nodes[-1]: len(f.nodes) for f in plan.fusions}
        self.host_writes = tuple(plan.memory.regions[s.value] for s in plan.inputs)
        outputs = (plan.memory.regions[s.value] for s in plan.outputs)
        self.host_reads = (*outputs, *_snapshots(plan))


def _snapshots(plan: Plan) -> Iterator[Region]:
    """Yield what is read while an upload is enqueued, as if by the host (CPY-4)."""
    for command in plan.commands:
        if isinstance(command, Upload) and 0 <= command.stream < len(plan.streams.streams):
            device = plan.streams.streams[command.stream].device
            if plan.devices[device].snapshots_uploads:
                yield command.src
        elif isinstance(command, CopyRows):
            yield command.ids


def _verify_command(progress: _Progress, command: Command, where: str) -> None:
    match command:
        case Upload() | Download() | Copy() | CopyRows() | Fill():
            _verify_transfer(progress, command, where)
        case Launch():
            _verify_launch(progress, command, where)
        case Record():
            if command.event in progress.recorded or command.event < 0:
                raise PlanError(f"records event {command.event} again", where=where)
            _need_events(progress.plan, command.stream, where)
            progress.recorded[command.event] = command.id
        case Wait():
            _need_recorded(progress, command.event, where)
            _need_events(progress.plan, command.stream, where)
        case HostSync():
            if command.event is not None:
                _need_recorded(progress, command.event, where)
                record = progress.plan.commands[progress.recorded[command.event]]
                if record.stream != command.stream:
                    what = f"waits for an event of {show('stream', record.stream)}"
                    raise PlanError(what, where=where, why=f"says {show('stream', command.stream)}")
        case Barrier():
            facts = progress.plan.devices[_device(progress.plan, command.stream)]
            if facts.copy_order != "barrier":
                why = f"its copy order is {facts.copy_order!r}"
                raise PlanError(f"a barrier on {facts.name}", where=where, why=why)
        case _:
            assert_never(command)


def _device(plan: Plan, stream: int) -> int:
    return plan.streams.streams[stream].device


def _need_events(plan: Plan, stream: int, where: str) -> None:
    facts = plan.devices[_device(plan, stream)]
    if not facts.has_events:
        raise PlanError(f"an event on {facts.name}, which has none", where=where)


def _need_recorded(progress: _Progress, event: int, where: str) -> None:
    if event not in progress.recorded:
        why = "no earlier command records it (EVT-3)"
        raise PlanError(f"waits for {show('event', event)}", where=where, why=why)


def _verify_transfer(
    progress: _Progress, c: Upload | Download | Copy | CopyRows | Fill, where: str
) -> None:
    plan = progress.plan
    if c.transfer != progress.transfer or c.transfer >= len(plan.splits.transfers):
        raise PlanError(f"transfer {c.transfer} after {progress.transfer - 1}", where=where)
    progress.transfer += 1
    t = plan.splits.transfers[c.transfer]
    if t.before != progress.split:
        what = f"transfer {t.id} when {show('split', progress.split)} comes next"
        raise PlanError(what, where=where, why=f"it belongs before {show('split', t.before)}")
    src, dst = plan.splits.values[t.src], plan.splits.values[t.dst]
    kind = _kind_of(src, dst, t)
    if type(c) is not kind:
        what = f"transfer {t.id} is a {kind.__name__.lower()}"
        raise PlanError(what, where=where, why=f"from device {src.device} to {dst.device}")
    if c.stream != plan.streams.of_transfer[t.id]:
        what = f"on {show('stream', c.stream)}"
        raise PlanError(what, where=where, why=f"assigned: {plan.streams.of_transfer[t.id]}")
    if isinstance(c, Fill):
        if (c.dst, c.pattern) != (plan.memory.regions[t.dst], t.pattern):
            why = f"transfer {t.id} fills {plan.memory.regions[t.dst]} with {t.pattern!r}"
            raise PlanError(f"fills {c.dst} with {c.pattern!r}", where=where, why=why)
        return
    base = plan.memory.regions[t.src]
    wanted = Region(base.arena, base.offset + dst.start - src.start, dst.nbytes)
    if (c.src, c.dst) != (wanted, plan.memory.regions[t.dst]):
        why = f"transfer {t.id} goes from {wanted} to {plan.memory.regions[t.dst]}"
        raise PlanError(f"from {c.src} to {c.dst}", where=where, why=why)
    if isinstance(c, CopyRows):
        verify_copy_rows(plan, c, where)


def _kind_of(src: Value, dst: Value, t: Transfer) -> type[Command]:
    if t.rows is not None:
        return CopyRows
    if t.pattern is not None:
        return Fill
    return Upload if src.device == HOST else Download if dst.device == HOST else Copy


def _verify_launch(progress: _Progress, c: Launch, where: str) -> None:
    plan = progress.plan
    if c.split != progress.split or c.split >= len(plan.splits.splits):
        raise PlanError(f"split {c.split} after {progress.split - 1}", where=where)
    due = progress.transfer
    if due < len(plan.splits.transfers) and plan.splits.transfers[due].before <= c.split:
        raise PlanError(f"launched without transfer {due} before it", where=where)
    _verify_nodes(progress, c, where)
    reads, writes = _Cover(c.reads), _Cover(c.writes)
    for step in c.steps:
        _verify_step(plan, step, reads, writes, where)


def _verify_nodes(progress: _Progress, c: Launch, where: str) -> None:
    """Check that a launch has the next nodes of its split that are its stream's."""
    plan, part = progress.plan, progress.plan.splits.splits[c.split]
    if not progress.due:
        for i in progress.order[part.first : part.end]:
            progress.due.setdefault(plan.streams.of_node[i], []).append(i)
    due = progress.due.get(c.stream, [])
    steps = [s.node for s in c.steps]
    if not steps or due[: len(steps)] != steps:
        why = f"{show('split', part.id)} has there: {', '.join(show('node', i) for i in due[:4])}"
        what = f"its steps are not the nodes that come next on {show('stream', c.stream)}"
        raise PlanError(what, where=where, why=why)
    for at, last in enumerate(steps, 1):
        size = progress.whole.get(last, 1)
        if at < size:  # as steps follow the order, a launch that ends too early is found here too
            what = f"has {at} of the {size} nodes of the group that {show('node', last)} ends"
            raise PlanError(what, where=where, why="a group is launched as one")
    del due[: len(steps)]
    if not any(progress.due.values()):
        progress.due = {}
        progress.split += 1


def _verify_step(plan: Plan, s: Step, reads: "_Cover", writes: "_Cover", where: str) -> None:
    bound = plan.splits.bindings[s.node]
    if not len(bound) == len(s.operands) == len(s.modes):
        raise PlanError(f"operands of {show('node', s.node)} do not match", where=where)
    for region, vid, mode in zip(s.operands, bound, s.modes, strict=True):
        home = plan.memory.regions[vid]
        inside = home.offset <= region.offset and region.end <= home.end
        if region.arena != home.arena or not inside:
            what = f"{show('node', s.node)} touches {region}"
            raise PlanError(what, where=where, why=f"{show('value', vid)} lies at {home}")
        cover = reads if mode == "r" else writes
        if mode != "-" and not cover.holds(region):
            what = f"{show('node', s.node)} touches {region}, which is not declared"
            raise PlanError(what, where=where)


class _Cover:
    """A set of merged, sorted regions."""

    def __init__(self, regions: Sequence[Region]) -> None:
        self._regions = regions
        self._starts = [(r.arena, r.offset) for r in regions]

    def holds(self, region: Region) -> bool:
        """Whether all bytes of a region lie in one of these."""
        at = bisect_right(self._starts, (region.arena, region.offset)) - 1
        if at < 0:
            return region.nbytes == 0
        near = self._regions[at]
        return region.nbytes == 0 or (near.arena == region.arena and region.end <= near.end)


def _verify_hazard(progress: _Progress, c: Wait | Barrier | HostSync) -> None:
    plan, hazard, where = progress.plan, c.hazard, show("command", c.id)
    count = len(plan.commands)
    in_range = -1 <= hazard.earlier < count and -1 <= hazard.later < count
    if not in_range or not 0 <= hazard.start < hazard.end:
        raise PlanError(f"its hazard is none: {hazard}", where=where)
    earlier_writes, later_writes = hazard.kind != "WAR", hazard.kind != "RAW"
    ok = _touches(progress, hazard.earlier, hazard, earlier_writes)
    if not ok or not _touches(progress, hazard.later, hazard, later_writes):
        raise PlanError(f"commands of its hazard do not touch these bytes: {hazard}", where=where)
    if not _is_between(progress, c):
        why = "the earlier command, then the wait, then the later command"
        raise PlanError(f"its hazard is out of order: {hazard}", where=where, why=why)
    if hazard.later == _HOST_COMMAND:
        if not isinstance(c, HostSync):
            raise PlanError("only a host sync holds back the host", where=where)
    elif not isinstance(c, HostSync) and plan.commands[hazard.later].stream != c.stream:
        what = f"does not hold back {show('command', hazard.later)}"
        raise PlanError(what, where=where, why="that runs on another stream")


def _is_between(progress: _Progress, c: Wait | Barrier | HostSync) -> bool:
    """Whether the wait is enqueued after the earlier and before the later command.

    Across runs it may stand at the end of the one or at the beginning of the other; an event
    must have been recorded after the earlier command in the same run.
    """
    earlier, later = c.hazard.earlier, c.hazard.later
    covered = c.id
    if not isinstance(c, Barrier) and c.event is not None:
        covered = progress.recorded[c.event]
    if not c.hazard.next_run:
        host_reads = c.hazard.kind == "RAW"  # the host writes first of all and reads last
        last = c.id + 1 if later == _HOST_COMMAND and host_reads else later
        return earlier < covered <= c.id < last
    at_end = earlier < covered
    at_start = later > c.id and covered == c.id
    return at_end or at_start


def _touches(progress: _Progress, command: int, hazard: Hazard, writes: bool) -> bool:
    """Whether a command, or the host, touches bytes of the hazard in that way."""
    if command == _HOST_COMMAND:
        regions = progress.host_writes if writes else progress.host_reads
    else:
        c = progress.plan.commands[command]
        if isinstance(c, Upload | Download | Copy):
            regions = (c.dst,) if writes else (c.src,)
        elif isinstance(c, CopyRows):
            kept = () if c.cache is None else (c.cache,)
            regions = (c.dst, *kept) if writes else (c.src, c.ids)
        elif isinstance(c, Fill):
            regions = (c.dst,) if writes else ()
        elif isinstance(c, Launch):
            regions = c.writes if writes else c.reads
        else:
            return False
    return any(
        r.arena == hazard.arena and r.offset < hazard.end and hazard.start < r.end for r in regions
    )
