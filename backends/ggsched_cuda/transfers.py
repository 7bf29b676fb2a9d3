"""Transfers of one stream: directly where host memory is pinned, else through a pinned block.

Ordinary host memory can be swapped or moved, so the driver cannot read it while the stream runs; it
would block the caller instead (STR-2). Such memory is staged by a thread of the driver in the order
of the stream: its content may come from a command that the stream waits for.
"""

import ctypes
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ggsched.backend.protocols import HostMemory
from ggsched_cuda import driver
from ggsched_cuda.deferred import MAX_MOVES, Move
from ggsched_cuda.event import Marker
from ggsched_cuda.pinned import PinnedBlock, Quad, address_of
from ggsched_cuda.polling import POLLING
from ggsched_cuda.programs import OWN

if TYPE_CHECKING:
    from ggsched_cuda.stream import CudaStream

PIECE_NBYTES: Final = 8 << 20
"""Longer transfers are staged in pieces, so that copying and sending overlap."""

STAGED_NBYTES: Final = 256 << 20
"""With more than this on the way a stream waits for its oldest piece, for at most ``PATIENCE_S``;
then it takes more memory, lest it waits for a stream that is held."""

PATIENCE_S: Final = 1.0
OFTEN: Final = 64  # transfers, after which the stream looks which of them are complete


MOVED_NBYTES: Final = 4 << 20
"""Shorter captured transfers are made by kernels."""


class Held:
    """What transfers need until a marker is done: host memory of the caller, staging blocks."""

    __slots__ = ("blocks", "memory", "nbytes")

    def __init__(self) -> None:
        self.memory: list[Any] = []
        self.blocks: list[PinnedBlock] = []
        self.nbytes = 0


class Transfers:
    """The transfers of one stream.

    Args:
        stream: The stream.
    """

    def __init__(self, stream: "CudaStream") -> None:
        self._stream = stream
        self._pinned = stream.gpu.pinned
        self._calls = stream.gpu.host_calls
        self._now = Held()
        self._past: deque[tuple[Marker, Held]] = deque()
        self._staged = 0

    def upload(self, source: HostMemory, address: int) -> None:
        """Copy host bytes to the device."""
        origin, nbytes, handle = address_of(source), source.nbytes, self._stream.handle
        if self._pinned.holds(origin, nbytes):
            if not self._is_moved(address, origin, nbytes, source):
                self._hold(source)
                driver.enqueue_upload(address, origin, nbytes, handle)
            return
        self._flush()
        for start in range(0, nbytes, PIECE_NBYTES):
            piece = min(PIECE_NBYTES, nbytes - start)
            block = self._stage(piece)
            self._call(block.address, origin + start, piece, (source, block))
            driver.enqueue_upload(address + start, block.address, piece, handle)

    def download(self, address: int, target: HostMemory) -> None:
        """Copy bytes of the device to the host."""
        to, nbytes, handle = address_of(target), target.nbytes, self._stream.handle
        if self._pinned.holds(to, nbytes):
            if not self._is_moved(to, address, nbytes, target):
                self._hold(target)
                driver.enqueue_download(to, address, nbytes, handle)
            return
        self._flush()
        for start in range(0, nbytes, PIECE_NBYTES):
            piece = min(PIECE_NBYTES, nbytes - start)
            block = self._stage(piece)
            driver.enqueue_download(block.address, address + start, piece, handle)
            self._call(to + start, block.address, piece, (target, block))

    def _is_moved(self, to: int, source: int, nbytes: int, memory: HostMemory) -> bool:
        """Leave a transfer to a kernel, if it is captured and short.

        A graph of kernels alone is launched quicker than one with copies, and several transfers
        in a row are one kernel, or none (``putting_off``).
        """
        capture = self._stream.capture
        if capture is None:
            return False
        capture.keeps.append(memory)
        if nbytes > MOVED_NBYTES:
            self._flush()
            return False
        capture.put_off[self._stream].move(Move(to, source, nbytes))
        return True

    def _flush(self) -> None:
        if self._stream.capture is not None:
            self._stream.capture.flush(self._stream)

    def move(self, moves: Sequence[Move]) -> None:
        """Enqueue a kernel that makes up to ``MAX_MOVES`` transfers."""
        function = self._stream.gpu.programs.function(OWN, (), "move")
        words = (ctypes.c_int64 * (3 * MAX_MOVES))()
        for i, (to, source, nbytes) in enumerate(moves):
            words[3 * i : 3 * i + 3] = [to, source, nbytes]
        params = (ctypes.c_void_p * 1)(ctypes.addressof(words))
        longest = max(m.nbytes for m in moves)
        grid = (max(1, min(128, longest // 8192)), len(moves), 1)
        handle, at = self._stream.handle, ctypes.addressof(params)
        driver.check(
            driver.launch_kernel(function, *grid, 256, 1, 1, 0, handle, at, 0), "cuLaunchKernel"
        )

    def snapshot(self, source: Quad, to: Quad) -> None:
        """Copy fault words in the order of the stream."""
        stream = self._stream
        function = stream.gpu.programs.function(OWN, (), "snapshot")
        values = (ctypes.c_uint64(source.address), ctypes.c_uint64(to.address))
        params = (ctypes.c_void_p * 2)(*(ctypes.addressof(v) for v in values))
        at = ctypes.addressof(params)
        result = driver.launch_kernel(function, 1, 1, 1, 32, 1, 1, 0, stream.handle, at, 0)
        driver.check(result, "snapshot")

    # --- what has to live ---------------------------------------------------------------------

    def behind(self, marker: Marker) -> Held:
        """Keep what transfers so far need until a marker is done; return it."""
        held, self._now = self._now, Held()
        if held.memory or held.blocks:
            self._past.append((marker, held))
        self._sweep()
        return held

    def all_done(self) -> None:
        """Let go of everything: all is complete."""
        for held in (*(h for _, h in self._past), self._now):
            self._release(held)
        self._past.clear()
        self._now = Held()

    def _hold(self, memory: HostMemory) -> None:
        capture = self._stream.capture
        if capture is not None:
            capture.keeps.append(memory)
            return
        self._now.memory.append(memory)
        if len(self._now.memory) >= OFTEN:
            self.behind(self._stream.marker())

    def _call(self, to: int, source: int, nbytes: int, holds: Any) -> None:
        capture = self._stream.capture
        forget = self._calls.enqueue(
            self._stream.handle, to, source, nbytes, holds, often=capture is not None
        )
        if capture is not None:
            capture.forgets.append(forget)

    def _stage(self, nbytes: int) -> PinnedBlock:
        capture = self._stream.capture
        if capture is not None:
            block = self._pinned.take(nbytes)
            # Nothing else uses it until the graph has gone, or has been updated to another one.
            capture.forgets.append(partial(self._pinned.give, block))
            return block
        if self._staged + nbytes > STAGED_NBYTES:
            self.behind(self._stream.marker())
            POLLING.wait_until(self._has_room, PATIENCE_S)
        block = self._pinned.take(nbytes)
        self._now.blocks.append(block)
        self._now.nbytes += block.nbytes
        self._staged += block.nbytes
        if len(self._now.blocks) >= 8:
            self.behind(self._stream.marker())
        return block

    def _has_room(self) -> bool:
        self._sweep()
        return self._staged <= STAGED_NBYTES // 2

    def _sweep(self) -> None:
        while self._past and self._past[0][0].is_done():
            self._release(self._past.popleft()[1])

    def _release(self, held: Held) -> None:
        for block in held.blocks:
            self._pinned.give(block)
        self._staged -= held.nbytes
        held.memory, held.blocks, held.nbytes = [], [], 0
