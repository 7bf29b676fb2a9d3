"""Ids that were out of range, as the queue of a stream finds them at one point."""

from typing import Final

import numpy as np
import numpy.typing as npt

from ggsched.errors import DeviceFault
from ggsched_kernels.fault_words import FAULT_WORDS, FaultCodes
from ggsched_opencl.driver import COMPLETE, Handle, status_of

CHECKED_WORDS: Final = FAULT_WORDS + 1
"""With one that is always zero on the device."""


class IdCheck:
    """A copy of a stream's fault words, made by the queue at one point of the stream.

    Args:
        words: Where the copy goes.
        is_watched: Whether the copy, the last of what was enqueued before the point, may be noticed
            by what it writes.
    """

    def __init__(self, codes: FaultCodes, words: npt.NDArray[np.int32], is_watched: bool) -> None:
        words[FAULT_WORDS] = 1
        self.words = words
        self.copied: Handle = None
        self.is_watched = is_watched
        self._codes = codes

    @property
    def is_settled(self) -> bool:
        """Whether the copy is complete."""
        if self.is_watched and not self.words[FAULT_WORDS]:
            return True
        return self.copied is None or status_of(self.copied) <= COMPLETE

    def fault(self) -> DeviceFault | None:
        """Return the fault if a kernel met an id that is out of range."""
        return self._codes.fault(self.words.tolist()) if self.is_settled else None
