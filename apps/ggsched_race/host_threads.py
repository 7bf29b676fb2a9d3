"""Threads of the host as actors of their own, with ``--threads``.

Two threads are in order where one hands over to the other: by the start or the end of a thread, or
by a lock of ``threading`` and all that is made of locks: conditions, events, semaphores, barriers,
``queue.Queue``, futures; and by ``queue.SimpleQueue``. What a thread does before it releases a lock
comes before what another one does after it has acquired that lock. That is more order than a
program may rely on, and never less, for what is handed over so.

Other ways are not seen: a plain variable that is polled, ``collections.deque``, code in C, locks
made before the recording. So one order of all calls is the default.
"""

import os
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Final
from weakref import WeakKeyDictionary

from ggsched_race.patches import Patches
from ggsched_race.recording import HOST, Recording

_new_lock: Final = threading.Lock
_new_rlock: Final = threading.RLock


class _HandOver:
    """An event that stands for all that a thread has done; forgotten when nobody holds it.

    Attributes:
        actor: The thread's number in the trace.
        number: The event's; a later event of the thread has a larger one, and stands for more.
    """

    __slots__ = ("_recording", "actor", "number")

    def __init__(self, recording: Recording, actor: int) -> None:
        self._recording, self.actor = recording, actor
        self.number = recording.hand_over(actor)

    def __del__(self) -> None:
        self._recording.event_gone(self.number)


class _Thread:
    """What is known of a thread.

    Attributes:
        actor: Its number in the trace.
        event: Stands for all that it has done; None if that is not recorded yet.
        known: By actor the latest event of another thread that it comes after.
    """

    __slots__ = ("actor", "event", "known")

    def __init__(self, actor: int) -> None:
        self.actor = actor
        self.event: _HandOver | None = None
        self.known: dict[int, int] = {}


