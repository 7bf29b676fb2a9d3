"""A thread that waits for events of other backends on behalf of a stream.

For backends whose library cannot wait for what is not its own, but can hold its queue at a gate.
"""

import threading
import time
import traceback
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final

from ggsched.backend.protocols import Event
from ggsched.backend.queued.error_state import ExternalWait
from ggsched.errors import GgschedError, SyncTimeout

SLICE_S: Final = 0.05  # after this long a waiting thread looks whether it is still wanted
CLOSED: Final = "the stream was closed before the event was done"


Wait = Callable[[], None]
Item = tuple[ExternalWait, Wait, float] | None


class Waiter:
    """Opens gates in the order of the stream's waits; its thread starts with the first.

    The thread does not know who uses the ``Waiter``, and so does not keep it alive.

    Args:
        name: Of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: SimpleQueue[Item] = SimpleQueue()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, gate: ExternalWait, event: Event, timeout_s: float) -> None:
        """Open ``gate`` when ``event`` is done, or failed, or late."""
        self._queue.put((gate, _wait_for(event), time.monotonic() + timeout_s))
        if self._thread is None:
            self._thread = threading.Thread(
                target=_work, args=(self._queue, self._stop), name=self._name, daemon=True
            )
            self._thread.start()

    def close(self) -> None:
        """Open what is still shut, as failed, and end the thread; legal twice."""
        self._stop.set()
        self._queue.put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()


def _wait_for(event: Event) -> Wait:
    """Return a call that waits for a slice of time.

    An event may be closed as soon as the wait for it was enqueued; backends that know of that
    offer a wait that outlives it.
    """
    lasting = getattr(event, "waiter", None)
    if lasting is not None:
        wait: Wait = lasting(SLICE_S)
        return wait
    return lambda: event.sync(SLICE_S)


def _work(queue: "SimpleQueue[Item]", stop: threading.Event) -> None:
    while (item := queue.get()) is not None:
        gate, wait, deadline = item
        gate.open(_outcome(wait, deadline, stop))
        del item, gate, wait


def _outcome(wait: Wait, deadline: float, stop: threading.Event) -> BaseException | str | None:
    """Wait; return why that failed, or None."""
    while not stop.is_set():
        try:
            wait()
        except SyncTimeout as error:
            if time.monotonic() >= deadline:
                return error
        except BaseException as error:  # a thread has nobody else to tell
            # The frames would keep memory borrowed (CPY-4).
            traceback.clear_frames(error.__traceback__)
            return error
        else:
            return None
    return CLOSED


def succeeded(event: Event) -> bool:
    """Whether an event of any backend is done and did not fail, so that nobody has to wait."""
    if not event.is_done:
        return False
    try:
        event.sync(0.0)
    except GgschedError:
        return False
    return True
