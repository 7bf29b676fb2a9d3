"""A trace as frozen data, documented in ``docs/reference/trace-format.md``.

The records stand in the order of the host's calls, also where several threads make them. A record
of a stream happens after everything that the thread which enqueued it (``by``) did before. Other
order comes from streams, events and waits, and from nothing else.
"""

from typing import Final, Literal, NamedTuple

import msgspec

from ggsched.plan.bundle import Plan
from ggsched.topology.caps import CopyOrder

FORMAT: Final = "ggsched-trace/3"

NOBODY: Final = -1
"""The ``by`` of a record that no thread of the trace has enqueued, as far as is known."""

ClockKind = Literal["host", "simulated"]

EventRule = Literal["once", "latest"]
"""``once``: an event is recorded once, and nobody waits for it before (EVT-3). ``latest``: it may
be recorded again, a wait means its latest record so far, and without one means nothing."""


class Access(NamedTuple):
    """Bytes ``[start, end)`` of a memory object.

    Attributes:
        memory: Id of the memory object, see ``Alloc``.
        start: First byte.
        end: One past the last.
        tag: For a read the content that it needs, for a write the content that it leaves. Empty
            where that is not known.
    """

    memory: int
    start: int
    end: int
    tag: str = ""


class Actor(msgspec.Struct, frozen=True, gc=False):
    """Whatever acts: a thread of the host or a stream.

    Attributes:
        id: Index in ``Trace.actors``.
        name: For people.
        kind: Host threads act by themselves, streams do what was enqueued on them, in order.
        device: Device of a stream, by name.
        copy_order: How a stream keeps its copies and launches in order (STR-1).
    """

    id: int
    name: str
    kind: Literal["host", "stream"]
    device: str = ""
    copy_order: CopyOrder = "stream"


class Work(msgspec.Struct, frozen=True, tag="work", omit_defaults=True, gc=False):
    """A piece of work that touches memory: a launch, a copy, or an access of the host itself.

    Attributes:
        actor: The actor that does it.
        by: The host thread that enqueued it.
        label: What it is, for people.
        reads: Bytes that it reads.
        writes: Bytes that it writes, after it has read.
        is_copy: Whether it is a copy, which some streams do not keep in order with launches.
        is_partial: Whether it may leave some of the bytes that it writes as they were.
        by_reference: Whether it is a node that the device has no kernel for and computes by the
            reference arithmetic of the op.
        issued_s: When the host began to enqueue it, in seconds since the trace began.
        start_s: When it began, where that was measured.
        end_s: When it had ended.
    """

    actor: int
    label: str
    by: int = NOBODY
    reads: tuple[Access, ...] = ()
    writes: tuple[Access, ...] = ()
    is_copy: bool = False
    is_partial: bool = False
    by_reference: bool = False
    issued_s: float | None = None
    start_s: float | None = None
    end_s: float | None = None


class Record(msgspec.Struct, frozen=True, tag="record", omit_defaults=True, gc=False):
    """Let an event stand for all that the actor has done or been given so far (EVT-1)."""

    actor: int
    event: int
    by: int = NOBODY
    issued_s: float | None = None
    start_s: float | None = None
    end_s: float | None = None


class Wait(msgspec.Struct, frozen=True, tag="wait", omit_defaults=True, gc=False):
    """Hold what the actor does later until an event is done (EVT-2)."""

    actor: int
    event: int
    by: int = NOBODY
    issued_s: float | None = None
    start_s: float | None = None
    end_s: float | None = None


class Sync(msgspec.Struct, frozen=True, tag="sync", omit_defaults=True, gc=False):
    """The actor, mostly a host thread, blocks until something is complete (STR-5, EVT-5).

    Attributes:
        actor: Who blocks.
        by: The host thread that enqueued it, where the actor is a stream.
        stream: Everything that this actor has been given so far.
        event: What this event stands for. Without a stream and an event: all streams.
        start_s: When it began to wait.
        end_s: When it went on.
    """

    actor: int
    by: int = NOBODY
    stream: int | None = None
    event: int | None = None
    start_s: float | None = None
    end_s: float | None = None


