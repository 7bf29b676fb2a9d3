"""Commands behind a wait for an event of another backend, kept by the host until that is done.

A library's queue can wait for nothing but its own events, and it cannot drop what it was given. So
a thread waits for a foreign event, and what the stream is given meanwhile is kept in a backlog: the
thread hands it to the queue, in order, once the event is done. If the wait fails, takes too long,
or is cancelled, the rest of the backlog is dropped and never takes effect (EVT-2, ERR-2). The queue
itself therefore never holds a command that might not end.
"""

import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from math import inf
from queue import SimpleQueue
from typing import Any, Final, NamedTuple

from ggsched.backend.events import lasting_wait
from ggsched.backend.progress import progress_of
from ggsched.backend.protocols import Event
from ggsched.backend.queued.error_state import POISONED, ErrorState
from ggsched.backend.queued.events import LatePoint
from ggsched.backend.queued.polling import Polling
from ggsched.backend.timeouts import late_error, start_thread
from ggsched.errors import DeviceFault, GgschedError, SyncTimeout

SLICE_S: Final = 0.05
"""A thread that waits looks this often whether its backlog was cancelled."""

CLOSED: Final = "it was closed before the event was done"

Drop = Callable[[DeviceFault], None]


class _Item(NamedTuple):
    """A command or a wait.

    Attributes:
        command: For messages.
        run: Enqueues the command, or waits for a slice of time.
        drop: Called with the fault in place of ``run``, or after ``run`` has failed.
        timeout_s: Of a wait: seconds without progress; None for commands.
        mark: Of a wait: returns a value that changes with progress of what is waited for.
    """

    command: str
    run: Callable[[], None]
    drop: Drop | None
    timeout_s: float | None
    mark: Callable[[], object] | None = None


