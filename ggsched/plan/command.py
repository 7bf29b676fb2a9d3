"""The commands of a plan: everything that happens, in the order in which the host enqueues it.

The list is a program for one host thread. Ordering comes from three things and nothing else: the
order of one stream, events, and the host waiting. An event is recorded once per run. Each ``Wait``,
``Barrier`` and ``HostSync`` names the hazard that it discharges.

A command declares its effects, from which passes, traces, costs and the checker work.
ADR 28 lists what else a new command needs.
"""

from typing import Final

import msgspec

from ggsched.ids import show
from ggsched.plan.effects import Effects, Hazard, Step, Traffic, moving
from ggsched.plan.memory import Region

_ID_NBYTES: Final = 4


class Upload(msgspec.Struct, frozen=True, tag="upload", gc=False):
    """Host bytes to a device. ``src`` lies in a host arena."""

    id: int
    stream: int
    src: Region
    dst: Region
    transfer: int

    @property
    def text(self) -> str:
        """What it does, for people."""
        return f"upload {self.src.text} -> {self.dst.text}"

    @property
    def effects(self) -> Effects:
        """What it touches and waits for."""
        return moving(self.stream, self.transfer, self.src, self.dst, reads_at_enqueue=True)


class Download(msgspec.Struct, frozen=True, tag="download", gc=False):
    """Device bytes to the host. ``dst`` lies in a host arena."""

    id: int
    stream: int
    src: Region
    dst: Region
    transfer: int

    @property
    def text(self) -> str:
        """What it does, for people."""
        return f"download {self.src.text} -> {self.dst.text}"

    @property
    def effects(self) -> Effects:
        """What it touches and waits for."""
        return moving(self.stream, self.transfer, self.src, self.dst)


class Copy(msgspec.Struct, frozen=True, tag="copy", gc=False):
    """Bytes from one device's memory to another's."""

    id: int
    stream: int
    src: Region
    dst: Region
    transfer: int

    @property
    def text(self) -> str:
        """What it does, for people."""
        return f"copy {self.src.text} -> {self.dst.text}"

    @property
    def effects(self) -> Effects:
        """What it touches and waits for."""
        return moving(self.stream, self.transfer, self.src, self.dst)


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

    @property
    def text(self) -> str:
        """What it does, for people."""
        return f"copy rows {self.src.text} -> {self.dst.text}"

    @property
    def effects(self) -> Effects:
        """What it touches and waits for."""
        cache = () if self.cache is None else (self.cache,)
        return Effects(
            (self.stream,),
            "copy",
            steps=(Step(-1, (self.src, *cache, self.dst), "r" + "w" * len(cache) + "w"),),
            reads=(self.src,),
            writes=(*cache, self.dst),
            host_reads=(self.ids,),
            is_partial=True,
            transfer=self.transfer,
            traffic=Traffic(
                self.src.arena,
                self.dst.arena,
                self.dst.nbytes,
                self.row_nbytes,
                self.ids.nbytes // _ID_NBYTES,
                self.through_host_view,
            ),
        )


class Fill(msgspec.Struct, frozen=True, tag="fill", gc=False):
    """Bytes of a device set to a repeated pattern, on one of its own streams (FIL-1)."""

    id: int
    stream: int
    dst: Region
    pattern: bytes
    transfer: int

    @property
    def text(self) -> str:
        """What it does, for people."""
        return f"fill {self.dst.text} with {self.pattern.hex()}"

    @property
    def effects(self) -> Effects:
        """What it touches and waits for."""
        return Effects(
            (self.stream,),
            "copy",
            steps=(Step(-1, (self.dst,), "w"),),
            writes=(self.dst,),
            transfer=self.transfer,
            traffic=Traffic(None, self.dst.arena, self.dst.nbytes),
        )


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

    @property
    def text(self) -> str:
        """What it does, for people."""
        if not self.steps:
            return f"launch {show('split', self.split)} (no nodes)"
        first, last = (show("node", step.node) for step in (self.steps[0], self.steps[-1]))
        nodes = first if first == last else f"{first}..{last} ({len(self.steps)} nodes)"
        return f"launch {show('split', self.split)} {nodes}"

    @property
    def effects(self) -> Effects:
        """What it touches and waits for."""
        return Effects(
            (self.stream,), "compute", steps=self.steps, reads=self.reads, writes=self.writes
        )


class Record(msgspec.Struct, frozen=True, tag="record", gc=False):
    """Let an event stand for everything enqueued on the stream so far (EVT-1)."""

    id: int
    stream: int
    event: int

    @property
    def text(self) -> str:
        """What it does, for people."""
        return f"record {show('event', self.event)}"

    @property
    def effects(self) -> Effects:
        """What it touches and waits for."""
        return Effects((self.stream,), records=(self.event,))


class Wait(msgspec.Struct, frozen=True, tag="wait", gc=False):
    """Hold later commands of the stream until the event is done (EVT-2)."""

    id: int
    stream: int
    event: int
    hazard: Hazard

    @property
    def text(self) -> str:
        """What it does, for people."""
        return f"wait {show('event', self.event)}"

    @property
    def effects(self) -> Effects:
        """What it touches and waits for."""
        return Effects((self.stream,), waits=(self.event,), hazard=self.hazard)


class Barrier(msgspec.Struct, frozen=True, tag="barrier", gc=False):
    """Keep copies and launches of one stream in order (STR-1, ``copy_order`` barrier)."""

    id: int
    stream: int
    hazard: Hazard

    @property
    def text(self) -> str:
        """What it does, for people."""
        return "barrier"

    @property
    def effects(self) -> Effects:
        """What it touches and waits for."""
        return Effects((self.stream,), is_barrier=True, hazard=self.hazard)


class HostSync(msgspec.Struct, frozen=True, tag="host_sync", gc=False):
    """The host blocks until an event is done or, without one, the whole stream (STR-5)."""

    id: int
    stream: int
    event: int | None
    hazard: Hazard

    @property
    def text(self) -> str:
        """What it does, for people."""
        if self.event is None:
            return f"host sync {show('stream', self.stream)}"
        return f"host sync {show('event', self.event)}"

    @property
    def effects(self) -> Effects:
        """What it touches and waits for."""
        waits = () if self.event is None else (self.event,)
        return Effects((self.stream,), waits=waits, blocks_host=True, hazard=self.hazard)


Command = Upload | Download | Copy | CopyRows | Fill | Launch | Record | Wait | Barrier | HostSync
