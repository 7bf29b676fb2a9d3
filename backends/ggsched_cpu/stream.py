"""A stream as a worker thread that runs commands in the order of enqueueing."""

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final

from ggsched.backend.base import BaseStream
from ggsched.backend.program_body import Command
from ggsched.backend.progress import Progress, wait_patiently
from ggsched.backend.protocols import Program
from ggsched.backend.timeouts import late_error, start_thread
from ggsched.errors import DeviceFault, SyncTimeout
from ggsched_cpu.program import Segment

if TYPE_CHECKING:
    from ggsched.backend.base import BaseDevice
    from ggsched_cpu.runner import Runner

BRIEF_S: Final = 0.02
"""What lasts longer is left to the worker: the caller can be interrupted meanwhile, and what a
hand-over takes, some 0.1 ms, does not count."""

Item = tuple[Command, Callable[[], None]] | None
"""A command; None ends the worker."""


class WorkerStream(BaseStream):
    """Truly asynchronous: kernels run without the GIL (STR-1..6).

    The worker starts with the first command. It knows the queue and the progress but not the
    stream, so that a stream which nobody closes ends its worker when it is collected.
    """

    def __init__(self, device: "BaseDevice", name: str) -> None:
        super().__init__(device, name)
        self._queue: SimpleQueue[Item] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self.runner: Runner | None = None
        self._is_here = False

    def __run_here__(self, enqueue: Callable[[], None], programs: Sequence[Program]) -> None:
        """Call ``enqueue``; run what it enqueues on this thread, if that cannot take long.

        That is so if nothing is before it, and each program ran in ``BRIEF_S`` the last time. See
        ``ggsched.run.waiting_host``.

        Args:
            enqueue: Enqueues a command.
            programs: What is launched with it or behind it.
        """
        progress = self.progress
        self._is_here = progress.done == progress.enqueued and _are_brief(programs)
        try:
            enqueue()
        finally:
            self._is_here = False

    def _submit(self, command: Command, work: Callable[[], None]) -> None:
        if self._is_here:
            self._run_here(command, work)
            return
        if self._thread is None:  # a stream that gets none is as before (ERR-1)
            self._thread = self._start()
        self.progress.enqueued += 1
        self._queue.put((command, work))

    def _run_here(self, command: Command, work: Callable[[], None]) -> None:
        """Run a command; what is interrupted and can be begun again is left to the worker."""
        progress = self.progress
        try:
            work()
        except BaseException as error:
            is_interrupt = not isinstance(error, Exception)
            if is_interrupt and isinstance(command, str):
                self._is_here = False
                self._submit(command, work)
                raise
            progress.enqueued += 1
            progress.fail(command, error)
            progress.finish_one()
            if is_interrupt:
                raise
            return
        progress.enqueued += 1
        progress.finish_one()

    def _start(self) -> threading.Thread:
        thread = threading.Thread(
            target=_work,
            args=(self._queue, self.progress),
            name=f"ggsched {self.progress.where}",
            daemon=True,
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
        try:
            self._end_worker()
        finally:
            if self.runner is not None:
                self.runner.close()

    def _end_worker(self) -> None:
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


def _are_brief(programs: Sequence[Program]) -> bool:
    for program in programs:
        body = getattr(program, "body", None)
        if not isinstance(body, Segment) or body.seconds >= BRIEF_S:
            return False
    return True


def _join(thread: threading.Thread, where: str, timeout_s: float) -> None:
    thread.join(timeout_s)
    if thread.is_alive():
        raise late_error(where, timeout_s)


def _thread_clock() -> Callable[[], float] | None:
    """Return a function of the processor time of this thread, which any thread may call."""
    clock_of = getattr(time, "pthread_getcpuclockid", None)
    if clock_of is None:  # not on every system
        return None
    return partial(time.clock_gettime, clock_of(threading.get_ident()))


def _work(queue: "SimpleQueue[Item]", progress: Progress) -> None:
    """Run commands until None comes; after a fault skip them (ERR-2)."""
    progress.clock = _thread_clock()
    while (item := queue.get()) is not None:
        if progress.fault is None:
            command, work = item
            progress.running = command
            try:
                work()
            except BaseException as error:  # there is no caller to raise it to
                progress.fail(command, error)
            # Nothing of a command may stay borrowed once it counts as complete (CPY-4, LCH-1).
            progress.running = None
            del command, work
            progress.running = None
        del item
        progress.finish_one()