class Barrier(msgspec.Struct, frozen=True, tag="barrier", omit_defaults=True, gc=False):
    """Keep earlier and later copies and launches of a stream in order."""

    actor: int
    by: int = NOBODY
    issued_s: float | None = None
    start_s: float | None = None
    end_s: float | None = None


class Alloc(msgspec.Struct, frozen=True, tag="alloc", omit_defaults=True, gc=False):
    """A memory object comes into being. An address that is used again gets a new object.

    Attributes:
        actor: Who allocates.
        memory: Id of the object, never used twice.
        name: For people.
        space: Address space that the address is in, "" for one of its own.
        address: First byte in the space.
        is_defined: Whether it has content from the beginning.
        is_unsafe: Whether allocating is a call that a capture does not stand.
        issued_s: When.
    """

    actor: int
    memory: int
    name: str
    nbytes: int
    space: str = ""
    address: int = 0
    is_defined: bool = False
    is_unsafe: bool = True
    issued_s: float | None = None


class Free(msgspec.Struct, frozen=True, tag="free", omit_defaults=True, gc=False):
    """A memory object ends. By a stream it ends in the order of the stream."""

    actor: int
    memory: int
    by: int = NOBODY
    issued_s: float | None = None


class CaptureBegin(msgspec.Struct, frozen=True, tag="capture_begin", omit_defaults=True, gc=False):
    """From here on a stream collects what it is given (CAP-1)."""

    actor: int
    by: int = NOBODY


class CaptureEnd(msgspec.Struct, frozen=True, tag="capture_end", omit_defaults=True, gc=False):
    """The capture is complete; its commands count as executed at the position of the capture."""

    actor: int
    by: int = NOBODY


Entry = Work | Record | Wait | Sync | Barrier | Alloc | Free | CaptureBegin | CaptureEnd


class Expected(NamedTuple):
    """When a command of a plan should run, in seconds from the start of a run.

    Attributes:
        command: Id of the command.
        start_s: When it begins.
        end_s: When it has ended.
    """

    command: int
    start_s: float
    end_s: float


class TracedPlan(msgspec.Struct, frozen=True):
    """A plan of which runs were recorded.

    Attributes:
        expected: When its commands should run by the cost model; empty where nobody knows.
        rates: Where the numbers of the cost model come from, for people.
        nodes: Seconds of each node by the cost model, by node id; empty where nobody knows.
    """

    plan: Plan
    expected: tuple[Expected, ...] = ()
    rates: str = ""
    nodes: tuple[float, ...] = ()


class Run(msgspec.Struct, frozen=True, gc=False):
    """One run of a plan: which records are of it, and when it was.

    Attributes:
        plan: Index in ``Trace.plans``.
        actor: The host thread that enqueued it.
        first: Index of its first record.
        end: One past the last.
        start_s: When the host began it, in seconds since the trace began.
        end_s: When the host had the outputs.
    """

    plan: int
    actor: int
    first: int
    end: int
    start_s: float
    end_s: float


class Trace(msgspec.Struct, frozen=True):
    """A trace.

    Attributes:
        name: For people.
        actors: All actors, by id.
        entries: All records, in the order of the calls.
        events: What may be done with events.
        dropped: Records that were not kept, all later than those that are.
        clock: What times are in: seconds of the host, or simulated ones.
        plans: Plans of which runs were recorded.
        runs: Their runs, in order.
    """

    name: str
    actors: tuple[Actor, ...]
    entries: tuple[Entry, ...]
    events: EventRule = "once"
    dropped: int = 0
    clock: ClockKind = "host"
    plans: tuple[TracedPlan, ...] = ()
    runs: tuple[Run, ...] = ()
