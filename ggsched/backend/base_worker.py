"""A stream as a thread that runs commands in the order of enqueueing."""

import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue

from ggsched.backend.base_stream import BaseStream, MemoryDevice
from ggsched.backend.program_body import Command
from ggsched.backend.progress import Progress, wait_patiently
from ggsched.backend.timeouts import late_error, start_thread
from ggsched.errors import DeviceFault, SyncTimeout

Item = tuple[Command, Callable[[], None]] | None
"""A command; None ends the worker."""


class ThreadStream(BaseStream):
    """Asynchronous as far as its commands release the GIL (STR-1..6).

    The worker starts with the first command. It knows the queue and the progress but not the
    stream, so that a stream which nobody closes ends its worker when it is collected.
    """

    def __init__(self, device: MemoryDevice, name: str) -> None:
        super().__init__(device, name)
        self._queue: SimpleQueue[Item] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def worker(self) -> Callable[[], None]:
        """Return what the thread runs, which may not hold the stream: ``work`` by default."""
        return partial(work, self._queue, self.progress)

    def _submit(self, command: Command, work: Callable[[], None]) -> None:
        if self._thread is None:  # a stream that gets none is as before (ERR-1)
            self._thread = self._start()
        self.progress.enqueued += 1
        self._queue.put((command, work))

    def _start(self) -> threading.Thread:
        thread = threading.Thread(
            target=self.worker(), name=f"ggsched {self.progress.where}", daemon=True
        )
        start_thread(thread, self.progress.where)
        weakref.finalize(self, self._queue.put, None).atexit = False
        return thread

    def close(self) -> None:
        """Let the worker finish what is enqueued, and end it; legal twice (ERR-3).

        A worker without progress for the timeout skips the rest, and events on it fail (EVT-6).
        """
        if self.is_closed:
            return
        super().close()
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return
        self._queue.put(None)
        try:
            wait_patiently(
                partial(_join, thread, self.progress.where),
                self.progress.mark,
                min(self.device.event_timeout_s, threading.TIMEOUT_MAX),
            )
        except SyncTimeout:
            unfinished = self.progress.enqueued - self.progress.done
            self.progress.fail(
                "close", DeviceFault(f"closed with {unfinished} unfinished commands")
            )


def _join(thread: threading.Thread, where: str, timeout_s: float) -> None:
    thread.join(timeout_s)
    if thread.is_alive():
        raise late_error(where, timeout_s)


def thread_clock() -> Callable[[], float] | None:
    """Return a function of the processor time of this thread, which any thread may call."""
    clock_of = getattr(time, "pthread_getcpuclockid", None)
    if clock_of is None:  # not on every system
        return None
    return partial(time.clock_gettime, clock_of(threading.get_ident()))


def work(queue: "SimpleQueue[Item]", progress: Progress) -> None:
    """Run commands until None comes."""
    progress.clock = thread_clock()
    while (item := queue.get()) is not None:
        attempt(progress, *item, lambda: None)
        del item  # nothing of a command may stay borrowed once it is complete (CPY-4, LCH-1)
        progress.finish_one()


def attempt(
    progress: Progress, command: Command, call: Callable[[], None], settle: Callable[[], None]
) -> None:
    """Run a command unless one has failed (ERR-2); if it fails, ``settle`` counts those before."""
    if progress.fault is None:
        progress.running = command
        try:
            call()
        except BaseException as error:  # there is no caller to raise it to
            settle()
            progress.fail(command, error)
        progress.running = None
        del command, call  # the traceback keeps this frame
