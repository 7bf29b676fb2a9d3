"""One call at a time on an object: a second one is refused, not made to wait.

A guard is held while a call runs and belongs to no thread between calls, so that threads may take
turns. It is not a lock: nobody ever waits for it, so that user code which runs inside a call (a
source of weights, a progress callback, the ``__dlpack__`` of an input) cannot deadlock.
"""

import os
import sys
import threading
from collections.abc import Callable
from functools import wraps
from threading import get_ident
from types import FrameType
from typing import Concatenate, Final, ParamSpec, Protocol, TypeVar

from ggsched.errors import UsageError

P = ParamSpec("P")
R = TypeVar("R")

_INNERMOST: Final = "innermost"


class _Call:
    """A call that wants to run, or that runs, and the call that it is made inside."""

    __slots__ = ("is_method", "is_open", "may_nest", "name", "outer", "thread")

    def __init__(self, name: str, is_open: bool, may_nest: bool, is_method: bool = False) -> None:
        self.name, self.is_open, self.may_nest, self.is_method = name, is_open, may_nest, is_method
        self.thread = get_ident()
        self.outer: _Call | None = None

    def is_over(self) -> bool:
        """Whether it was interrupted where it leaves: its method is not on its thread's stack.

        A block (``CallGuard.hold``) may be left and entered again, so it is never taken for over,
        nor is a call of another thread that lives: its stack changes while one looks at it.
        """
        if not self.is_method or self.thread != get_ident():
            return self.is_method and self.thread not in sys._current_frames()
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            if frame.f_code is _METHOD and frame.f_locals.get("call") is self:
                return False
            frame = frame.f_back
        return True


class CallGuard:
    """Admits calls of one thread at a time."""

    def __init__(self) -> None:
        # At most one entry. ``setdefault`` is atomic, so that of two threads one gets in.
        self._slot: dict[str, _Call] = {}
        self.process = os.getpid()

    def hold(self, name: str, *, is_open: bool = False, may_nest: bool = False) -> "_Held":
        """Return a context that runs a block as a call.

        Args:
            name: Of the call, for messages.
            is_open: Whether calls of the same thread may be made inside this one.
            may_nest: Whether this call may be made inside any call of the same thread.

        Raises:
            UsageError: another call is under way.
        """
        return _Held(self, _Call(name, is_open, may_nest))

    def _enter(self, call: _Call) -> None:
        if os.getpid() != self.process:
            raise forked_error(call.name, self.process)
        while (holder := self._slot.setdefault(_INNERMOST, call)) is not call:
            if not holder.is_over():
                break
            self._leave(holder)
        else:
            return
        if holder.thread != call.thread or not (call.may_nest or holder.is_open):
            raise _refusal(call, holder)
        # Only the thread whose call is in the slot gets here.
        call.outer = holder
        self._slot[_INNERMOST] = call

    def _leave(self, call: _Call) -> None:
        """Let others in; nothing happens if the call did not get in, whatever interrupted it."""
        if self._slot.get(_INNERMOST) is not call:
            return
        if call.outer is None:
            del self._slot[_INNERMOST]
        else:
            self._slot[_INNERMOST] = call.outer


class _Held:
    """A block that runs as a call."""

    __slots__ = ("_call", "_guard")

    def __init__(self, guard: CallGuard, call: _Call) -> None:
        self._guard, self._call = guard, call

    def __enter__(self) -> None:
        try:
            self._guard._enter(self._call)
        except BaseException:
            self._guard._leave(self._call)
            raise

    def __exit__(self, *_: object) -> None:
        self._guard._leave(self._call)


class Guarded(Protocol):
    """An object whose calls a guard admits."""

    @property
    def guard(self) -> CallGuard:
        """The guard, possibly shared with other objects."""


S = TypeVar("S", bound=Guarded)


def guarded(
    *, is_open: bool = False, may_nest: bool = False, name: str = ""
) -> Callable[[Callable[Concatenate[S, P], R]], Callable[Concatenate[S, P], R]]:
    """Return a decorator for methods that run while they hold ``self.guard``.

    Args:
        is_open: As for ``CallGuard.hold``.
        may_nest: As for ``CallGuard.hold``.
        name: For messages; that of the method, if not given.
    """

    def decorate(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
        known = name or method.__qualname__

        @wraps(method)
        def guarded_method(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
            guard, call = self.guard, _Call(known, is_open, may_nest, True)
            try:
                guard._enter(call)
                return method(self, *args, **kwargs)
            finally:
                guard._leave(call)

        return guarded_method

    return decorate


_METHOD: Final = guarded()(lambda self: None).__code__
"""What runs the call of a method, whichever it is."""


def forked_error(name: str, process: int) -> UsageError:
    """Return the error for a call in a process that was forked from the one of the devices."""
    return UsageError(
        "called in a forked process",
        where=name,
        why=f"devices, their memory and their threads belong to process {process} and do not "
        "survive a fork",
        hint="open devices after the fork, or start processes with 'spawn'",
    )


def _refusal(call: _Call, holder: _Call) -> UsageError:
    if holder.thread == call.thread:
        return UsageError(
            f"called from inside {holder.name}",
            where=call.name,
            why=f"a callback on thread {_shown(call.thread)} makes the call",
            hint=f"call it after {holder.name} has returned",
        )
    return UsageError(
        f"called on thread {_shown(call.thread)} while thread {_shown(holder.thread)} "
        f"is in {holder.name}",
        where=call.name,
        why="a scheduler and its sessions serve one call at a time",
        hint="use a scheduler per thread, or hold a lock around calls",
    )


def _shown(thread: int) -> str:
    names = {t.ident: t.name for t in threading.enumerate()}
    return f"{names.get(thread, 'unknown')!r} ({thread})"
