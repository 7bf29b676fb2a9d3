"""The contract as protocols. ``docs/reference/contract.md`` is normative; rule ids point there.

Vocabulary: ``wait`` never blocks the host, ``sync`` always does and takes a timeout in seconds,
``is_done`` never blocks. One stream is used by one thread at a time (STR-6). Everything that is
enqueued is ordered by its stream, by events, and by the host waiting, and by nothing else.

Optional members: ``__dlpack__`` and ``__dlpack_device__`` of a buffer (INT-1),
``__cuda_array_interface__`` of a buffer (INT-2), ``__cuda_stream__`` of a stream (INT-3), and of
an event ``waiter(timeout_s)``, a call that waits as ``sync`` does and outlives ``close`` (EVT-5), a
stream and an event ``__progress__()`` (``ggsched.backend.progress``), and of a device
``propose_lanes(graph)`` where it declares ``proposes_lanes`` (STR-7, ``ggsched.backend.lanes``).
Outside the contract a device may report when commands ran, see ``ggsched.backend.timing``.
Capture (CAP-1..4) is offered by having ``begin_capture``, see ``ggsched.backend.capture``.

A plug-in names a function without arguments in the entry-point group ``ggsched.backends``. It
returns a ``Backend`` or raises ``BackendUnavailable``; importing its module must be cheap.
``ggsched.backend.base`` has correct synchronous defaults for all of this.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol, runtime_checkable

from ggsched.backend.program import BoundNode, OperandMemory
from ggsched.topology.caps import DeviceFacts, WaitPath

Version = tuple[int, int]
"""Major and minor version of the contract."""

CONTRACT_VERSION: Final[Version] = (1, 7)
"""The newest version; a plug-in of another major version is refused."""

MEMBERS_SINCE: Final[Mapping[str, Version]] = {"Stream.fill": (1, 1)}
"""Members that joined later than 1.0; plug-ins of earlier versions need not have them."""

HostMemory = memoryview
"""Host bytes: a contiguous ``memoryview`` of format ``B``, writable where it is a destination."""


@runtime_checkable
class Buffer(OperandMemory, Protocol):
    """A range of device memory (BUF-1..4). Fresh content is undefined (BUF-1)."""

    @property
    def nbytes(self) -> int:
        """Length in bytes; zero is legal (BUF-1)."""

    @property
    def device(self) -> "Device":
        """The device whose memory this is."""

    def host_view(self) -> HostMemory:
        """Return the bytes themselves, if the device ``is_host`` (BUF-4).

        Using the view is a host access and needs the same ordering as any other.

        Raises:
            UsageError: the device is not a host device, or the buffer is closed.
        """

    def close(self) -> None:
        """Release the memory; legal twice (ERR-3). No enqueued command may still use it (BUF-2).

        If one does, the caller is wrong; the memory is not handed out before it is complete.
        """


@runtime_checkable
class Event(Protocol):
    """One point on one stream, recorded once (EVT-1)."""

    @property
    def device(self) -> "Device":
        """The device that made the event."""

    @property
    def is_recorded(self) -> bool:
        """Whether ``stream.record`` has been called with it."""

    @property
    def is_done(self) -> bool:
        """Whether all that it stands for is complete; never blocks, never falls back (EVT-5).

        False before it is recorded. A failed event is done (EVT-6). True is as good as ``sync``.
        """

    def sync(self, timeout_s: float) -> None:
        """Block until done; then its prefix is visible to the host (EVT-5, STR-5).

        Raises:
            UsageError: the event was not recorded (EVT-3), or the timeout is NaN.
            SyncTimeout: not done in time; nothing has changed.
            DeviceFault: its work failed (EVT-6).
        """

    def close(self) -> None:
        """Release the event; legal twice and before it is done (ERR-3).

        Streams of its own backend that wait for it already go on waiting (EVT-5); one of another
        backend must have passed the wait before.
        """


@runtime_checkable
class Program(Protocol):
    """Nodes compiled for one stream, every argument bound. Runs them in order, see LCH-1..8.

    A program may have an attribute ``by_reference``, the labels of its nodes for which the device
    has no kernel and computes the reference arithmetic of the op. Traces mark these nodes.
    """

    def close(self) -> None:
        """Release what was compiled; legal twice (ERR-3). Enqueued launches still run (LCH-1)."""


@runtime_checkable
class Stream(Protocol):
    """An in-order queue of commands on one device (STR-1..6).

    Every method below that enqueues may return before or after the work is done (STR-2), which
    begins without another call (STR-3). It raises at once if the command is refused, and then the
    stream is as before (ERR-1). If an earlier command of the stream has failed it raises
    ``DeviceFault`` naming that one (ERR-2).
    """

    @property
    def device(self) -> "Device":
        """The device that runs the stream."""

    @property
    def is_done(self) -> bool:
        """Whether everything enqueued so far is complete; never blocks (STR-6).

        True is as good as ``sync``, and polling is enough to see the end (STR-3).
        """

    def upload(self, source: HostMemory, buffer: Buffer, offset: int) -> None:
        """Copy host bytes into ``buffer`` at ``offset``.

        The source is borrowed until the command is complete (CPY-4); the stream keeps a reference
        to it, and reads it behind downloads into it that are ordered before the command. With
        ``snapshots_uploads`` it is read while this is being called, and not later.

        Raises:
            UsageError: bytes outside the buffer (BUF-3), or a buffer of another device.
        """

    def download(self, buffer: Buffer, offset: int, target: HostMemory) -> None:
        """Copy ``len(target)`` bytes from ``buffer`` at ``offset`` into host memory.

        The target belongs to the device until the command is complete (CPY-5).

        Raises:
            UsageError: as for ``upload``; or the target is read-only.
        """

    def copy(self, src: Buffer, src_offset: int, dst: Buffer, dst_offset: int, nbytes: int) -> None:
        """Copy between buffers, of which one at least is this device's (CPY-1).

        The copy is ordered on this stream only: not after earlier work of the other side. Until
        it is complete the destination holds anything (CPY-2).

        Raises:
            UsageError: no path between the two devices (CPY-6), bytes outside a buffer (BUF-3),
                source and destination overlap (CPY-3).
        """

    def fill(self, buffer: Buffer, offset: int, nbytes: int, pattern: bytes) -> None:
        """Set ``nbytes`` of ``buffer`` at ``offset`` to a repeated pattern (FIL-1, FIL-2).

        Ordered as a copy is (STR-1). Callers use ``ggsched.backend.fill.fill``, which also serves
        streams of plug-ins that were written against contract 1.0.

        Raises:
            UsageError: a pattern that does not have 1, 2 or 4 bytes, a range that is not a
                multiple of it (FIL-3), bytes outside the buffer (BUF-3), a buffer of another device
                or one that is read-only.
        """

    def launch(self, program: Program) -> None:
        """Run a program that was compiled for this stream (LCH-1..8)."""

    def record(self, event: Event) -> None:
        """Let ``event`` stand for everything enqueued so far (EVT-1).

        Raises:
            UsageError: recorded already (EVT-3), or an event of another device.
        """

    def wait(self, event: Event) -> None:
        """Hold later commands of this stream until ``event`` is done (EVT-2, EVT-4).

        Raises:
            UsageError: not recorded (EVT-3), or this device declared no wait path for the
                event's device (EVT-4).
        """

    def barrier(self) -> None:
        """Keep later launches after earlier copies and the reverse (STR-1).

        For devices of ``copy_order`` ``barrier``; others may ignore or refuse it.
        """

    def sync(self, timeout_s: float) -> None:
        """Block until everything enqueued is complete and visible to the host (STR-5).

        Raises:
            UsageError: the timeout is NaN; a negative one is as 0, and inf waits without limit.
            SyncTimeout: not done in time; the stream stays usable.
            DeviceFault: a command failed (ERR-2).
        """

    def close(self) -> None:
        """Release the stream; legal twice and after a fault (ERR-3).

        Commands that are enqueued run to their end; they need not have when this returns. A capture
        that the stream is part of is aborted (CAP-2).
        """


@runtime_checkable
class Device(Protocol):
    """A processor with memory and streams of its own."""

    @property
    def facts(self) -> DeviceFacts:
        """What it can do; constant and true (TRU-1)."""

    def allocate(self, nbytes: int) -> Buffer:
        """Return a fresh buffer, aligned as the facts say, of undefined content (BUF-1).

        Raises:
            OutOfDeviceMemory: with requested and free bytes; the device stays usable.
        """

    def import_host(self, memory: HostMemory) -> Buffer:
        """Return a read-only buffer over host memory without copying it (BUF-5).

        The memory is borrowed until the buffer is closed.

        Raises:
            UsageError: the device does not declare ``imports_host_memory``.
        """

    def allocate_host(self, nbytes: int) -> HostMemory:
        """Return writable host memory that this device copies from and to fastest (BUF-6).

        It lives as long as the view, or what is made of it. Plain memory is a correct answer.

        Raises:
            OutOfDeviceMemory: more than the system has.
        """

    def create_stream(self) -> Stream:
        """Return a new stream.

        Raises:
            UsageError: more than ``max_streams``.
        """

    def create_event(self) -> Event:
        """Return a fresh event, not recorded (EVT-1). Must be cheap: one is made for each use."""

    def compile(self, nodes: Sequence[BoundNode], stream: Stream) -> Program:
        """Prepare nodes to run in order on ``stream`` by one ``launch``.

        ``ops`` of the facts promises that this succeeds (LCH-3, LCH-8). Scratch memory and library
        handles belong to that stream alone (LCH-5). Nodes with a ``group`` may run as one (LCH-6).
        Operands that are constant may be read ahead of a launch's turn (LCH-7). What is read may
        lie on another device where both declare ``reads_peers`` (COL-1..4).

        Raises:
            UsageError: an op that the facts do not name.
            OutOfDeviceMemory: for scratch.
        """

    def copies_with(self, other: DeviceFacts) -> bool:
        """Whether this device's streams copy from and to buffers of ``other`` (CPY-6)."""

    def wait_path(self, other: DeviceFacts) -> WaitPath:
        """How this device's streams wait for events of ``other`` (EVT-4).

        ``native``: the device waits. ``thread``: a thread of the backend waits, never the caller.
        ``host``: ``stream.wait`` refuses; the planner makes the host wait instead.
        """

    def close(self) -> None:
        """Release everything that the device made, also after a fault and twice (ERR-3).

        When it returns, nothing of what was enqueued takes effect any more.
        """


@runtime_checkable
class Backend(Protocol):
    """A plug-in: finds devices of one kind."""

    @property
    def name(self) -> str:
        """The entry point's name, e.g. ``"opencl"``."""

    @property
    def contract_version(self) -> Version:
        """The contract that it was written against, ``CONTRACT_VERSION`` at that time."""

    def device_count(self) -> int:
        """How many devices are offered when none is named.

        0 means that devices exist only when they are named, as with a simulator.
        """

    def open_device(self, index: int) -> Device:
        """Open a device; every call gives a device of its own.

        An index beyond ``device_count`` is legal where the plug-in can make logical devices.

        Raises:
            BackendUnavailable: there is no such device, with the reason.
        """
