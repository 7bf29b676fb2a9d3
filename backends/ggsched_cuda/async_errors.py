"""Ids that were out of range, as kernels report them in pinned memory."""

from collections.abc import Callable
from typing import Final

from ggsched.backend.queued.error_state import reraise_copy
from ggsched.errors import DeviceFault
from ggsched_cuda.pinned import PinnedMemory, Quad
from ggsched_kernels.fault_words import FaultCodes

LOST: Final = "the GPU is lost to this process: CUDA ends all work of a context after such an error"


class FaultWords:
    """Where the kernels of a stream leave the code of a node that met an id out of range.

    Attributes:
        quad: What ``FaultCodes`` reads.
        codes: Of the nodes.
    """

    def __init__(self, quad: Quad, where: str) -> None:
        self.quad = quad
        self.codes = FaultCodes(where)
        self._live: list[IdCheck] = []

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
        """Return the fault that the words, or a copy of them, report."""
        return self.codes.fault((quad or self.quad).words.tolist())


class IdCheck:
    """Fault words as they are at one point of a stream.

    A copy made by the stream at each point would cost a kernel for each event. As long as nothing
    is enqueued that may write the words they are read where they are; before that happens they
    are evaluated, or a copy is made if the point is not reached yet.

    Args:
        is_done: Whether the point is reached.
        copy: Copies the words in the order of the stream; returns the copy, and whether it is made.
        pinned: Where the copy is returned to when it is no longer needed.
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
        """Return the fault if a kernel met an id that is out of range.

        Until the copy is made nothing behind it has begun, so the words are those of the point.
        """
        if self.is_over:
            return None if self._kept is None else reraise_copy(self._kept)
        if self._quad is None:
            return self._words.fault()
        if not self._is_done():
            found = self._words.fault()
            if not self._is_done():
                return found
        return self._words.fault(self._quad)

    def __del__(self) -> None:
        """Give the copy back; only when it is made, lest it lands in somebody else's words."""
        if self._quad is not None and self._is_done():
            self._pinned.give_quad(self._quad)
