"""Rows: is what was chosen by ids read by the same ids, and by nothing else?

A copy of rows leaves the other rows of its destination undefined. Who reads the destination may
take rows of it only, by ids of which the host knew the same version. For the order of accesses a
copy of rows counts as reading all of its source and writing all of its destination.
"""

from collections.abc import Iterator

from ggsched.ids import show
from ggsched.ir.ops import OPS
from ggsched.plan.bundle import Plan
from ggsched.plan.command import CopyRows, Launch
from ggsched.plan.effects import Step
from ggsched.plan.memory import Region
from ggsched.plan.splits import HOST
from ggsched.sanitize.kinds import TRANSFERS
from ggsched.sanitize.report import Finding


def misplaced_rows(plan: Plan, command: CopyRows) -> Iterator[Finding]:
    """Yield how a command copies other rows than those of its transfer, or keeps them elsewhere."""
    name, t = show("command", command.id), plan.splits.transfers[command.transfer]
    if t.rows is None:
        what = f"{name} copies rows of {show('value', t.dst)}, of which all is needed"
        yield Finding("region", what, command.id, "copy all of it")
        return
    ids = plan.memory.regions[t.rows.ids]
    if command.ids != ids or plan.memory.arenas[ids.arena].device != HOST:
        what = f"{name} reads ids at {_place(command.ids)} instead of {_place(ids)}"
        yield Finding("region", what, command.id, "", *_bytes(command.ids))
    if command.row_nbytes != t.rows.nbytes or command.dst.nbytes % max(1, command.row_nbytes):
        what = f"{name} copies rows of {command.row_nbytes} bytes instead of {t.rows.nbytes}"
        yield Finding("region", what, command.id, "", *_bytes(command.dst))
    if command.cache is not None:
        arena = plan.memory.arenas[command.cache.arena]
        target, weight = plan.splits.values[t.dst], plan.splits.values[t.src]
        if (arena.kind, arena.name, arena.device) != ("cache", weight.bound, target.device):
            what = f"{name} keeps rows in {show('arena', arena.id)}, no cache of {weight.bound!r}"
            yield Finding("region", what, command.id, "", *_bytes(command.cache))


def find_bad_takers(plan: Plan) -> list[Finding]:
    """Return reads of rows that were not copied, and values that lie in a cache."""
    findings = list(_values_in_caches(plan))
    walk = _Walk(plan)
    for command in plan.commands:
        if isinstance(command, Launch):
            for step in command.steps:
                walk.step(command.id, step)
        elif isinstance(command, TRANSFERS):
            walk.filled.pop(plan.splits.transfers[command.transfer].dst, None)
            if isinstance(command, CopyRows):
                walk.copied(command)
    return findings + walk.findings


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
        self.findings.append(Finding("undefined", what, command, fix, *_bytes(region)))


def _values_in_caches(plan: Plan) -> Iterator[Finding]:
    for value, region in enumerate(plan.memory.regions):
        if plan.memory.arenas[region.arena].kind == "cache":
            what = f"{show('value', value)} lies in a cache, whose rows are kept from run to run"
            yield Finding("reuse", what, -1, "give it memory of its own", *_bytes(region))


def _place(region: Region) -> str:
    return f"{show('arena', region.arena)}[{region.offset}:{region.end}]"


def _bytes(region: Region) -> tuple[int, int, int]:
    return region.arena, region.offset, region.end
