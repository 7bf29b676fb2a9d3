"""Host memory that commands use, and whether the host keeps its hands off it (CPY-4, CPY-5).

A borrow is looked at when the host learns that its command is complete, and not before. Up to
``WHOLE_NBYTES`` every byte is compared; of more than that, pieces.
"""

from dataclasses import dataclass
from typing import Final, Literal
from zlib import crc32

import numpy as np

from ggsched.backend.call_log import Call
from ggsched.backend.protocols import HostMemory

WHOLE_NBYTES: Final = 1 << 20
PIECES: Final = 16

Kind = Literal["source", "target"]


@dataclass(slots=True)
class Borrow:
    """Host memory that belongs to a command until it is complete.

    Attributes:
        kind: Whether the command reads or writes it.
        memory: The memory, which the borrow keeps alive.
        start: Its address.
        stream: Number of the command's stream.
        position: Number of the command there.
        call: The command.
        digest: Of the source when it was lent.
        shadow: What a target has to hold at the end; None if that is not known.
    """

    kind: Kind
    memory: HostMemory
    start: int
    stream: int
    position: int
    call: Call
    digest: int | None = None
    shadow: HostMemory | None = None

    @property
    def end(self) -> int:
        """The address after the last byte."""
        return self.start + self.memory.nbytes

    def overlaps(self, start: int, end: int) -> bool:
        """Whether it has bytes in common with a range of addresses."""
        return self.start < end and start < self.end

    @property
    def is_intact(self) -> bool:
        """Whether nobody but its command has changed it, as far as is known."""
        if self.digest is not None:
            return digest(self.memory) == self.digest
        return self.shadow is None or self.memory == self.shadow

    def give_up(self) -> None:
        """Stop watching: another command may change it legally."""
        self.digest = self.shadow = None


def address_of(memory: HostMemory) -> int:
    """Return where host memory begins."""
    if not memory.nbytes:
        return 0
    start: int = np.frombuffer(memory, np.uint8).__array_interface__["data"][0]
    return start


def digest(memory: HostMemory) -> int:
    """Return a checksum of host memory, of pieces where it is long."""
    if memory.nbytes <= WHOLE_NBYTES:
        return crc32(memory)
    step = memory.nbytes // PIECES
    value = 0
    for start in range(0, memory.nbytes, step):
        value = crc32(memory[start : start + WHOLE_NBYTES // PIECES], value)
    return value
