"""Which bytes of each arena mattered when: from the first touch of a value in a run to the last."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator

import msgspec
import numpy as np

from ggsched.ids import show
from ggsched.ir.intervals import overlap
from ggsched.plan.bundle import Plan
from ggsched.plan.effects import touched_values
from ggsched.plan.memory import Region
from ggsched.trace.timeline import Span, Timeline

_PACKED = ("compute", "input", "output", "staging")


class LiveBlock(msgspec.Struct, frozen=True, gc=False):
    """A value in an arena during one run.

    Attributes:
        run: Index of the run.
        plan: Index of its plan.
        arena: Arena of the plan.
        value: Value of the plan.
        start_s: Start of the first step that touches it.
        end_s: End of the last step that does.
        offset: Its first byte.
    """

    run: int
    plan: int
    arena: int
    value: int
    start_s: float
    end_s: float
    offset: int
    nbytes: int


def blocks(timeline: Timeline) -> list[LiveBlock]:
    """Return all values of arenas that are packed, for each run of a timeline, by start."""
    uses = [
        {c.id: touched_values(plan.splits, c.effects) for c in plan.commands}
        for plan in timeline.plans
    ]
    spans: dict[int, list[Span]] = defaultdict(list)
    for span in timeline.spans:
        if span.run >= 0 and span.command >= 0:
            spans[span.run].append(span)
    found: list[LiveBlock] = []
    for run, timed in enumerate(timeline.runs):
        plan = timeline.plans[timed.plan]
        life: dict[int, tuple[float, float]] = {}
        for span in spans[run]:
            values = uses[timed.plan].get(span.command, ())
            for (begin, until), touched in zip(_steps(span, len(values)), values, strict=True):
                for value in touched:
                    start, end = life.get(value, (begin, until))
                    life[value] = min(start, begin), max(end, until)
        for value, (start, end) in life.items():
            region = plan.memory.regions[value]
            if plan.memory.arenas[region.arena].kind in _PACKED and region.nbytes:
                place = (region.arena, value, start, end, region.offset, region.nbytes)
                found.append(LiveBlock(run, timed.plan, *place))
    return sorted(found, key=lambda b: (b.start_s, b.arena, b.offset))


def live_bytes(found: list[LiveBlock]) -> Iterator[tuple[int, int, float, int]]:
    """Yield (plan, arena, time, bytes) each time that the number of live bytes changes.

    Values that share bytes, as where a result takes over those of an operand, count once.
    """
    by_arena: dict[tuple[int, int], list[LiveBlock]] = defaultdict(list)
    for block in found:
        by_arena[block.plan, block.arena].append(block)
    for (plan, arena), group in sorted(by_arena.items()):
        edges = sorted(
            [(b.start_s, 1, b) for b in group] + [(b.end_s, 0, b) for b in group],
            key=lambda edge: edge[:2],
        )
        cover = _Cover(group)
        for i, (at, begins, block) in enumerate(edges):
            cover.add(block, 1 if begins else -1)
            if i + 1 == len(edges) or edges[i + 1][0] > at:
                yield plan, arena, at, cover.nbytes


class _Cover:
    """How many bytes some blocks cover, those that several cover counted once."""

    def __init__(self, blocks: list[LiveBlock]) -> None:
        edges = {b.offset for b in blocks} | {b.offset + b.nbytes for b in blocks}
        self._edges = sorted(edges)
        self._lengths = np.diff(np.array(self._edges, np.int64))
        self._counts = np.zeros(len(self._lengths), np.int64)
        self.nbytes = 0

    def add(self, block: LiveBlock, by: int) -> None:
        first = bisect_left(self._edges, block.offset)
        last = bisect_left(self._edges, block.offset + block.nbytes)
        counts = self._counts[first:last]
        before = counts > 0
        counts += by
        changed = (counts > 0) != before
        self.nbytes += by * int(self._lengths[first:last][changed].sum())


def value_labels(plan: Plan) -> dict[int, str]:
    """Return each value of a plan for people, e.g. ``v12 n7 mul_mat 'ffn_up'``."""
    names = {slot.value: repr(slot.name) for slot in (*plan.inputs, *plan.outputs)}
    labels = {
        value.id: " ".join([show("value", value.id), value.kind, names.get(value.id, "")]).strip()
        for value in plan.splits.values
    }
    for node, bound in enumerate(plan.splits.bindings):
        if bound:
            info, value = plan.nodes[node], bound[-1]
            label = f" {info.label!r}" if info.label else ""
            labels[value] = f"{show('value', value)} {show('node', node)} {info.op}{label}"
    return labels


def _steps(span: Span, count: int) -> list[tuple[float, float]]:
    """Return when each step of a command ran: equal shares where nobody measured."""
    if len(span.nodes) == count:
        return [(node.start_s, node.end_s) for node in span.nodes]
    each = (span.end_s - span.start_s) / max(1, count)
    return [(span.start_s + i * each, span.start_s + (i + 1) * each) for i in range(count)]


def readers_of(plan: Plan, region: Region, after: int) -> int:
    """Return the first launch after a command that reads some bytes, or -1."""
    for number in range(after + 1, len(plan.commands)):
        command = plan.commands[number]
        effects = command.effects
        if effects.engine == "compute" and any(
            r.arena == region.arena and overlap(r, region) for r in effects.reads
        ):
            return command.id
    return -1
