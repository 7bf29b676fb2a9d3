"""The commands of a plan: everything that happens, in the order in which the host enqueues it.

The list is a program for one host thread. Ordering comes from three things and nothing else: the
order of one stream, events, and the host waiting. An event is recorded once per run. Each ``Wait``,
``Barrier`` and ``HostSync`` names the hazard that it discharges.
"""

from typing import Literal, NamedTuple

import msgspec

from ggsched.plan.memory import Region

HazardKind = Literal["RAW", "WAR", "WAW"]


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


class Step(NamedTuple):
    """One node of a launch.

    Attributes:
        node: Id of the node.
        operands: Byte range of each operand and, last, of the result.
        modes: How each is touched, see ``ggsched.ir.ops``.
    """

    node: int
    operands: tuple[Region, ...]
    modes: str


class Upload(msgspec.Struct, frozen=True, tag="upload", gc=False):
    """Host bytes to a device. ``src`` lies in a host arena."""

    id: int
    stream: int
    src: Region
    dst: Region
    transfer: int


class Download(msgspec.Struct, frozen=True, tag="download", gc=False):
    """Device bytes to the host. ``dst`` lies in a host arena."""

    id: int
    stream: int
    src: Region
    dst: Region
    transfer: int


class Copy(msgspec.Struct, frozen=True, tag="copy", gc=False):
    """Bytes from one device's memory to another's."""

    id: int
    stream: int
    src: Region
    dst: Region
    transfer: int


class CopyRows(msgspec.Struct, frozen=True, tag="copy_rows", gc=False):
    """The rows of a weight that ids name, from one device's memory to another's.

    The host reads the ids while it enqueues this, so a ``HostSync`` stands before it unless the
    host knows them anyway; it enqueues one copy for each run of neighbouring rows. What is found
    in the cache is copied from there instead, and what is not is put there. For hazards it reads
    all of ``src`` and ``ids`` and writes all of ``dst`` and ``cache``; of ``dst`` only the named
    rows are defined afterwards.

    Attributes:
        id: Position in the list.
        stream: Stream that the copies are enqueued on.
        src: The weight, on the device that holds it.
        dst: Where it would lie on the other device, row for row.
        ids: i32 row numbers in host memory; numbers may repeat.
        row_nbytes: Length of a row.
        through_host_view: Whether the rows are uploaded from the host view of ``src``.
        cache: Rows kept from earlier runs, or None.
        transfer: The transfer that it carries out.
    """

    id: int
    stream: int
    src: Region
    dst: Region
    ids: Region
    row_nbytes: int
    through_host_view: bool
    cache: Region | None
    transfer: int


class Launch(msgspec.Struct, frozen=True, tag="launch"):
    """The nodes of a split on one stream, in order.

    ``reads`` and ``writes`` are the union of what the steps touch, merged and sorted.
    """

    id: int
    stream: int
    split: int
    steps: tuple[Step, ...]
    reads: tuple[Region, ...]
    writes: tuple[Region, ...]


class Record(msgspec.Struct, frozen=True, tag="record", gc=False):
    """Let an event stand for everything enqueued on the stream so far (EVT-1)."""

    id: int
    stream: int
    event: int


class Wait(msgspec.Struct, frozen=True, tag="wait", gc=False):
    """Hold later commands of the stream until the event is done (EVT-2)."""

    id: int
    stream: int
    event: int
    hazard: Hazard


class Barrier(msgspec.Struct, frozen=True, tag="barrier", gc=False):
    """Keep copies and launches of one stream in order (STR-1, ``copy_order`` barrier)."""

    id: int
    stream: int
    hazard: Hazard


class HostSync(msgspec.Struct, frozen=True, tag="host_sync", gc=False):
    """The host blocks until an event is done or, without one, the whole stream (STR-5)."""

    id: int
    stream: int
    event: int | None
    hazard: Hazard


Command = Upload | Download | Copy | CopyRows | Launch | Record | Wait | Barrier | HostSync
