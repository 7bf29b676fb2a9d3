"""One call at a time on an object: a second one is refused, not made to wait.

A guard is held while a call runs and belongs to no thread between calls, so that threads may take
turns. It is not a lock: nobody ever waits for it, so that user code which runs inside a call (a
source of weights, a progress callback, the ``__dlpack__`` of an input) cannot deadlock.
"""

from collections.abc import Callable
from functools import wraps
from threading import Thread, current_thread
from types import TracebackType
from typing import Concatenate, Final, ParamSpec, Protocol, TypeVar

from ggsched.errors import UsageError

P = ParamSpec("P")
R = TypeVar("R")

_INNERMOST: Final = "innermost"


class CallGuard:
    """Admits calls of one thread at a time."""

    def __init__(self) -> None:
        # At most one entry. ``setdefault`` is atomic, so that of two threads one gets in.
        self._slot: dict[str, Hold] = {}

    def hold(self, call: str, *, is_open: bool = False, may_nest: bool = False) -> "Hold":
        """Return a context in which a call runs; entering it raises ``UsageError`` if one does.

        Args:
            call: Name of the call, for messages.
            is_open: Whether calls of the same thread may be made inside this one.
            may_nest: Whether this call may be made inside any call of the same thread.
        """
        return Hold(self._slot, call, is_open, may_nest)


class Hold:
    """One call that wants to run, or that runs; for one ``with`` block."""

    __slots__ = ("_call", "_is_open", "_may_nest", "_outer", "_slot", "_thread")

    def __init__(self, slot: dict[str, "Hold"], call: str, is_open: bool, may_nest: bool) -> None:
        self._slot, self._call = slot, call
        self._is_open, self._may_nest = is_open, may_nest
        self._thread: Thread = current_thread()
        self._outer: Hold | None = None

    def __enter__(self) -> None:
        try:
            holder = self._slot.setdefault(_INNERMOST, self)
            if holder is self:
                return
            if holder._thread is not self._thread or not (self._may_nest or holder._is_open):
                raise self._refusal(holder)
            # Only the thread whose calls are in the slot gets here.
            self._outer = holder
            self._slot[_INNERMOST] = self
        except BaseException:  # an interrupt must not leave the guard held
            self._leave()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._leave()

    def _leave(self) -> None:
        if self._slot.get(_INNERMOST) is not self:
            return
        if self._outer is None:
            del self._slot[_INNERMOST]
        else:
            self._slot[_INNERMOST] = self._outer

    def _refusal(self, holder: "Hold") -> UsageError:
        if holder._thread is self._thread:
            return UsageError(
                f"called from inside {holder._call}",
                where=self._call,
                why=f"a callback on thread {_shown(self._thread)} makes the call",
                hint=f"call it after {holder._call} has returned",
            )
        return UsageError(
            f"called on thread {_shown(self._thread)} while thread {_shown(holder._thread)} "
            f"is in {holder._call}",
            where=self._call,
            why="a scheduler and its sessions serve one call at a time",
            hint="use a scheduler per thread, or hold a lock around calls",
        )


class Guarded(Protocol):
    """An object whose calls a guard admits."""

    @property
    def guard(self) -> CallGuard:
        """The guard, possibly shared with other objects."""


S = TypeVar("S", bound=Guarded)


def guarded(
    *, is_open: bool = False, may_nest: bool = False
) -> Callable[[Callable[Concatenate[S, P], R]], Callable[Concatenate[S, P], R]]:
    """Return a decorator for methods that run while they hold ``self.guard``.

    Args:
        is_open: As for ``CallGuard.hold``.
        may_nest: As for ``CallGuard.hold``.
    """

    def decorate(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
        name = method.__qualname__

        @wraps(method)
        def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
            with self.guard.hold(name, is_open=is_open, may_nest=may_nest):
                return method(self, *args, **kwargs)

        return call

    return decorate


def _shown(thread: Thread) -> str:
    return f"{thread.name!r} ({thread.ident})"
