"""What emitters of tasks work with: nodes with arrays, and a program's scratch memory."""

from dataclasses import dataclass, field
from math import prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ggsched.backend.arrays import Array, aligned_bytes, bind_host
from ggsched.backend.program import BoundNode, Operand
from ggsched.ir.dtype import DType
from ggsched.ir.ops import Param

F32: Final = np.dtype(np.float32)


@dataclass(frozen=True, slots=True)
class Node:
    """A node with numpy views of its operands.

    Attributes:
        out: The result.
        inputs: The operands; quantised ones as rows of bytes, bf16 as uint16.
    """

    bound: BoundNode
    out: Array
    inputs: tuple[Array, ...]

    @classmethod
    def bind(cls, bound: BoundNode) -> "Node":
        """Make the views."""
        return cls(bound, bind_host(bound.output), tuple(bind_host(o) for o in bound.inputs))

    def param(self, name: str) -> Param:
        """Return a parameter."""
        return self.bound.params[name]

    def number(self, name: str) -> float:
        """Return a parameter that is a number."""
        value = self.bound.params[name]
        assert isinstance(value, (int, float))  # the graph was verified
        return value

    def dtype(self, i: int) -> DType:
        """Return the element type of an operand."""
        return self.bound.inputs[i].dtype


TableKey = tuple[object, ...]

MAX_ROUNDED: Final = 2
"""Tables of rounded activations at a time; they are as large as the activations of a product."""


def experts_of(node: Node) -> tuple[int, int]:
    """Return the first expert or row that a table of a node with ids has, and of how many."""
    table = node.inputs[0 if node.bound.op == "mul_mat_id" else 1]
    return int(node.number("first")), int(node.number("of")) or table.shape[0]


@dataclass(slots=True)
class CpuLoweringContext:
    """State while one program is compiled. The memory that it hands out is the program's own.

    Attributes:
        tables: Results that later nodes of the program can share, with the operands they were
            made from. A node that writes these bytes makes them void.
    """

    tables: dict[TableKey, tuple[tuple[Operand, ...], Any]] = field(default_factory=dict)
    _scratch: dict[tuple[int, int], npt.NDArray[np.uint8]] = field(default_factory=dict)
    _slot: int = 0
    _rounded: list[TableKey] = field(default_factory=list)
    _turn: int = 0

    def rounded(self, key: TableKey, shape: tuple[int, ...]) -> Array:
        """Return memory for a table of rounded activations; an older one gives its own up."""
        if len(self._rounded) == MAX_ROUNDED:
            self.tables.pop(self._rounded.pop(0), None)
        self._rounded.append(key)
        self._turn = (self._turn + 1) % MAX_ROUNDED
        nbytes = max(64, 1 << (prod(shape) - 1).bit_length())
        place = (-1 - self._turn, nbytes)
        memory = self._scratch.get(place)
        if memory is None:
            memory = self._scratch[place] = aligned_bytes(nbytes, 64)
        return memory[: prod(shape)].reshape(shape)

    def scratch(self, shape: tuple[int, ...], dtype: npt.DTypeLike = F32) -> Array:
        """Return memory for the tasks of the present node; other nodes use it too (LCH-5)."""
        kind = np.dtype(dtype)
        nbytes = prod(shape) * kind.itemsize
        size = 1 << max(6, (nbytes - 1).bit_length())
        memory = self._scratch.get((self._slot, size))
        if memory is None:
            memory = self._scratch[self._slot, size] = np.empty(size, np.uint8)
        self._slot += 1
        return memory[:nbytes].view(kind).reshape(shape)

    def leave(self, node: BoundNode) -> None:
        """End a node: its scratch is free, and tables made from what it wrote are void."""
        self._slot = 0
        out = node.output
        stale = [key for key, (made_from, _) in self.tables.items() if _touches(out, made_from)]
        for key in stale:
            del self.tables[key]


def _touches(out: Operand, others: tuple[Operand, ...]) -> bool:
    return any(
        o.buffer is out.buffer
        and o.offset < out.offset + out.nbytes
        and out.offset < o.offset + o.nbytes
        for o in others
    )
