"""Rows: is what was chosen by ids read by the same ids, and by nothing else?

A copy of rows leaves the other rows of its destination undefined. A reader of the destination may
take rows of it only, by ids of which the host knew the same version. For the order of accesses a
copy of rows counts as reading all of its source and writing all of its destination.
"""

from collections.abc import Iterator, Sequence

from ggsched.ids import show
from ggsched.ir.ops import OPS
from ggsched.plan.bundle import Plan
from ggsched.plan.command import CopyRows
from ggsched.plan.effects import Effects, Step
from ggsched.plan.memory import Region
from ggsched.plan.splits import HOST
from ggsched.sanitize.report import Finding


def find_bad_rows(plan: Plan, all_effects: Sequence[Effects]) -> list[Finding]:
    """Return copies of other rows than those of their transfer, and reads of rows not copied."""
    if not any(isinstance(command, CopyRows) for command in plan.commands):
        return []
    findings: list[Finding] = []
    walk = _Walk(plan)
    for command, effects in zip(plan.commands, all_effects, strict=True):
        if isinstance(command, CopyRows):
            findings += _misplaced(plan, command)
            walk.copied(command)
        elif effects.transfer >= 0:
            walk.filled.pop(plan.splits.transfers[effects.transfer].dst, None)
        else:
            for step in effects.steps:
                if step.node >= 0:
                    walk.step(command.id, step)
    return findings + walk.findings


def _misplaced(plan: Plan, command: CopyRows) -> Iterator[Finding]:
    """Yield how a command copies other rows than those of its transfer, or keeps them elsewhere."""
    name, t = show("command", command.id), plan.splits.transfers[command.transfer]
    if t.rows is None:
        what = f"{name} copies rows of {show('value', t.dst)}, of which all is needed"
        yield Finding("region", what, command.id, "copy all of it")
        return
    ids = plan.memory.regions[t.rows.ids]
    if command.ids != ids or plan.memory.arenas[ids.arena].device != HOST:
        what = f"{name} reads ids at {command.ids.text} instead of {ids.text}"
        yield Finding("region", what, command.id, "", *command.ids.span)
    if command.row_nbytes != t.rows.nbytes or command.dst.nbytes % max(1, command.row_nbytes):
        what = f"{name} copies rows of {command.row_nbytes} bytes instead of {t.rows.nbytes}"
        yield Finding("region", what, command.id, "", *command.dst.span)
    if command.through_host_view != t.rows.through_host_view:
        what = f"{name} takes another way to its rows than transfer {t.id}"
        yield Finding("region", what, command.id, "", *command.src.span)
    kept, cache = t.rows.cached * t.rows.nbytes, command.cache
    if (cache is None) != (kept == 0):
        what = f"{name} has {'no' if cache is None else 'a'} cache, and keeps {t.rows.cached} rows"
        yield Finding("region", what, command.id)
    elif cache is not None:
        arena = plan.memory.arenas[cache.arena]
        target, weight = plan.splits.values[t.dst], plan.splits.values[t.src]
        due = ("cache", weight.bound, target.device, kept)
        is_whole = cache[1:] == (0, arena.nbytes)
        if (arena.kind, arena.name, arena.device, arena.nbytes) != due or not is_whole:
            where = show("arena", arena.id)
            what = f"{name} keeps rows in {where}, which is not a cache of {weight.bound!r}"
            yield Finding("region", what, command.id, "", *cache.span)


class _Walk:
    """The walk over the commands of one run.

    Attributes:
        filled: For each value of which only rows are there: the value of the ids that named them,
            and how often the ids had been written when the host read them.
        findings: What was found.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.filled: dict[int, tuple[int, int]] = {}
        self.findings: list[Finding] = []
        self._writes: dict[int, int] = {}

    def copied(self, command: CopyRows) -> None:
        """Note which rows are there from now on."""
        t = self.plan.splits.transfers[command.transfer]
        if t.rows is not None:
            storage = self.plan.splits.values[t.rows.ids].storage
            self.filled[t.dst] = t.rows.ids, self._writes.get(storage, 0)

    def step(self, command: int, step: Step) -> None:
        """Follow a node: what it takes of such values, and what it writes."""
        bound, values = self.plan.splits.bindings[step.node], self.plan.splits.values
        if self.filled:
            for k, value in enumerate(bound[:-1]):
                if value in self.filled and step.modes[k] == "r":
                    self._take(command, step, k, value)
        if step.modes[-1] in "wp":
            storage = values[bound[-1]].storage
            self._writes[storage] = self._writes.get(storage, 0) + 1

    def _take(self, command: int, step: Step, k: int, value: int) -> None:
        op = self.plan.nodes[step.node].op
        rows = OPS[op].rows if op in OPS else None
        who = f"{show('command', command)} {show('node', step.node)}"
        if rows is None or rows[0] != k:
            what = f"{who} reads all of {show('value', value)}, of which only rows were copied"
            self._add(what, command, "copy all of it", step.operands[k])
            return
        ids, writes = self.filled[value]
        known, j = self.plan.splits.values[ids], rows[1]
        named = self.plan.splits.values[self.plan.splits.bindings[step.node][j]]
        home, region = self.plan.memory.regions[named.id], step.operands[j]
        start = named.start + region.offset - home.offset
        inside = known.start <= start and start + region.nbytes <= known.end
        if named.storage != known.storage or not inside:
            what = f"{who} takes rows of {show('value', value)} by other ids than were copied by"
            self._add(what, command, f"copy the rows that {show('value', named.id)} names", region)
        elif self._writes.get(named.storage, 0) != writes:
            what = f"{who} takes rows of {show('value', value)} by ids that were written since"
            self._add(what, command, "let the host read the ids after their last write", region)

    def _add(self, what: str, command: int, fix: str, region: Region) -> None:
        self.findings.append(Finding("undefined", what, command, fix, *region.span))
