"""What became of work whose failure OpenCL does not tell.

Two things can go wrong that the queue knows nothing of: a foreign event that failed or came too
late, and an id out of range in a kernel. Both are kept in small objects which travel with events,
so that whoever waits for work learns of its failure, also across streams (ERR-2, EVT-6).
"""

from collections.abc import Iterable, Mapping
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from ggsched.errors import DeviceFault
from ggsched_opencl.driver import COMPLETE, Handle, open_gate, status_of

FAULT_WORDS: Final = 3  # code of the node, row, number of rows


class Verdict(Protocol):
    """On some earlier work; final once ``is_settled``."""

    @property
    def is_settled(self) -> bool:
        """Whether it is known how the work ended."""

    def fault(self) -> DeviceFault | None:
        """Return a fresh fault if the work is known to have failed."""


class Gate:
    """Holds a queue until a foreign event is done (EVT-4).

    The gate is always opened, so that queues drain, but one that was given up stays failed.
    """

    def __init__(self, handle: Handle, where: str) -> None:
        self.handle = handle
        self._where = where
        self._why: BaseException | str | None = None
        self._is_open = False

    @property
    def is_settled(self) -> bool:
        """Whether it was opened."""
        return self._is_open

    def open(self, why: BaseException | str | None = None) -> None:
        """Let the queue go on; ``why`` is the reason if the wait failed. Legal twice."""
        if self._is_open:
            return
        self._why = why
        self._is_open = True
        open_gate(self.handle)

    def fault(self) -> DeviceFault | None:
        """Return the fault if the wait failed."""
        if not self._is_open or self._why is None:
            return None
        why = self._why
        text = why if isinstance(why, str) else f"{type(why).__name__}: {why}"
        fault = DeviceFault(
            "wait for an event failed",
            where=self._where,
            why=text,
            hint="the stream is poisoned: close it and open another",
        )
        if isinstance(why, BaseException):
            fault.__cause__ = why
        return fault


class IdCheck:
    """A copy of a stream's fault words, made by the queue at one point of the stream."""

    def __init__(self, where: str, labels: Mapping[int, str]) -> None:
        self.words: npt.NDArray[np.int32] = np.zeros(FAULT_WORDS, np.int32)
        self.copied: Handle = None
        self._where = where
        self._labels = labels

    @property
    def is_settled(self) -> bool:
        """Whether the copy is complete."""
        return self.copied is None or status_of(self.copied) <= COMPLETE

    def fault(self) -> DeviceFault | None:
        """Return the fault if a kernel met an id that is out of range."""
        if not self.is_settled or not self.words[0]:
            return None
        code, row, count = self.words.tolist()
        return DeviceFault(
            f"{self._labels[code]} failed",
            where=self._where,
            why=f"row {row} was asked for, there are {count} rows; zeros were put in its place",
            hint="the stream is poisoned: close it and open another",
        )


def first_fault(verdicts: Iterable[Verdict]) -> DeviceFault | None:
    """Return the first fault that is known."""
    for verdict in verdicts:
        fault = verdict.fault()
        if fault is not None:
            return fault
    return None


def still_open(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Return those that are not known to have ended well."""
    return [v for v in verdicts if not v.is_settled or v.fault() is not None]
