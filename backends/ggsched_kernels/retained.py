"""Results of one call of a program that calls of later nodes use again.

The three products of a layer of experts have the same ids, and several products have the same rows
of activations. What is prepared from these is prepared once, in memory of its own, which later
nodes use as long as nothing has written the operand that it was made from.
"""

from collections.abc import Hashable

from ggsched.backend.program import Operand
from ggsched_kernels.calls import ArgPlaceholder


class Retained:
    """What the calls of a program have prepared so far: at most one thing in each memory.

    Attributes:
        nbytes: How large each memory has to be.
    """

    def __init__(self) -> None:
        self.nbytes: dict[ArgPlaceholder, int] = {}
        self._held: dict[ArgPlaceholder, tuple[Hashable, Operand]] = {}

    def prepare(self, memory: ArgPlaceholder, source: Operand, how: Hashable, nbytes: int) -> bool:
        """Say what a memory has to hold; return whether it has to be prepared.

        Args:
            source: The operand that it is made from.
            how: What else decides its content.
        """
        key = (id(source.buffer), source.offset, source.dtype, source.shape, source.strides, how)
        held = self._held.get(memory)
        if held is not None and held[0] == key:
            return False
        self._held[memory] = (key, source)
        self.nbytes[memory] = max(nbytes, self.nbytes.get(memory, 0))
        return True

    def forget(self, written: Operand) -> None:
        """Drop what was made from bytes that a node writes."""
        self._held = {
            memory: (key, source)
            for memory, (key, source) in self._held.items()
            if not _overlap(source, written)
        }


def _overlap(a: Operand, b: Operand) -> bool:
    ends = a.offset + a.nbytes, b.offset + b.nbytes
    return a.buffer is b.buffer and a.offset < ends[1] and b.offset < ends[0]
