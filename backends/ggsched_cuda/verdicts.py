"""What became of work whose failure the driver does not tell.

Two things can go wrong that a stream of CUDA knows nothing of: a foreign event that failed or came
too late, and an id out of range in a kernel. Both are kept in small objects which travel with
events, so that whoever waits for work learns of its failure, also across streams (ERR-2, EVT-6).
"""

from collections.abc import Callable, Iterable
from typing import Final, Protocol

from ggsched.errors import DeviceFault
from ggsched_cuda.pinned import PinnedMemory, Quad

POISONED: Final = "the stream is poisoned: close it and open another"
LOST: Final = (
    "the card is lost to this process: CUDA ends all work of a context after such an error"
)


class Verdict(Protocol):
    """On some earlier work; final once ``is_settled``."""

    @property
    def is_settled(self) -> bool:
        """Whether it is known how the work ended."""

    def fault(self) -> DeviceFault | None:
        """Return a fresh fault if the work is known to have failed."""


class Gate:
    """Holds a stream until a foreign event is done (EVT-4): a count that the stream waits for.

    The gate is always opened, so that streams drain, but one that was given up stays failed.

    Args:
        quad: Words of the stream; the last one counts the gates that are open.
        count: Which gate of the stream this is, from one.
        where: Name of the stream.
    """

    def __init__(self, quad: Quad, count: int, where: str) -> None:
        self._quad = quad
        self._count = count
        self._where = where
        self._why: BaseException | str | None = None
        self._is_open = False

    @property
    def is_settled(self) -> bool:
        """Whether it was opened."""
        return self._is_open

    def open(self, why: BaseException | str | None = None) -> None:
        """Let the stream go on; ``why`` is the reason if the wait failed. Legal twice.

        Gates of a stream are opened in order.
        """
        if self._is_open:
            return
        self._why = why
        self._is_open = True
        self._quad.words[3] = self._count

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


class FaultWords:
    """Where the kernels of a stream leave the code of a node that met an id out of range.

    Attributes:
        quad: Code of the node, row, number of rows; and the stream's count of open gates.
        where: Name of the stream.
    """

    def __init__(self, quad: Quad, where: str) -> None:
        self.quad = quad
        self.where = where
        self._codes: dict[str, int] = {}
        self._live: list[IdCheck] = []

    def code_of(self, label: str) -> int:
        """Return the code of a node, from one."""
        return self._codes.setdefault(label, len(self._codes) + 1)

    def watch(self, check: "IdCheck") -> None:
        """Remember a check that reads these words as they are."""
        self._live = [c for c in self._live if not c.is_over]
        self._live.append(check)

    def before_writing(self) -> None:
        """Let checks that read these words keep what they read, as they may change from now on."""
        for check in self._live:
            check.settle()
        self._live.clear()

    def fault(self, quad: Quad | None = None) -> DeviceFault | None:
        """Return the fault that words tell of: these, or a copy of them."""
        code, row, count, _ = (quad or self.quad).words.tolist()
        if not code:
            return None
        label = next(label for label, number in self._codes.items() if number == code)
        return DeviceFault(
            f"{label} failed",
            where=self.where,
            why=f"row {row} was asked for, there are {count} rows; zeros were put in its place",
            hint=POISONED,
        )


class IdCheck:
    """Fault words as they are at one point of a stream.

    A copy made by the stream at each point would cost a kernel for each event. As long as nothing
    is enqueued that may write the words they are read where they are; before that happens the
    verdict is taken, or a copy is made if the point is not reached yet.

    Args:
        words: The words.
        is_done: Whether the point is reached.
        copy: Copies the words in the order of the stream; returns the copy, and whether it is made.
        pinned: Where the copy goes back to when nobody asks any more.
    """

    def __init__(
        self,
        words: FaultWords,
        is_done: Callable[[], bool],
        copy: Callable[[], tuple[Quad, Callable[[], bool]]],
        pinned: PinnedMemory,
    ) -> None:
        self._words = words
        self._is_done = is_done
        self._copy = copy
        self._pinned = pinned
        self._quad: Quad | None = None
        self._kept: DeviceFault | None = None
        self.is_over = False
        words.watch(self)

    @property
    def is_settled(self) -> bool:
        """Whether it is known how things stood."""
        return self.is_over or self._is_done()

    def settle(self) -> None:
        """Keep what the words say at the point, as they may change from now on."""
        if self.is_over or self._quad is not None:
            return
        if self._is_done():
            self._kept = self._words.fault()
            self.is_over = True
        else:
            self._quad, self._is_done = self._copy()

    def fault(self) -> DeviceFault | None:
        """Return the fault if a kernel met an id that is out of range."""
        if self.is_over:
            return None if self._kept is None else again(self._kept)
        if self._quad is None:
            return self._words.fault()
        return self._words.fault(self._quad) if self._is_done() else None

    def __del__(self) -> None:
        """Give the copy back; only when it is made, lest it lands in somebody else's words."""
        if self._quad is not None and self._is_done():
            self._pinned.give_quad(self._quad)


class Known:
    """The verdict of a stream that is poisoned already."""

    is_settled = True

    def __init__(self, fault: DeviceFault) -> None:
        self._fault = fault

    def fault(self) -> DeviceFault:
        """Return the fault."""
        return again(self._fault)


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


def again(fault: DeviceFault) -> DeviceFault:
    """Return a fresh exception like one that was raised before."""
    fresh = DeviceFault(
        fault.what, where=fault.where, why=fault.why, hint=fault.hint, story=fault.story
    )
    fresh.__cause__ = fault.__cause__
    return fresh
