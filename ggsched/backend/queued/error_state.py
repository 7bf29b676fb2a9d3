"""What became of work whose failure the library does not tell.

A queue may know nothing of some things that go wrong: an event of another backend that failed or
came too late, an id out of range in a kernel. Each is kept in a small object, a *verdict*, that
travels with events, so that whoever waits for work learns of its failure, also across streams
(ERR-2, EVT-6).
"""

from collections.abc import Callable, Iterable
from typing import Final, Protocol

from ggsched.errors import DeviceFault

POISONED: Final = "the stream is poisoned: close it and open another"

MANY: Final = 16
"""Verdicts, after which those that ended well are dropped."""


class PendingStatus(Protocol):
    """On some earlier work; final once ``is_settled``."""

    @property
    def is_settled(self) -> bool:
        """Whether it is known how the work ended."""

    def fault(self) -> DeviceFault | None:
        """Return a fresh fault if the work is known to have failed."""


class ExternalWait:
    """Holds a stream until an event of another backend is done (EVT-4).

    A gate is always opened, so that streams drain, but one that was given up stays failed.

    Args:
        release: Lets the stream go on, from any thread.
        where: Name of the stream.
    """

    def __init__(self, release: Callable[[], None], where: str) -> None:
        self._release = release
        self._where = where
        self._why: BaseException | str | None = None
        self._is_open = False

    @property
    def is_settled(self) -> bool:
        """Whether it was opened."""
        return self._is_open

    def open(self, why: BaseException | str | None = None) -> None:
        """Let the stream go on; ``why`` is the reason if the wait failed. Legal twice."""
        if self._is_open:
            return
        self._why = why
        self._is_open = True
        self._release()

    def fault(self) -> DeviceFault | None:
        """Return the fault if the wait failed."""
        if not self._is_open or self._why is None:
            return None
        why = self._why
        text = why if isinstance(why, str) else f"{type(why).__name__}: {why}"
        fault = DeviceFault("wait for an event failed", where=self._where, why=text, hint=POISONED)
        if isinstance(why, BaseException):
            fault.__cause__ = why
        return fault


class KnownStatus:
    """The verdict of a stream that is poisoned already."""

    is_settled = True

    def __init__(self, fault: DeviceFault) -> None:
        self._fault = fault

    def fault(self) -> DeviceFault:
        """Return the fault."""
        return reraise_copy(self._fault)


class ErrorState:
    """What has gone wrong on a stream, and what may yet be found to have (ERR-2)."""

    __slots__ = ("_first", "_verdicts")

    def __init__(self) -> None:
        self._first: DeviceFault | None = None
        self._verdicts: list[PendingStatus] = []

    def add(self, verdicts: Iterable[PendingStatus]) -> None:
        """Depend on more work, of this stream or of one that it waits for."""
        self._verdicts.extend(verdicts)
        if len(self._verdicts) > MANY:
            self._verdicts = [v for v in self._verdicts if not v.is_settled or v.fault()]

    def poison(self, fault: DeviceFault | None) -> None:
        """Remember a fault, if there is one, unless another one was first."""
        self._first = self._first or fault

    def known(self) -> DeviceFault | None:
        """Return the first fault that is known; never blocks."""
        if self._first is None and self._verdicts:
            self._first = first_fault(self._verdicts)
        return self._first

    def require_none(self) -> None:
        """Refuse to go on after a fault.

        Raises:
            DeviceFault: a fresh one, each time.
        """
        fault = self.known()
        if fault is not None:
            raise reraise_copy(fault)

    def verdicts(self) -> list[PendingStatus]:
        """Return what an event that is recorded now has to pass on (EVT-6)."""
        if self._first is None:
            return list(self._verdicts)
        return [KnownStatus(self._first), *self._verdicts]

    def all_is_well(self) -> None:
        """Drop all verdicts: the work is complete, and none of it failed."""
        self._verdicts.clear()

    def __len__(self) -> int:
        """Return the number of verdicts that are kept."""
        return len(self._verdicts)


def first_fault(verdicts: Iterable[PendingStatus]) -> DeviceFault | None:
    """Return the first fault that is known."""
    for verdict in verdicts:
        fault = verdict.fault()
        if fault is not None:
            return fault
    return None


def reraise_copy(fault: DeviceFault) -> DeviceFault:
    """Return a fresh exception like one that was raised before."""
    fresh = DeviceFault(
        fault.what, where=fault.where, why=fault.why, hint=fault.hint, story=fault.story
    )
    fresh.__cause__ = fault.__cause__
    return fresh
