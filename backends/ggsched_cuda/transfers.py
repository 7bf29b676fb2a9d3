"""Transfers of one stream: directly where host memory is pinned, else through a pinned block.

Ordinary host memory can be swapped or moved, so the driver cannot read it while the stream runs; it
would block the caller instead (STR-2). Such memory is staged by a thread of the driver in the order
of the stream: its content may come from a command that the stream waits for.
"""

from typing import Any, Final, Protocol

from ggsched.backend.host_borrow import address_of
from ggsched.backend.protocols import HostMemory
from ggsched_cuda import driver
from ggsched_cuda.deferred import Move
from ggsched_cuda.pinned import PinnedBlock, PinnedMemory

PIECE_NBYTES: Final = 8 << 20
"""Longer transfers are staged in pieces, so that copying and sending overlap."""


class Gpu(Protocol):
    """What transfers use of a GPU."""

    pinned: PinnedMemory


class TransferSink(Protocol):
    """What takes the parts of transfers: a queue, or a capture."""

    handle: int

    @property
    def gpu(self) -> Gpu:
        """The GPU."""

    def takes(self, move: Move, memory: Any) -> bool:
        """Leave a transfer to a kernel, if that is better."""

    def hold(self, memory: Any) -> None:
        """Keep host memory until the transfers so far are complete."""

    def stage(self, nbytes: int) -> PinnedBlock:
        """Return a pinned block for a transfer."""

    def call(self, to: int, source: int, nbytes: int, holds: Any) -> None:
        """Let a thread of the driver copy host memory."""


def upload(sink: TransferSink, source: HostMemory, address: int) -> None:
    """Copy host bytes to the device, on a stream of the driver."""
    origin, nbytes, handle = address_of(source), source.nbytes, sink.handle
    if sink.gpu.pinned.holds(origin, nbytes):
        if not sink.takes(Move(address, origin, nbytes), source):
            sink.hold(source)
            driver.enqueue_upload(address, origin, nbytes, handle)
        return
    for start in range(0, nbytes, PIECE_NBYTES):
        piece = min(PIECE_NBYTES, nbytes - start)
        block = sink.stage(piece)
        sink.call(block.address, origin + start, piece, (source, block))
        driver.enqueue_upload(address + start, block.address, piece, handle)


def download(sink: TransferSink, address: int, target: HostMemory) -> None:
    """Copy bytes of the device to the host, on a stream of the driver."""
    to, nbytes, handle = address_of(target), target.nbytes, sink.handle
    if sink.gpu.pinned.holds(to, nbytes):
        if not sink.takes(Move(to, address, nbytes), target):
            sink.hold(target)
            driver.enqueue_download(to, address, nbytes, handle)
        return
    for start in range(0, nbytes, PIECE_NBYTES):
        piece = min(PIECE_NBYTES, nbytes - start)
        block = sink.stage(piece)
        driver.enqueue_download(block.address, address + start, piece, handle)
        sink.call(to + start, block.address, piece, (target, block))
