"""Ids that were out of range, as the queue of a stream finds them at one point."""

import numpy as np
import numpy.typing as npt

from ggsched.backend.protocols import HostMemory
from ggsched.errors import DeviceFault
from ggsched_kernels.fault_words import FAULT_WORDS, FaultCodes
from ggsched_opencl.driver import COMPLETE, Handle, status_of


class IdCheck:
    """A copy of a stream's fault words, made by the queue at one point of the stream.

    Args:
        codes: Of the stream.
        memory: Host memory for the copy.
    """

    def __init__(self, codes: FaultCodes, memory: HostMemory) -> None:
        self.words: npt.NDArray[np.int32] = np.frombuffer(memory, np.int32, FAULT_WORDS)
        self.copied: Handle = None
        self._codes = codes

    @property
    def is_settled(self) -> bool:
        """Whether the copy is complete."""
        return self.copied is None or status_of(self.copied) <= COMPLETE

    def fault(self) -> DeviceFault | None:
        """Return the fault if a kernel met an id that is out of range."""
        return self._codes.fault(self.words.tolist()) if self.is_settled else None
