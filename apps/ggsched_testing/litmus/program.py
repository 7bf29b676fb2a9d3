"""A litmus program as data."""

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

Kind = Literal["race", "value", "capture", "clean"]
Variant = Literal["broken", "fixed"]

KINDS: Final[tuple[Kind, ...]] = ("race", "value", "capture", "clean")
VARIANTS: Final[tuple[Variant, ...]] = ("broken", "fixed")

SUBMITTER: Final = "H"
"""The host thread that gives the queues their work."""

SYNC_VERBS: Final = frozenset({"rec", "wait", "sync"})
CAPTURE_VERBS: Final = frozenset({"capbegin", "capend"})
BARE_VERBS: Final = CAPTURE_VERBS | {"devsync"}
"""Verbs that name nothing."""


class Range(NamedTuple):
    """Units ``[start, end)`` of a memory object; the whole object where both are None.

    Attributes:
        name: The object.
        start: First unit.
        end: One past the last.
        tag: Content that a read needs or a write leaves; "" where the program does not say.
    """

    name: str
    start: int | None
    end: int | None
    tag: str


@dataclass(frozen=True, slots=True)
class Op:
    """One operation.

    Attributes:
        line: Its line in the file.
        text: The operation as written, without marker and comment.
        actor: The stream or host thread that does it.
        verb: What it is called; a few verbs have a meaning.
        reads: What it reads, first.
        writes: What it writes, then.
        target: The event or queue of ``rec``, ``wait`` and ``sync``.
        only: The one variant that it belongs to, or "".
    """

    line: int
    text: str
    actor: str
    verb: str
    reads: tuple[Range, ...] = ()
    writes: tuple[Range, ...] = ()
    target: str = ""
    only: Variant | Literal[""] = ""

    @property
    def is_host(self) -> bool:
        """Whether a host thread does it."""
        return is_host(self.actor)


def is_host(actor: str) -> bool:
    """Whether an actor is a host thread."""
    return actor.startswith(SUBMITTER)


@dataclass(frozen=True, slots=True)
class LitmusBlock:
    """A litmus program with its two variants.

    Attributes:
        id: Its name.
        kind: The violation that the broken variant is said to show.
        file: Where it was read from.
        line: Line of its header.
        ops: The operations of both variants.
    """

    id: str
    kind: Kind
    file: str
    line: int
    ops: tuple[Op, ...]

    def variant(self, variant: Variant) -> tuple[Op, ...]:
        """Return the operations of one variant."""
        return tuple(op for op in self.ops if op.only in ("", variant))

    def expected(self, variant: Variant) -> Kind:
        """Return the verdict that the header states."""
        return self.kind if variant == "broken" else "clean"

    @property
    def actors(self) -> tuple[str, ...]:
        """All actors of both variants, in order of appearance."""
        return tuple(dict.fromkeys(op.actor for op in self.ops))

    @property
    def sizes(self) -> dict[str, int]:
        """Units of each memory object: as many as the ranges of either variant reach."""
        sizes: dict[str, int] = {}
        for op in self.ops:
            for r in (*op.reads, *op.writes):
                sizes[r.name] = max(sizes.get(r.name, 1), r.end or 1)
        return sizes
