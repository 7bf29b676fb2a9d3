"""What a captured stream has been given and not handed to the driver: it may go together with more.

Short transfers in a row are one kernel. The last launch of a program whose result is long waits for
the next command: if that downloads just this result, the kernel writes it to the host while it
computes, and no transfer comes behind it. What a program may see does not change: a launch and what
it sends stand one behind the other on their stream, with nobody in between who waits (STR-1).
"""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
    """A launch whose result may go to other places.

    Attributes:
        step: The call of the driver, and its arguments.
        places: The arguments that are addresses of other places, 0 for none: one in host memory,
            or several in memory of GPUs.
        source: Address of the result.
        label: The node, for messages.
    """

    step: Step
    places: tuple[ctypes.c_uint64, ...]
    source: int
    nbytes: int
    label: str

    @property
    def is_for_gpus(self) -> bool:
        """Whether it can write to memory of GPUs, not to that of the host."""
        return len(self.places) > 1


@contextmanager
def holding(places: Sequence[ctypes.c_uint64], values: Sequence[int]) -> Iterator[None]:
    """Let arguments of a launch have values, which the driver takes as they are at the call.

    There may be fewer values than arguments. All are 0 again afterwards.
    """
    try:
        for place, value in zip(places, values, strict=False):
            place.value = value
        yield
    finally:
        for place in places:
            place.value = 0


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

    @property
    def producer(self) -> MirroredLaunch | None:
        """The deferred launch, if it can write its result to memory of GPUs too."""
        sending = self._sending
        return sending if sending is not None and sending.is_for_gpus else None

    def move(self, move: Move) -> None:
        """Make a transfer by what stands before it, or with those that follow and are apart."""
        sending = self._sending
        if (
            sending is not None
            and not sending.is_for_gpus
            and (sending.source, sending.nbytes) == (move.source, move.nbytes)
        ):
            self.launch_now([move.to])
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
            self.launch_now([])
        moves, self._moves = self._moves, []
        if moves:
            self._transfer(moves)

    def launch_now(self, places: Sequence[int]) -> None:
        """Hand the deferred launch over, which writes its result to other places too."""
        sending, self._sending = self._sending, None
        assert sending is not None
        call, arguments = sending.step
        with holding(sending.places, places):
            try:
                check(call(*arguments), "cuLaunchKernel")
            except CudaError as error:
                self._failed(sending.label, error)  # as of any other launch


def _overlap(a: Move, b: Move) -> bool:
    """Whether one of two transfers writes what the other reads or writes."""
    return (
        _meet(a.to, b.to, a.nbytes, b.nbytes)
        or _meet(a.to, b.source, a.nbytes, b.nbytes)
        or _meet(a.source, b.to, a.nbytes, b.nbytes)
    )


def _meet(a: int, b: int, a_nbytes: int, b_nbytes: int) -> bool:
    return a < b + b_nbytes and b < a + a_nbytes