class Backlog:
    """What a stream was given behind a wait for a foreign event.

    While it is pending, its thread alone uses the stream's queue. The thread starts with the first
    wait. Commands hold their stream, so a stream that is forgotten lives until it is drained.

    Args:
        where: Name of the stream.
        faults: Of the stream. A wait that fails poisons it.

    Attributes:
        is_pending: Whether commands have to go through it, to stay behind those that are in it. A
            plain attribute, since each command of the stream reads it.
    """

    def __init__(self, where: str, faults: ErrorState) -> None:
        self.is_pending = False
        self._where, self._faults = where, faults
        self._queue: SimpleQueue[_Item | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._added = self._handled = 0
        self._beats = 0  # times that a wait saw progress
        self._stop = threading.Event()
        self._lock = threading.Lock()  # held while a command is handed to the queue
        self._guard = threading.Lock()  # of what counts items, and of whether the thread has ended
        self._is_over = False

    def progress(self) -> Callable[[], tuple[int, int]]:
        """Return a function of how far it is, which does not keep the stream alive."""
        return lambda: (self._handled, self._beats)

    def add(self, command: str, run: Callable[[], None], drop: Drop | None = None) -> None:
        """Keep a command.

        Args:
            command: For messages.
            run: Enqueues it. What it raises poisons the stream.
            drop: Called with the fault if the command is dropped or fails.
        """
        self._put(_Item(command, run, drop, None))

    def add_always(self, command: str, run: Callable[[], None]) -> None:
        """Run something behind what is pending, whatever becomes of that; now if nothing is."""
        item = _Item(command, run, lambda _: run(), None)
        if not (self.is_pending and self._put(item)):
            run()

    def wait(self, event: Event, timeout_s: float) -> None:
        """Keep what follows until a foreign event is done.

        It is dropped if the event fails, or does not progress for the timeout once its turn came.
        """
        mark = partial(progress_of, event)
        wait = lasting_wait(event, SLICE_S)
        self._put(_Item("wait for an event", wait, None, timeout_s, mark))

    def wait_for_point(self, point: LatePoint[Any]) -> None:
        """Keep what follows until another stream's queue has reached a point's commands."""
        self.wait_for("wait for an event", point.require_issued)

    def wait_for(self, command: str, require: Callable[[float], None]) -> None:
        """Keep what follows for as long as it takes.

        Args:
            command: For messages.
            require: Blocks for at most the given seconds, and raises ``SyncTimeout`` if the wait is
                not over then.
        """
        self._put(_Item(command, lambda: require(SLICE_S), None, inf))

    def drain(self, polling: Polling, timeout_s: float) -> float:
        """Block until nothing is pending; return what is left of the timeout.

        Raises:
            SyncTimeout: something still is; nothing has changed.
        """
        if not self.is_pending:
            return timeout_s
        end = time.monotonic() + timeout_s
        if not polling.wait_until(lambda: not self.is_pending, timeout_s):
            raise late_error(self._where, timeout_s)
        return max(0.0, end - time.monotonic())

    def pause(self) -> None:
        """Hand nothing to the queue until ``resume``."""
        self._lock.acquire()

    def resume(self) -> None:
        """Go on after ``pause``."""
        self._lock.release()

    def finish(self, end: Callable[[], None]) -> None:
        """Call ``end`` behind what is pending, then end the thread."""
        self.add_always("close", end)
        self._queue.put(None)

    def cancel(self) -> None:
        """Give up waits that are not over, and what is behind them; end the thread; legal twice."""
        self._stop.set()
        self._queue.put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _put(self, item: _Item) -> bool:
        """Hand an item to the thread; return False if that has ended for good."""
        with self._guard:
            if self._is_over:
                return False
            self._added += 1
            self.is_pending = True
            self._queue.put(item)
        if self._thread is None:
            thread = threading.Thread(
                target=self._run, name=f"ggsched {self._where} waits", daemon=True
            )
            try:
                start_thread(thread, self._where)
            except BaseException:
                with self._guard:
                    self._queue.get_nowait()
                    self._added -= 1
                    self.is_pending = False
                raise
            self._thread = thread
        return True

    def _run(self) -> None:
        is_ending = False
        while True:
            if is_ending:
                with self._guard:
                    if self._queue.empty():
                        self._is_over = True
                        return
            item = self._queue.get()
            if item is None:
                is_ending = True
                continue
            fault = self._faults.known()
            if fault is None:
                fault = self._fault_of(item)
                self._faults.poison(fault)
            if fault is not None and item.drop is not None:
                item.drop(fault)
            del item, fault  # nothing of a command may stay borrowed once it counts as enqueued
            with self._guard:  # ``_put`` may add another one meanwhile
                self._handled += 1
                self.is_pending = self._handled != self._added

    def _fault_of(self, item: _Item) -> DeviceFault | None:
        """Wait, or run a command; return how it failed, or None."""
        why: BaseException | str | None = None
        try:
            if item.timeout_s is not None:
                why = self._outcome(item, item.timeout_s)
            elif self._acquired():
                try:
                    item.run()
                finally:
                    self._lock.release()
            else:
                why = CLOSED
        except BaseException as error:  # there is no caller to raise it to
            # The frames would keep memory borrowed (CPY-4).
            traceback.clear_frames(error.__traceback__)
            why = error
        if why is None:
            return None
        if isinstance(why, DeviceFault) and item.timeout_s in (None, inf):
            return why  # it names the command that failed, of this stream or of the one waited for
        text = why if isinstance(why, str) else f"{type(why).__name__}: {why}"
        fault = DeviceFault(f"{item.command} failed", where=self._where, why=text, hint=POISONED)
        if isinstance(why, BaseException):
            fault.__cause__ = why
        return fault

    def _acquired(self) -> bool:
        """Wait until the backlog is not paused; return False if it was cancelled before."""
        while not self._lock.acquire(timeout=SLICE_S):
            if self._stop.is_set():
                return False
        return True

    def _outcome(self, item: _Item, timeout_s: float) -> SyncTimeout | str | None:
        """Wait, slice by slice, while there is progress; return why it was given up, or None."""
        progress = item.mark or (lambda: None)
        mark, deadline = progress(), time.monotonic() + timeout_s
        while True:
            try:
                item.run()
            except SyncTimeout:
                if self._stop.is_set():
                    return CLOSED
                now = progress()
                if now != mark:
                    mark, deadline = now, time.monotonic() + timeout_s
                    self._beats += 1
                elif time.monotonic() >= deadline:
                    return late_error(self._where, timeout_s, "an event that it waits for is")
            else:
                return None


def succeeded(event: Event) -> bool:
    """Whether an event of any backend is done and did not fail, so that nobody has to wait."""
    if not event.is_done:
        return False
    try:
        event.sync(0.0)
    except GgschedError:
        return False
    return True
