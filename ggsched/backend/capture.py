"""Capture: a sequence of commands is recorded once and replayed by one call (CAP-1..4).

Optional: a device that offers it has ``begin_capture``, and its streams have ``replay``.
Its captures may also have ``end_into``, which updates an existing graph.
Peers capture together (COL-4): a graph has commands of several devices.
The simplest implementation is a list of calls (``ggsched.backend.list_capture``), used by devices
of ``ggsched.backend.base``; a device with native graphs hands the list to its driver.
"""

from collections.abc import Sequence
from typing import Protocol, TypeGuard, runtime_checkable

from ggsched.backend.protocols import Device, Stream
from ggsched.topology.caps import reads_peer


@runtime_checkable
class DeviceGraph(Protocol):
    """Commands that were captured.

    What they use is borrowed as long as it is open (CAP-3), or until it is updated (CAP-4).
    """

    @property
    def nodes(self) -> int:
        """How many commands or kernels it has, for people."""

    def close(self) -> None:
        """Release it; legal twice. Replays that are enqueued run to their end (ERR-3)."""


@runtime_checkable
class Capture(Protocol):
    """Streams that write down what they are given instead of running it (CAP-2)."""

    def end(self) -> DeviceGraph:
        """Stop, and return what was captured; the streams are as before.

        Legal after ``end_into`` has refused.

        Raises:
            UsageError: the capture is over.
            DeviceFault: the driver refused; the streams are as before.
        """

    def abort(self) -> None:
        """Stop, and forget what was captured; legal twice. The streams are as before."""


@runtime_checkable
class UpdatingCapture(Capture, Protocol):
    """A capture that can update an existing graph (CAP-4)."""

    def end_into(self, graph: DeviceGraph) -> str:
        """Stop, and let a graph be what was captured; the streams are as before.

        Replays that are enqueued run what it was. What it used need not be there any more.

        Args:
            graph: An open graph that was captured on the same first stream.

        Returns:
            An empty text if the graph was updated, and the capture is over. Else why it was not:
            it is as before, and what was captured is to be had by ``end``, or forgotten by
            ``abort``.

        Raises:
            UsageError: the capture is over; or the graph is closed, or another stream's, and the
                capture goes on.
            DeviceFault: the driver failed; the streams are as before, the capture is over, and the
                graph can be closed, but not replayed.
        """


@runtime_checkable
class CapturingDevice(Protocol):
    """A device that offers capture."""

    def begin_capture(self, streams: Sequence[Stream]) -> Capture:
        """Write down what is enqueued on streams from now on.

        They are the device's own, but for the first one also those of its peers (COL-4). All of
        them fork from the first one here, and are joined to it when the capture ends: the
        graph is one command of the first stream, ordered behind what that one was given before
        and before what it is given later, and ordered with nothing else.

        Raises:
            UsageError: no streams, one twice, one of a device that is no peer, a first one that is
                not its own, one that is captured already.
        """


def offers_capture(device: Device) -> "TypeGuard[CapturingDevice]":
    """Whether a device offers capture."""
    return isinstance(device, CapturingDevice)


def captures_beside(device: Device, streams: Sequence[Stream], stream: Stream) -> bool:
    """Whether a device captures a stream beside others: its own, or behind one a peer's (COL-4)."""
    other = stream.device
    return other is device or (bool(streams) and reads_peer(device.facts, other.facts))


def offers_update(capture: Capture) -> "TypeGuard[UpdatingCapture]":
    """Whether a capture can update an existing graph."""
    return isinstance(capture, UpdatingCapture)
