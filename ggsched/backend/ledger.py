"""What is under way, and what of it the host knows to be complete.

The host learns that a command is complete only from ``sync``, or from an ``is_done`` that is true,
of a stream or an event. So the results do not depend on how fast the device is.
"""

from collections import deque
from collections.abc import Iterator

from ggsched.backend.call_log import Call, OnCall, misuse
from ggsched.backend.host_borrow import Borrow

Clock = dict[int, int]
"""By number of a stream: how many of its commands are complete."""


class Ledger:
    """Shared by all devices that were wrapped together.

    Attributes:
        known: What the host knows to be complete.
        on_call: Called for every call.
    """

    def __init__(self, on_call: OnCall | None) -> None:
        self.known: Clock = {}
        self.on_call = on_call
        self._calls = 0
        self._streams = 0
        self._borrows: dict[int, deque[Borrow]] = {}

    def new_stream(self) -> int:
        """Return the number of a new stream."""
        number = self._streams
        self._streams += 1
        self._borrows[number] = deque()
        return number

    def call(self, thing: str, verb: str, operands: tuple[object, ...] = ()) -> Call:
        """Number a call, and report it."""
        called = Call(self._calls, thing, verb, operands)
        self._calls += 1
        if self.on_call is not None:
            self.on_call(called)
        return called

    def is_known(self, stream: int, position: int) -> bool:
        """Whether the host knows that a command is complete."""
        return position <= self.known.get(stream, 0)

    def settle(self, stream: int, position: int) -> None:
        """Take commands of a stream that failed for complete, without looking at what they used."""
        self.known[stream] = max(position, self.known.get(stream, 0))
        borrows = self._borrows[stream]
        while borrows and borrows[0].position <= position:
            borrows.popleft()

    # --- host memory --------------------------------------------------------------------------

    def lend(self, borrow: Borrow) -> None:
        """Take note of host memory that a command uses."""
        if borrow.memory.nbytes:
            self._borrows[borrow.stream].append(borrow)

    def borrows(self, start: int, end: int) -> Iterator[Borrow]:
        """Yield the borrows that have bytes in common with a range of addresses."""
        for borrows in self._borrows.values():
            for borrow in borrows:
                if borrow.overlaps(start, end):
                    yield borrow

    def learn(self, clock: Clock) -> None:
        """Let the host know that commands are complete, and look at what they had borrowed.

        Raises:
            UsageError: somebody else changed what a command had borrowed (CPY-4, CPY-5).
        """
        known, changed = self.known, []
        for stream, position in clock.items():
            if position <= known.get(stream, 0):
                continue
            known[stream] = position
            borrows = self._borrows[stream]
            while borrows and borrows[0].position <= position:
                borrow = borrows.popleft()
                if not borrow.is_intact:
                    changed.append(borrow)
        if changed:
            raise _changed(changed[0])


def join(into: Clock, other: Clock) -> None:
    """Let a clock know what another one knows."""
    for stream, position in other.items():
        if position > into.get(stream, 0):
            into[stream] = position


def _changed(borrow: Borrow) -> Exception:
    if borrow.kind == "source":
        return misuse(
            "CPY-4",
            "the host source of an upload changed before the upload was complete",
            where=str(borrow.call),
            why="it is borrowed until the command is complete",
            hint="sync the stream or an event behind the upload first",
            call_log=(borrow.call,),
        )
    return misuse(
        "CPY-5",
        "the host target of a download was written by somebody else before it was complete",
        where=str(borrow.call),
        why="it belongs to the device until the command is complete",
        hint="sync the stream or an event behind the download first",
        call_log=(borrow.call,),
    )
