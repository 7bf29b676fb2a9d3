"""The event stream: what a plan or a trace comes down to, in one form for all rules.

An event is something that the host enqueues or does: work on bytes, an event that is recorded or
waited for, memory that begins or ends. ``from_plan`` and ``from_trace`` make the stream; a rule
reads it and does not need to know which of the two it came from. The stream's ``Names`` supply the
words.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Final, Literal, NamedTuple, Protocol

import msgspec

from ggsched.sanitize.report import Touch
from ggsched.topology.caps import CopyOrder

NOBODY: Final = -1
"""The ``by`` of an event that no known thread has enqueued."""

HOST_WRITES: Final = -1
HOST_READS: Final = -2
"""Sources of what the host does around a run of a plan: it writes inputs and reads outputs."""

Span = tuple[int, int, int]
"""(space, first byte, one past the last)."""

Place = tuple[int, int, int]
"""Where something stands in the program: (split, 0 for transfers and 1 for nodes, number)."""

EventKind = Literal[
    "work", "record", "wait", "sync", "barrier", "alloc", "free", "capture", "capture_end"
]


class Content(NamedTuple):
    """What bytes are.

    Attributes:
        owner: The value that they belong to; of a trace the tag.
        version: Which write of the program to these bytes of the storage was the last; 0 where
            that is not followed.
    """

    owner: Hashable
    version: int = 0


Held = int | Content
"""A content, or of a plan the value alone, of which there is one version; then nothing is made for
each access."""

UNDEFINED: Final = Content("undefined", -1)
"""Nothing has written the bytes."""

UNKNOWN: Final = Content("unknown", -2)
"""The bytes are defined, by an unknown writer."""


def content_of(held: Held) -> Content:
    """Return a content as such."""
    return held if isinstance(held, Content) else Content(held)


class Access(NamedTuple):
    """Bytes of one memory that a step touches.

    Attributes:
        memory: Id of the memory.
        start: First byte.
        end: One past the last.
        mode: ``r`` reads all, ``w`` writes all, ``p`` writes some, ``x`` leaves all undefined.
        content: What a read needs, what a write leaves; ``UNKNOWN`` where that is not stated.
    """

    memory: int
    start: int
    end: int
    mode: str
    content: Content = UNKNOWN


class Step(msgspec.Struct, frozen=True, gc=False):
    """Accesses that belong together, in order: parallel sequences, since a plan has many.

    Attributes:
        node: Id of the node, or -1.
        place: Where it stands in the program; None where there is no program.
        regions: The bytes: memory, first byte, length.
        modes: A letter for each as in ``Access``; ``-`` for what is not touched.
        contents: A content for each as in ``Access``.
    """

    node: int
    place: Place | None
    regions: Sequence[tuple[int, int, int]]
    modes: str
    contents: Sequence[Held]

    def accesses(self) -> Iterator[Access]:
        """Yield the accesses that touch at least a byte."""
        for (memory, start, nbytes), mode, content in zip(
            self.regions, self.modes, self.contents, strict=True
        ):
            if nbytes and mode != "-":
                yield Access(memory, start, start + nbytes, mode, content_of(content))


def step_of(node: int, place: Place | None, accesses: Sequence[Access]) -> Step:
    """Return a step with these accesses."""
    return Step(
        node,
        place,
        [(a.memory, a.start, a.end - a.start) for a in accesses],
        "".join([a.mode for a in accesses]),
        [a.content for a in accesses],
    )


class Event(msgspec.Struct, frozen=True, gc=False):
    """One event.

    Attributes:
        source: Where it comes from: the number of the command or of the record, or below zero
            what the host does around a run.
        actor: The stream or host thread that does it, an index in ``EventStream.actors``.
        by: The host thread that enqueued it.
        is_copy: Whether it is a copy, which some streams do not keep in order with launches.
        is_partial: Whether it may leave some of what it writes as it was.
        reads: Bytes that it reads, merged and sorted.
        writes: Bytes that it writes, merged and sorted.
        steps: The same in detail, in order.
        event: The event that is recorded or waited for.
        target: Without an event, the actor that is waited for; None for all streams.
        memory: The memory that begins or ends.
        is_safe: Whether a capture stands it.
    """

    source: int
    kind: EventKind
    actor: int
    by: int = NOBODY
    is_copy: bool = False
    is_partial: bool = False
    reads: Sequence[Span] = ()
    writes: Sequence[Span] = ()
    steps: Iterable[Step] = ()
    event: int | None = None
    target: int | None = None
    memory: int = -1
    is_safe: bool = True


class Actor(NamedTuple):
    """A thread of the host, or a stream.

    Attributes:
        name: For people.
        device: Name of a stream's device.
        is_host: Whether it is a thread of the host.
        copy_order: How a stream keeps its copies and launches in order (STR-1).
        has_events: Whether its device can record events and wait for them.
        has_barrier: Whether its device has barriers, as far as is known.
    """

    name: str
    device: str
    is_host: bool
    copy_order: CopyOrder = "stream"
    has_events: bool = True
    has_barrier: bool = True


class Memory(NamedTuple):
    """Something that holds bytes.

    Attributes:
        name: For people.
        space: Address space that it lies in.
        address: Its first byte there.
        content: What it holds at first.
        is_constant: Whether nobody may write it.
        owner: The only content whose owner may write it; None for any.
        is_scratch: Whether its content does not matter after the end.
        is_shared: Whether addresses of its space are used by several memories.
    """

    name: str
    nbytes: int
    space: int
    address: int = 0
    content: Held = UNDEFINED
    is_constant: bool = False
    owner: Content | None = None
    is_scratch: bool = False
    is_shared: bool = False


class Names(Protocol):
    """What things are called in findings."""

    def ref(self, event: Event) -> str:
        """Return the source of an event, e.g. ``c3`` or ``#3``."""

    def who(self, event: Event) -> str:
        """Return an event as one side of a race, e.g. ``c3`` or ``#3 A write``."""

    def step(self, event: Event, step: Step) -> str:
        """Return a step, e.g. ``c3 n7`` or ``#3 write``."""

    def bytes_of(self, memory: int, start: int, end: int) -> str:
        """Return bytes, e.g. ``a0[0:16]``."""

    def wanted(self, access: Access) -> str:
        """Return what an access means, with its place."""

    def touch(self, event: Event, run: int, access: Access) -> Touch:
        """Return one side of a race."""

    def wrong_content(
        self, event: Event, step: Step, access: Access, there: "Found"
    ) -> tuple[Literal["content", "reuse", "stale"], str, str]:
        """Return kind, words and repair for bytes that hold something else."""

    def sync(self, event: Event) -> str:
        """Return a record, wait or copy that is not needed, e.g. ``c3, the wait for e1``."""


class Found(NamedTuple):
    """What was found in some bytes.

    Attributes:
        writer: The event that wrote it; None for what was there at first.
        start: First byte.
        end: One past the last.
    """

    content: Content
    writer: Event | None
    start: int
    end: int


class EventStream(NamedTuple):
    """All events, and who and what they are about.

    Attributes:
        name: Name of the plan or the trace.
        size: Number of its commands or records.
        actors: Host threads and streams.
        memories: All memories, by id.
        events: The events of one run, in the order in which the host enqueues or does them.
        runs: How often they happen. Each run has events of its own, with the same ids.
        is_renewable: Whether an event may be recorded again; a wait means the latest record.
        names: What things are called.
    """

    name: str
    size: int
    actors: Sequence[Actor]
    memories: dict[int, Memory]
    events: Sequence[Event]
    runs: int
    is_renewable: bool
    names: Names
