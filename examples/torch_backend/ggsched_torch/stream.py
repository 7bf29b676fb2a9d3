"""A stream as a worker thread. PyTorch releases the GIL while it computes."""

import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue

from ggsched.backend.base import BaseDevice, BaseStream
from ggsched.backend.program_body import Command
from ggsched.backend.progress import Progress
from ggsched.errors import DeviceFault

Item = tuple[Command, Callable[[], None]] | None
"""A command; None ends the worker."""


class WorkerStream(BaseStream):
    """Runs commands in the order of enqueueing, later (STR-1, STR-2).

    ``BaseStream`` checks arguments and says what to do; all that is left is to do it in order,
    to count what is done, and to remember the first failure (ERR-2).
    """

    def __init__(self, device: BaseDevice, name: str) -> None:
        super().__init__(device, name)
        self._queue: SimpleQueue[Item] = SimpleQueue()
        self._thread = threading.Thread(
            target=_work, args=(self._queue, self.progress), name=f"ggsched {name}", daemon=True
        )
        self._thread.start()
        # The worker does not know the stream, so one that nobody closes can still be collected.
        weakref.finalize(self, self._queue.put, None).atexit = False

    def _submit(self, command: Command, work: Callable[[], None]) -> None:
        self.progress.enqueued += 1
        self._queue.put((command, work))

    def close(self) -> None:
        """Let the worker finish what is enqueued, and end it; legal twice (ERR-3)."""
        if self.is_closed:
            return
        self.is_closed = True
        self._queue.put(None)
        if self._thread is threading.current_thread():
            return
        self._thread.join(self.device.event_timeout_s)
        if self._thread.is_alive():  # whoever waits for its events has to learn of it (EVT-6)
            self.progress.fail("close", DeviceFault("closed with unfinished commands"))


def _work(queue: "SimpleQueue[Item]", progress: Progress) -> None:
    """Run commands until None comes; after a fault only count them (ERR-2)."""
    while (item := queue.get()) is not None:
        command, work = item
        if progress.fault is None:
            try:
                work()
            except BaseException as error:  # there is no caller to raise it to
                progress.fail(command, error)
        # Nothing of a command may stay borrowed once it counts as complete (CPY-4, LCH-1).
        del item, command, work
        progress.finish_one()
