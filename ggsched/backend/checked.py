"""Devices that check their callers: order of calls, lifetimes, regions, borrowed host memory.

    devices = checked(open_devices(["opencl:0", "cpu:0"]))

Wraps devices of any backend; ``GGSCHED_CHECKED=1`` lets the scheduler do it. What a backend may
take for granted is looked at here: that nothing is used after it was closed (ERR-3), that a buffer
is not closed under a command (BUF-2), that events are used as they may be (EVT-3), that regions lie
inside (BUF-3), that host memory is left alone while it is borrowed (CPY-4, CPY-5), that
constants are not written while a launch may read them (LCH-7), and that a stream is used by one
thread at a time (STR-6).

An error names the object, the call, and in its call_log the calls before. What is passed on are the
inner objects, so a backend sees nothing of it.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar, overload

from ggsched.backend import checks
from ggsched.backend.call_log import Call, OnCall, misuse, new_call_log, with_call_log
from ggsched.backend.checked_constants import spans_of
from ggsched.backend.checked_parts import CheckedBuffer, CheckedEvent
from ggsched.backend.checked_stream import CheckedProgram, CheckedStream
from ggsched.backend.host_borrow import digest
from ggsched.backend.ledger import Ledger
from ggsched.backend.program import BoundNode, Operand
from ggsched.backend.protocols import Buffer, Device, Event, HostMemory, Program, Stream
from ggsched.errors import GgschedError, UsageError
from ggsched.topology.caps import DeviceFacts, WaitPath

T = TypeVar("T")


@overload
def checked(devices: Device, *, on_call: OnCall | None = None) -> Device: ...


@overload
def checked(devices: Sequence[Device], *, on_call: OnCall | None = None) -> list[Device]: ...


def checked(
    devices: Device | Sequence[Device], *, on_call: OnCall | None = None
) -> Device | list[Device]:
    """Return a device, or several that are used together, behind checks.

    Args:
        devices: Open devices. Closing what is returned closes them.
        on_call: Called before every call.
    """
    ledger = Ledger(on_call)
    if isinstance(devices, Sequence):
        return [CheckedDevice(device, ledger) for device in devices]
    return CheckedDevice(devices, ledger)


class CheckedDevice:
    """A device behind checks; see ``checked``."""

    def __init__(self, inner: Device, ledger: Ledger) -> None:
        self.inner = inner
        self.ledger = ledger
        self.is_closed = False
        self.call_log = new_call_log()
        self._facts = inner.facts
        self._made = dict.fromkeys("qbep", 0)

    def __getattr__(self, name: str) -> object:
        """Offer what the inner device offers outside the contract, such as times."""
        if name.startswith("__") and name.endswith("__"):
            return getattr(self.inner, name)
        raise AttributeError(name)

    @property
    def facts(self) -> DeviceFacts:
        """The inner device's facts.

        Raises:
            UsageError: they have changed (TRU-1).
        """
        facts = self.inner.facts
        if facts is not self._facts and facts != self._facts:
            raise misuse("TRU-1", "its facts have changed", where=self._facts.name)
        return facts

    def allocate(self, nbytes: int) -> Buffer:
        """Allocate a buffer that knows who uses it (BUF-1, BUF-2)."""
        self._call("allocate", nbytes)
        inner = self._run(lambda: self.inner.allocate(nbytes))
        if inner.nbytes != nbytes:
            raise misuse(
                "BUF-1", f"allocate returned {inner.nbytes} bytes, not {nbytes}", where=self.name
            )
        return CheckedBuffer(inner, self, self.next_name("b"))

    def import_host(self, memory: HostMemory) -> Buffer:
        """Import host memory, and watch that it stays as it is (CPY-4)."""
        self._call("import_host", memory.nbytes)
        checks.check_host_memory(memory, f"{self.name} import_host")
        inner = self._run(lambda: self.inner.import_host(memory))
        lent = (memory, digest(memory))
        return CheckedBuffer(inner, self, self.next_name("b"), lent=lent)

    def allocate_host(self, nbytes: int) -> HostMemory:
        """Return the inner device's host memory."""
        self._call("allocate_host", nbytes)
        return self._run(lambda: self.inner.allocate_host(nbytes))

    def create_stream(self) -> Stream:
        """Create a stream behind checks."""
        self._call("create_stream")
        return CheckedStream(self._run(self.inner.create_stream), self, self.next_name("q"))

    def create_event(self) -> Event:
        """Create an event that knows what it stands for."""
        self._call("create_event")
        return CheckedEvent(self._run(self.inner.create_event), self, self.next_name("e"))

    def compile(self, nodes: Sequence[BoundNode], stream: Stream) -> Program:
        """Check and compile nodes (BUF-3, TRU-1, LCH-7)."""
        self._call("compile", len(nodes), getattr(stream, "name", "a stream"))
        self._run(lambda: checks.check_compile(self, nodes, stream))
        if not isinstance(stream, CheckedStream):
            raise self._unwrapped(stream)
        stream.require_open()
        buffers: dict[int, CheckedBuffer] = {}
        bare = [self._bare(node, buffers) for node in nodes]
        name = f"{self.next_name('p')} ({nodes[0].label} ...)" if nodes else self.next_name("p")
        spans = self._run(lambda: spans_of(name, nodes))
        inner = self._run(lambda: self.inner.compile(bare, stream.inner))
        return CheckedProgram(inner, stream, name, tuple(buffers.values()), spans)

    def copies_with(self, other: DeviceFacts) -> bool:
        """Return the inner device's answer."""
        return self.inner.copies_with(other)

    def wait_path(self, other: DeviceFacts) -> WaitPath:
        """Return the inner device's answer."""
        return self.inner.wait_path(other)

    def close(self) -> None:
        """Close the inner device, and so everything that it made; legal twice (ERR-3)."""
        self.is_closed = True
        self._run(self.inner.close)

    # --- for its parts -------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Name of the device."""
        return self._facts.name

    def next_name(self, letter: str) -> str:
        """Return the name of the next thing of a sort."""
        number = self._made[letter]
        self._made[letter] = number + 1
        return f"{self._facts.name} {letter}{number}"

    # --- helpers -------------------------------------------------------------------------------

    def _call(self, verb: str, *operands: object) -> Call:
        if self.is_closed:
            raise with_call_log(
                checks.closed_error(f"device {self.name}"), self.name, self.call_log
            )
        called = self.ledger.call(self.name, verb, operands)
        self.call_log.append(called)
        return called

    def _run(self, call: Callable[[], T]) -> T:
        """Make a call; what it raises gets the device's call log."""
        try:
            return call()
        except GgschedError as error:
            with_call_log(error, self.name, self.call_log)
            raise

    def _bare(self, node: BoundNode, buffers: dict[int, CheckedBuffer]) -> BoundNode:
        def bare(operand: Operand) -> Operand:
            buffer = operand.buffer
            if not isinstance(buffer, CheckedBuffer):
                raise self._unwrapped(buffer)
            buffer.require_open(node.label)
            buffers[id(buffer)] = buffer
            return replace(operand, buffer=buffer.inner)

        return replace(node, inputs=tuple(map(bare, node.inputs)), output=bare(node.output))

    def _unwrapped(self, thing: object) -> UsageError:
        return misuse(
            "TRU-1",
            f"a {type(thing).__name__} was not made by a checked device",
            where=self.name,
            hint="make everything through the devices that checked() returned",
        )