class HostThreads:
    """The order of the threads of a recorded program.

    Args:
        recording: Where it is recorded; the calling thread is its first actor.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        recording.thread_actor = self.actor
        self._threads: WeakKeyDictionary[threading.Thread, _Thread] = WeakKeyDictionary()
        first = self._threads[threading.current_thread()] = _Thread(HOST)
        self._outside = first
        self._ends: WeakKeyDictionary[threading.Thread, _HandOver | None] = WeakKeyDictionary()
        self._starts: WeakKeyDictionary[threading.Thread, _HandOver | None] = WeakKeyDictionary()
        self._local = threading.local()
        self._is_on, self._process = True, os.getpid()

    @property
    def _is_recorded(self) -> bool:
        """Whether hand-overs are recorded; a forked process has copies of the locks."""
        return self._is_on and os.getpid() == self._process

    def stop(self) -> None:
        """Record nothing more; locks that were made stay in use."""
        self._is_on = False

    def here(self) -> _Thread:
        """Return the calling thread; in one of the engine that of the backward pass."""
        own: _Thread | None = getattr(self._local, "state", None)
        thread = threading._active.get(threading.get_ident())  # type: ignore[attr-defined]
        if own is not None or thread is None:
            return own or self._outside
        state = self._threads.get(thread)
        if state is None:
            actor = self._recording.host_thread(thread.name)
            state = self._threads[thread] = _Thread(actor)
        return state

    def calls_engine(self) -> _Thread:
        """Let threads that Python does not know act for the calling one; return the last one."""
        before, self._outside = self._outside, self.here()
        return before

    def returned(self, before: _Thread) -> None:
        """End what ``calls_engine`` has begun."""
        self._outside = before

    def actor(self, is_own: bool) -> int:
        """Return the actor of the calling thread; note whether it does something itself."""
        state = self.here()
        if is_own:
            state.event = None
        return state.actor

    def release(self) -> _HandOver | None:
        """Return an event that stands for all that the calling thread has done."""
        if not self._is_recorded:
            return None
        with self._recording.lock:
            state = self.here()
            if state.event is None:
                state.event = _HandOver(self._recording, state.actor)
            return state.event

    def acquire(self, event: _HandOver | None) -> None:
        """Let the calling thread come after an event; after nothing if there is none."""
        if event is None or not self._is_recorded:
            return
        with self._recording.lock:
            state = self.here()
            if state.actor != event.actor and state.known.get(event.actor, -1) < event.number:
                state.known[event.actor] = event.number
                state.event = None
                self._recording.take_over(state.actor, event.number)

    # --- what hands over --------------------------------------------------------------------------

    def started(self, thread: threading.Thread) -> None:
        """Note that the calling thread starts another one."""
        self._starts[thread] = self.release()

    @contextmanager
    def running(self, thread: threading.Thread) -> Iterator[None]:
        """Note that a thread begins and ends, in that thread."""
        actor = self._recording.host_thread(thread.name)
        self._local.state = self._threads[thread] = _Thread(actor)
        self.acquire(self._starts.get(thread))
        try:
            yield
        finally:
            self._ends[thread] = self.release()

    def joined(self, thread: threading.Thread) -> None:
        """Note that the calling thread has seen another one end."""
        self.acquire(self._ends.get(thread))

    def patch(self, patches: Patches) -> None:
        """Replace locks, queues, and starts and ends of threads."""
        threads, start, join = self, threading.Thread.start, threading.Thread.join
        run = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

        class Lock(_Lock):
            __slots__ = ()
            made_by, of = staticmethod(_new_lock), threads

        class RLock(_Lock):
            __slots__ = ()
            made_by, of = staticmethod(_new_rlock), threads

        class SimpleQueue(queue.SimpleQueue[Any]):
            def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
                super().put((threads.release(), item), block, timeout)

            def put_nowait(self, item: Any) -> None:
                self.put(item)

            def get(self, block: bool = True, timeout: float | None = None) -> Any:
                event, item = super().get(block, timeout)
                threads.acquire(event)
                return item

            def get_nowait(self) -> Any:
                return self.get(False)

        def started(thread: threading.Thread) -> None:
            threads.started(thread)
            start(thread)

        def bootstrap(thread: threading.Thread) -> None:
            with threads.running(thread) if threads._is_recorded else nullcontext():
                run(thread)

        def joined(thread: threading.Thread, timeout: float | None = None) -> None:
            join(thread, timeout)
            if not thread.is_alive():
                threads.joined(thread)

        patches.set(threading, "Lock", Lock)
        patches.set(threading, "RLock", RLock)
        patches.set(queue, "SimpleQueue", SimpleQueue)
        patches.set(threading.Thread, "start", started)
        patches.set(threading.Thread, "_bootstrap_inner", bootstrap)
        patches.set(threading.Thread, "join", joined)


class _Lock:
    """A lock that hands over what its holder has done to the next holder."""

    __slots__ = ("__weakref__", "_event", "_lock")
    made_by: Any
    of: HostThreads

    def __init__(self) -> None:
        self._lock = self.made_by()
        self._event: _HandOver | None = None

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """The native class, for ``isinstance``."""
        return type(self._lock)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._lock.__reduce_ex__(protocol)  # says that it cannot be pickled or copied

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Acquire the lock, and come after who has released it."""
        got = self._lock.acquire(blocking, timeout)
        if got:
            self.of.acquire(self._event)
        return bool(got)

    def release(self) -> None:
        """Release the lock."""
        self._event = self.of.release()
        self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()

    def __getattr__(self, name: str) -> Any:
        # What conditions use of a lock that its holder may acquire again, where there is such.
        native = getattr(self._lock, name)
        if name == "_release_save":

            def release_save() -> Any:
                self._event = self.of.release()
                return native()

            return release_save
        if name == "_acquire_restore":

            def acquire_restore(state: Any) -> None:
                native(state)
                self.of.acquire(self._event)

            return acquire_restore
        return native
