"""The outcome of work whose failure the library does not report.

A queue may not know of some failures, such as an id out of range in a kernel. Each is kept in a
small object, a *pending status*, that travels with events, so that whoever waits for work learns of
its failure, also across streams (ERR-2, EVT-6).
"""

import threading
from collections.abc import Iterable
from typing import Final, Protocol

from ggsched.errors import DeviceFault

POISONED: Final = "the stream is poisoned: close it and open another"

MANY: Final = 4
"""Verdicts, after which those that ended well are dropped."""


class PendingStatus(Protocol):
    """On some earlier work; final once ``is_settled``."""

    @property
    def is_settled(self) -> bool:
        """Whether it is known how the work ended."""

    def fault(self) -> DeviceFault | None:
        """Return a fresh fault if the work is known to have failed."""


class KnownStatus:
    """The status of a stream that is poisoned already."""

    is_settled = True

    def __init__(self, fault: DeviceFault) -> None:
        self._fault = fault

    def fault(self) -> DeviceFault:
        """Return the fault."""
        return reraise_copy(self._fault)


class ErrorState:
    """What has gone wrong on a stream, and what may yet be found to have (ERR-2)."""

    __slots__ = ("_first", "_lock", "_statuses")

    def __init__(self) -> None:
        self._first: DeviceFault | None = None
        self._lock = threading.Lock()
        self._statuses: list[PendingStatus] = []

    def add(self, statuses: Iterable[PendingStatus]) -> None:
        """Depend on more work, of this stream or of one that it waits for."""
        self._statuses.extend(statuses)
        if len(self._statuses) > MANY:
            self._statuses = [v for v in self._statuses if not v.is_settled or v.fault()]

    def poison(self, fault: DeviceFault | None) -> None:
        """Remember a fault, if there is one, unless another one was first."""
        if fault is not None:
            with self._lock:  # the stream's caller and its backlog may both find one
                self._first = self._first or fault

    def known(self) -> DeviceFault | None:
        """Return the first fault that is known; never blocks."""
        if self._first is None and self._statuses:
            self.poison(first_fault(self._statuses))
        return self._first

    def require_none(self) -> None:
        """Refuse to go on after a fault.

        Raises:
            DeviceFault: a fresh one, each time.
        """
        fault = self.known()
        if fault is not None:
            raise reraise_copy(fault)

    def statuses(self) -> list[PendingStatus]:
        """Return what an event that is recorded now has to pass on (EVT-6)."""
        if self._first is None:
            return list(self._statuses)
        return [KnownStatus(self._first), *self._statuses]

    def all_is_well(self) -> None:
        """Drop all statuses: the work is complete, and none of it failed."""
        self._statuses.clear()

    def __len__(self) -> int:
        """Return the number of statuses that are kept."""
        return len(self._statuses)


def first_fault(statuses: Iterable[PendingStatus]) -> DeviceFault | None:
    """Return the first fault that is known."""
    for status in statuses:
        fault = status.fault()
        if fault is not None:
            return fault
    return None


def reraise_copy(fault: DeviceFault) -> DeviceFault:
    """Return a fresh exception like one that was raised before, with the first one as cause."""
    fresh = DeviceFault(
        fault.what, where=fault.where, why=fault.why, hint=fault.hint, details=fault.details
    )
    fresh.__cause__ = fault.__cause__ or fault
    return fresh
