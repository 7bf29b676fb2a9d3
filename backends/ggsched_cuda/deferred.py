"""What a captured stream has been given and not handed to the driver: it may go together with more.

Short transfers in a row are one kernel. The last launch of a program whose result is long waits for
the next command: if that downloads just this result, the kernel writes it to the host while it
computes, and no transfer comes behind it. What a program may see does not change: a launch and what
it sends stand one behind the other on their stream, with nobody in between who waits (STR-1).
"""

import ctypes
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from ggsched_cuda.driver import CudaError, Step, check

MAX_MOVES: Final = 8
"""Transfers of one kernel."""


class Move(NamedTuple):
    """A transfer that a kernel makes, between addresses."""

    to: int
    source: int
    nbytes: int


class MirroredLaunch(NamedTuple):
    """A launch whose result may go to a second place.

    Attributes:
        step: The call of the driver, and its arguments.
        place: The argument that is the address of the second place; 0 for none.
        source: Address of the result.
        nbytes: Its length.
        label: The node, for messages.
    """

    step: Step
    place: ctypes.c_uint64
    source: int
    nbytes: int
    label: str


class DeferredCommands:
    """What one stream of a capture has been given last.

    Args:
        transfer: Enqueues one kernel that makes transfers.
        failed: Called for a launch that failed with the node and the reason.
    """

    def __init__(
        self,
        transfer: Callable[[Sequence[Move]], None],
        failed: Callable[[str, Exception], object],
    ) -> None:
        self._transfer = transfer
        self._failed = failed
        self._moves: list[Move] = []  # empty while a launch is deferred
        self._sending: MirroredLaunch | None = None

    def move(self, move: Move) -> None:
        """Make a transfer by what stands before it, or with those that follow and are apart."""
        sending = self._sending
        if sending is not None and (sending.source, sending.nbytes) == (move.source, move.nbytes):
            self._launch(move.to)
            return
        if (
            sending is not None
            or len(self._moves) == MAX_MOVES
            or any(_overlap(move, other) for other in self._moves)
        ):
            self.flush()
        self._moves.append(move)

    def launch(self, sending: MirroredLaunch) -> None:
        """Defer a launch; everything before it has been handed over."""
        assert not self._moves
        assert self._sending is None
        self._sending = sending

    def flush(self) -> None:
        """Hand over what was deferred."""
        if self._sending is not None:
            self._launch(0)
        moves, self._moves = self._moves, []
        if moves:
            self._transfer(moves)

    def _launch(self, to: int) -> None:
        sending, self._sending = self._sending, None
        assert sending is not None
        call, arguments = sending.step
        sending.place.value = to
        try:
            check(call(*arguments), "cuLaunchKernel")  # takes the arguments as they are now
        except CudaError as error:
            self._failed(sending.label, error)  # as of any other launch
        finally:
            sending.place.value = 0


def _overlap(a: Move, b: Move) -> bool:
    """Whether one of two transfers writes what the other reads or writes."""
    return (
        _meet(a.to, b.to, a.nbytes, b.nbytes)
        or _meet(a.to, b.source, a.nbytes, b.nbytes)
        or _meet(a.source, b.to, a.nbytes, b.nbytes)
    )


def _meet(a: int, b: int, a_nbytes: int, b_nbytes: int) -> bool:
    return a < b + b_nbytes and b < a + a_nbytes
