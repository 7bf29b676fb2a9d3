"""Effects: what a command touches, waits for and costs, in one shape for all commands.

Each class in ``ggsched.plan.command`` declares its effects, without looking at a plan. Passes,
capture, traces, costs and the checker read effects, so they need no case for each command. What
depends on facts of a device (whether a source is read early, which device a stream is on) the
reader of the effects decides from the plan.

Making effects takes constant time, also for a launch of thousands of nodes: ``steps`` are the
command's own.
"""

from typing import Literal, NamedTuple

import msgspec

from ggsched.ids import show
from ggsched.plan.memory import Region
from ggsched.plan.splits import Splits

HazardKind = Literal["RAW", "WAR", "WAW"]

Engine = Literal["compute", "copy"]
"""What does the work. A device that does not order copies against launches (STR-1) has one lane of
a stream for each engine."""


class Hazard(NamedTuple):
    """Two accesses to overlapping bytes, at least one a write, that must stay in order.

    Attributes:
        kind: ``RAW``, ``WAR`` or ``WAW``.
        arena: Arena of the bytes.
        start: First byte that both touch.
        end: One past the last.
        earlier: Command that comes first; -1 for the host.
        later: Command that comes second; -1 for the host.
        next_run: Whether ``later`` belongs to the following run of the plan.
    """

    kind: HazardKind
    arena: int
    start: int
    end: int
    earlier: int
    later: int
    next_run: bool = False

    @property
    def text(self) -> str:
        """The hazard for people, e.g. ``RAW a3[0:4096] of c11 before c12``."""
        region = Region(self.arena, self.start, self.end - self.start)
        ends = (self.earlier, self.later)
        earlier, later = ("the host" if c < 0 else show("command", c) for c in ends)
        run = " of the next run" if self.next_run else ""
        return f"{self.kind} {region.text} of {earlier} before {later}{run}"


class Step(NamedTuple):
    """Accesses that belong together: one node of a launch, or all of any other command.

    Within a step reads come before writes; the steps of a command run in order.

    Attributes:
        node: Id of the node; -1 for a step that is not a node.
        operands: Byte range of each operand and, last, of the result.
        modes: How each is touched, one letter each: ``r``, ``w``, ``p`` or ``-``, see
            ``ggsched.ir.ops``.
    """

    node: int
    operands: tuple[Region, ...]
    modes: str


class Traffic(NamedTuple):
    """Bytes that a command moves, from which its cost follows. Nodes cost what they compute.

    Attributes:
        src: Arena that the bytes come from; None where they come from no memory (a pattern).
        dst: Arena that they go to.
        nbytes: How many; of rows that ids choose all that could be moved.
        row_nbytes: Length of a row that ids choose, 0 where all bytes are moved.
        rows: How many rows the ids choose, repetitions counted.
        through_host: Whether they are read through the host view of ``src``.
    """

    src: int | None
    dst: int
    nbytes: int
    row_nbytes: int = 0
    rows: int = 0
    through_host: bool = False


class Effects(msgspec.Struct, frozen=True, gc=False):
    """What a command does to memory, events, streams and the host.

    Attributes:
        streams: Streams that take part. It is enqueued on the first; a collective has one for each
            participant, and their devices take part with them.
        engine: What does its work; None for a command that does none.
        steps: What the work touches, in order, as it happens on the device.
        reads: Bytes that it declares to read, merged and sorted.
        writes: Bytes that it declares to write, merged and sorted.
        host_reads: Bytes that the host reads while it enqueues the command.
        host_writes: Bytes that the host writes while it enqueues the command.
        reads_at_enqueue: Whether a device that ``snapshots_uploads`` (CPY-4) reads ``reads`` while
            the command is enqueued, as if by the host.
        is_partial: Whether some of what it writes may stay undefined or as it was.
        transfer: The transfer that it carries out, or -1.
        traffic: What it moves; None for nodes and for what moves nothing.
        records: Events that stand for everything enqueued on its streams so far (EVT-1).
        waits: Events that must be done before what is enqueued on its streams later begins
            (EVT-2) or, where it blocks the host, before the host goes on (EVT-5).
        is_barrier: Whether it joins the lanes of its streams.
        blocks_host: Whether the host waits: for ``waits`` or, without any, for everything on its
            streams (STR-5).
        hazard: The hazard that it discharges; a command that waits always names one.
    """

    streams: tuple[int, ...]
    engine: Engine | None = None
    steps: tuple[Step, ...] = ()
    reads: tuple[Region, ...] = ()
    writes: tuple[Region, ...] = ()
    host_reads: tuple[Region, ...] = ()
    host_writes: tuple[Region, ...] = ()
    reads_at_enqueue: bool = False
    is_partial: bool = False
    transfer: int = -1
    traffic: Traffic | None = None
    records: tuple[int, ...] = ()
    waits: tuple[int, ...] = ()
    is_barrier: bool = False
    blocks_host: bool = False
    hazard: Hazard | None = None


def moving(
    stream: int, transfer: int, src: Region, dst: Region, *, reads_at_enqueue: bool = False
) -> Effects:
    """Return the effects of a transfer of all bytes of a region."""
    return Effects(
        (stream,),
        "copy",
        steps=(Step(-1, (src, dst), "rw"),),
        reads=(src,),
        writes=(dst,),
        reads_at_enqueue=reads_at_enqueue,
        transfer=transfer,
        traffic=Traffic(src.arena, dst.arena, dst.nbytes),
    )


def touched_values(splits: Splits, effects: Effects) -> list[tuple[int, ...]]:
    """Return the values that each step touches: what its node is bound to, or those of a transfer.

    Args:
        splits: Of the plan.
        effects: Of one of its commands.
    """
    if effects.transfer >= 0:
        t = splits.transfers[effects.transfer]
        return [(t.src, t.dst) if t.rows is None else (t.src, t.rows.ids, t.dst)]
    return [splits.bindings[step.node] for step in effects.steps]
