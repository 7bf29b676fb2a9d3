"""A variant of a litmus program as a trace, for the sanitizer."""

from collections.abc import Iterator

from ggsched.trace.schema import (
    NOBODY,
    Access,
    Actor,
    Alloc,
    CaptureBegin,
    CaptureEnd,
    Entry,
    Record,
    Sync,
    Trace,
    Wait,
    Work,
)
from ggsched_testing.litmus.program import SUBMITTER, LitmusBlock, Op, Range, Variant, is_host


def litmus_trace(block: LitmusBlock, variant: Variant) -> tuple[Trace, list[Op | None], list[str]]:
    """Return the trace, the operation that each of its records stands for, and event names.

    Every memory object exists from the beginning, with undefined content.
    """
    writer = _Writer(block)
    pairs = [*writer.objects(), *((e, op) for op in block.variant(variant) for e in writer.one(op))]
    actors = tuple(
        Actor(i, name, "host" if is_host(name) else "stream") for i, name in enumerate(block.actors)
    )
    entries = tuple(entry for entry, _ in pairs)
    name = f"{block.id} {variant}"
    trace = Trace(name, actors, entries, events="latest")
    return trace, [op for _, op in pairs], list(writer.events)


class _Writer:
    def __init__(self, block: LitmusBlock) -> None:
        self._actors = {name: i for i, name in enumerate(block.actors)}
        self._submitter = self._actors.get(SUBMITTER, NOBODY)
        self._sizes = block.sizes
        self._memory = {name: i for i, name in enumerate(self._sizes)}
        self.events: dict[str, int] = {}
        self._scratch = len(self._memory)

    def objects(self) -> Iterator[tuple[Entry, None]]:
        """Yield what lets all objects be there."""
        for name, number in self._memory.items():
            size = self._sizes[name]
            yield Alloc(0, number, name, size, is_defined=True, is_unsafe=False), None

    def one(self, op: Op) -> Iterator[Entry]:
        """Yield the records of an operation."""
        actor = self._actors[op.actor]
        by = NOBODY if op.is_host else self._submitter
        match op.verb:
            case "rec":
                yield Record(actor, self._event(op.target), by)
            case "wait" if not op.is_host:
                yield Wait(actor, self._event(op.target), by)
            case "sync" if op.target in self._actors:
                yield Sync(actor, by, stream=self._actors[op.target])
            case "wait" | "sync":
                yield Sync(actor, by, event=self._event(op.target))
            case "devsync":
                yield Sync(actor, by)
            case "capbegin":
                yield CaptureBegin(actor, by)
            case "capend":
                yield CaptureEnd(actor, by)
            case _:
                if op.verb == "malloc":  # what it names is not touched, only what it writes
                    names = " ".join(r.name for r in op.reads) or "memory"
                    yield Alloc(actor, self._scratch, names, 1, is_defined=True)
                    self._scratch += 1
                reads = () if op.verb == "malloc" else op.reads
                yield Work(actor, op.verb, by, self._accesses(reads), self._accesses(op.writes))

    def _event(self, name: str) -> int:
        return self.events.setdefault(name, len(self.events))

    def _accesses(self, ranges: tuple[Range, ...]) -> tuple[Access, ...]:
        return tuple(
            Access(self._memory[r.name], r.start or 0, r.end or self._sizes[r.name], r.tag)
            for r in ranges
        )
