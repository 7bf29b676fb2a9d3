"""A variant of a litmus program as something that runs, step by step, in any order it may.

Each actor does its operations in their order. A queue's operation can run once the thread
``H`` has done everything that stands before it. A waiting actor goes on when what it waits for has
run. Nothing here knows of clocks or of happens-before: what may run next is all there is.
"""

from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

from ggsched_testing.litmus.program import SUBMITTER, LitmusBlock, Op, Range, Variant

Span = tuple[str, int, int, bool]
"""(object, first unit, one past the last, whether it is written)."""


@dataclass(frozen=True)
class Script:
    """What there is to be known of a program before it runs.

    Attributes:
        ops: The operations, in the order of the listing.
        needs: For each operation those that must have run before it can.
        spans: For each operation what it touches.
        illegal: Operations that a capture does not stand, with the reason.
        sizes: Units of each object.
    """

    ops: tuple[Op, ...]
    needs: tuple[frozenset[int], ...]
    spans: tuple[tuple[Span, ...], ...]
    illegal: Mapping[int, str]
    sizes: Mapping[str, int]

    @cached_property
    def followers(self) -> tuple[tuple[int, ...], ...]:
        """For each operation those that need it."""
        found: list[list[int]] = [[] for _ in self.ops]
        for i, needs in enumerate(self.needs):
            for k in needs:
                found[k].append(i)
        return tuple(map(tuple, found))

    @cached_property
    def clashes(self) -> tuple[tuple[int, int], ...]:
        """All pairs of operations that conflict, as listed."""
        pairs = combinations(range(len(self.ops)), 2)
        return tuple((i, j) for i, j in pairs if self.clash(i, j))

    def clash(self, i: int, j: int) -> bool:
        """Whether two operations touch common units and one writes them."""
        return any(
            a[0] == b[0] and a[1] < b[2] and b[1] < a[2] and (a[3] or b[3])
            for a in self.spans[i]
            for b in self.spans[j]
        )


class Machine:
    """A program between two steps.

    Attributes:
        script: The program.
        enabled: The operations that can run next, as listed.
        memory: Content of each object: pieces of it that follow each other.
    """

    def __init__(self, script: Script) -> None:
        self.script = script
        self._left = [len(needs) for needs in script.needs]
        self.enabled = [i for i, count in enumerate(self._left) if not count]
        self.memory: dict[str, list[tuple[int, int, str]]] = {}

    def run(self, i: int) -> str:
        """Run an operation; return which of its reads sees something wrong, or ""."""
        op = self.script.ops[i]
        wrong = ""
        if op.verb != "malloc":
            wrong = next((w for w in map(self._read, op.reads) if w), "")
        for r in op.writes:
            self._write(r)
        self.enabled.remove(i)
        for k in self.script.followers[i]:
            self._left[k] -= 1
            if not self._left[k]:
                insort(self.enabled, k)
        return wrong

    def _bounds(self, r: Range) -> tuple[int, int]:
        return r.start or 0, r.end or self.script.sizes[r.name]

    def _read(self, r: Range) -> str:
        if not r.tag:
            return ""
        start, end = self._bounds(r)
        at = start
        for first, last, tag in self.memory.get(r.name, ()):
            if last <= start or end <= first:
                continue
            if first > at:
                break
            if tag != r.tag:
                return f"{r.name}[{max(first, start)}:{min(last, end)}] holds {tag or 'no tag'!r}"
            at = last
        return "" if at >= end else f"{r.name}[{at}:{end}] is unwritten"

    def _write(self, r: Range) -> None:
        start, end = self._bounds(r)
        pieces: list[tuple[int, int, str]] = [(start, end, r.tag)]
        for first, last, tag in self.memory.get(r.name, ()):
            pieces += [(first, min(last, start), tag)] if first < start else []
            pieces += [(max(first, end), last, tag)] if last > end else []
        self.memory[r.name] = sorted(pieces)


def script_of(block: LitmusBlock, variant: Variant) -> Script:
    """Return a variant as a program that can run."""
    ops = block.variant(variant)
    sizes = block.sizes
    queues = {op.actor for op in block.ops if not op.is_host}
    actors = set(block.actors)
    spans = tuple(_spans(op, sizes) for op in ops)
    needs = tuple(_needs(ops, i, actors, queues) for i in range(len(ops)))
    return Script(ops, needs, spans, _illegal(ops, actors), sizes)


def _spans(op: Op, sizes: dict[str, int]) -> tuple[Span, ...]:
    reads = () if op.verb == "malloc" else op.reads
    touched = [(r, False) for r in reads] + [(r, True) for r in op.writes]
    return tuple((r.name, r.start or 0, r.end or sizes[r.name], w) for r, w in touched)


def _needs(ops: Sequence[Op], i: int, actors: set[str], queues: set[str]) -> frozenset[int]:
    op = ops[i]
    needs = {_last(ops, i, op.actor)}
    if not op.is_host:
        needs.add(_last(ops, i, SUBMITTER))
    if op.verb == "sync" and op.target in actors:
        needs.add(_last(ops, i, op.target))
    elif op.verb in ("sync", "wait"):
        recs = [k for k in range(i) if ops[k].verb == "rec" and ops[k].target == op.target]
        needs.update(recs[-1:])
    elif op.verb == "devsync":
        needs.update(_last(ops, i, queue) for queue in queues)
    return frozenset(needs - {-1})


def _last(ops: Sequence[Op], i: int, actor: str) -> int:
    """Return the last operation of an actor before a place, or -1."""
    return next((k for k in range(i - 1, -1, -1) if ops[k].actor == actor), -1)


def _illegal(ops: Sequence[Op], actors: set[str]) -> dict[int, str]:
    """Return what may not be called during a capture; the listing is the order of the calls."""
    illegal: dict[int, str] = {}
    collecting: dict[str, str] = {}
    events: dict[str, str] = {}
    for i, op in enumerate(ops):
        reason = ""
        if op.verb == "capbegin":
            reason = f"{op.actor} collects already" if op.actor in collecting else ""
            collecting.setdefault(op.actor, op.actor)
        elif op.verb == "capend":
            reason = "" if collecting.get(op.actor) == op.actor else f"{op.actor} began none"
            collecting = {q: o for q, o in collecting.items() if o != op.actor}
            events = {e: o for e, o in events.items() if o != op.actor}
        elif op.verb == "rec":
            events.pop(op.target, None)
            if op.actor in collecting:
                events[op.target] = collecting[op.actor]
        elif op.verb == "wait" and not op.is_host and op.target in events:
            collecting.setdefault(op.actor, events[op.target])
        elif op.verb in ("sync", "wait"):
            held = collecting if op.verb == "sync" and op.target in actors else events
            reason = f"{op.target} is in the capture" if op.target in held else ""
        elif op.verb in ("malloc", "devsync") and collecting:
            reason = f"{' and '.join(sorted(collecting))} collects"
        if reason:
            illegal[i] = reason
    return illegal
