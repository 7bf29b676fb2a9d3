"""Kernels that are several calls: whether groups meet, where memory is, and one at a time."""

import struct
import threading
from collections.abc import Sequence
from typing import Any, Final

from ggsched_kernels.calls import i32
from ggsched_kernels.merged import Merged
from ggsched_opencl import driver
from ggsched_opencl.driver import COMPLETE, Handle, status_of

MAX_POLLS: Final = struct.pack("<I", 1 << 24)
"""Looks at the count of groups that have arrived, each about a microsecond, until it is a fault."""

PROBE_POLLS: Final = struct.pack("<I", 1 << 15)
"""The same for finding out whether groups meet."""


class Merging:
    """What merged kernels need of their device. Any thread may call it.

    Args:
        context: Of the device.
        queue: Of that context, for what is found out.
    """

    def __init__(self, context: Any, queue: Handle) -> None:
        self._context = context
        self._queue = queue
        self._found: dict[str, bool] = {}
        self._newest: tuple[Handle, Handle] | None = None
        self._lock: Final = threading.Lock()

    def do_meet(self, made: Merged, kernel: Handle, groups: int) -> bool:
        """Whether all groups of a kernel are on the device at once; found out once."""
        with self._lock:
            if made.name not in self._found:
                self._found[made.name] = self._meet(kernel, groups, made.lanes)
            return self._found[made.name]

    def _meet(self, kernel: Handle, groups: int, lanes: int) -> bool:
        """Whether the driver takes all groups and these wait for each other, if not for long."""
        nothing = driver.make_filled_buffer(self._context, bytes(64))
        found = driver.make_filled_buffer(self._context, bytes(4 * groups))
        given = (found, i32(0), nothing, PROBE_POLLS, nothing, i32(0))
        for i, value in enumerate(given):
            driver.set_argument(kernel, i, value)
        try:
            self._enqueue(self._queue, kernel, (groups * lanes, 1, 1), (lanes, 1, 1))
        except driver.errors():
            return False
        words = memoryview(bytearray(4 * groups))
        driver.read_back(self._queue, found, words)
        return all(words.cast("i"))

    def addresses(self, kernel: Handle, buffers: Sequence[Handle]) -> list[int]:
        """Return where buffers are, which stays so: a context has one device."""
        places = driver.make_filled_buffer(self._context, bytes(8 * len(buffers)))
        with self._lock:
            driver.set_argument(kernel, 0, places)
            for i, buffer in enumerate(buffers):
                driver.set_argument(kernel, 1, i32(i))
                driver.set_argument(kernel, 2, buffer)
                driver.enqueue_kernel(self._queue, kernel, (1,), (1,))
            words = memoryview(bytearray(8 * len(buffers)))
            driver.read_back(self._queue, places, words)
        return list(words.cast("Q"))

    def enqueue(
        self, queue: Handle, kernel: Handle, items: tuple[int, ...], group: tuple[int, ...]
    ) -> Handle:
        """Enqueue a merged kernel, behind that of another queue: two would wait for room."""
        with self._lock:
            return self._enqueue(queue, kernel, items, group)

    def _enqueue(self, queue: Handle, *command: Any) -> Handle:
        newest = self._newest
        if newest and newest[0] is not queue and status_of(newest[1]) > COMPLETE:
            driver.enqueue_wait(queue, newest[1])
            driver.flush(newest[0])
        event = driver.enqueue_kernel(queue, *command)
        self._newest = queue, event
        return event
