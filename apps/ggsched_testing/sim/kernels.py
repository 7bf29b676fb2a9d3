"""Nodes in two steps: read everything, and write everything a while later.

Between the two the result is poison, for nobody may look at it (STR-1, LCH-1). A node that writes
only some of the bytes of its window reads the whole window first and writes it back as a whole,
which a kernel may do: the window is what it declares.

Constants may have been read long before that (LCH-7).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ggsched.backend.arrays import bind
from ggsched.backend.elements import as_library_has_them, computed, decoded, encode, set_rows
from ggsched.backend.program import BoundNode, Operand
from ggsched.ir.dtype import F32
from ggsched.ir.ops import OPS
from ggsched.ir.tensor import contiguous_strides
from ggsched_testing.sim.memory import POISON, Bytes, SimBuffer

Array = npt.NDArray[Any]
Step = Callable[[], None]

_SUMS: Final = frozenset(
    {"mul_mat", "mul_mat_id", "attention", "rms_norm", "norm", "soft_max", "sum_rows"}
)
"""Ops whose last bit may depend on the order of adding up."""


class Ahead:
    """What a launch has of its constants, read whenever the schedule wants (LCH-7).

    Args:
        operands: Those that are read ahead of the launch.
    """

    def __init__(self, operands: Sequence[Operand] = ()) -> None:
        self.operands = operands
        self._bytes: dict[tuple[SimBuffer, int, int], Bytes] = {}

    def fetch(self) -> None:
        """Read them, as they are now."""
        for operand in self.operands:
            window = buffer_of(operand).read(operand.offset, operand.nbytes)
            self._bytes[_place(operand)] = window.copy()

    def load(self, operand: Operand) -> Array:
        """Return what an operand holds: as it was fetched, or as it is now."""
        window = self._bytes.get(_place(operand))
        return load(operand) if window is None else load_from(window, operand)


class NodeWork:
    """One node of a program, bound.

    Args:
        is_deterministic: If not, sums differ in their last bit every other time.
    """

    def __init__(self, node: BoundNode, *, is_deterministic: bool) -> None:
        op = OPS[node.op]
        unread = op.through  # the operand that stands for the result
        self.node = node
        self.read = [o for i, o in enumerate(node.inputs) if i != unread]
        out = node.output
        fills = out.strides == contiguous_strides(out.dtype, out.shape) or not out.nbytes
        self._keeps_some = op.partial or not fills
        self._wobbles = not is_deterministic and node.op in _SUMS and out.dtype is F32
        self._runs = 0
        self._result: Bytes = np.empty(0, np.uint8)

    @property
    def buffers(self) -> list[SimBuffer]:
        """The buffers that it uses."""
        return [buffer_of(o) for o in (*self.node.inputs, self.node.output)]

    def steps(self, ahead: Ahead | None = None) -> tuple[Step, Step]:
        """Return the two steps of one run, for which some operands may be read ahead."""
        return partial(self._begin, ahead or Ahead()), self._end

    def window(self) -> Bytes:
        """Return room for the result, with what is there if some of it stays."""
        out = self.node.output
        window = np.empty(out.nbytes, np.uint8)
        if self._keeps_some:
            window[:] = buffer_of(out).read(out.offset, out.nbytes)
        return window

    def _begin(self, ahead: Ahead) -> None:
        out, window = self.node.output, self.window()
        with np.errstate(all="ignore"):  # poison is NaN
            self.compute([ahead.load(o) for o in self.read], window)
        buffer_of(out).write(out.offset, out.nbytes).fill(POISON)
        self._result = window

    def _end(self) -> None:
        out = self.node.output
        buffer_of(out).write(out.offset, out.nbytes)[:] = self._result

    def compute(self, loaded: Sequence[Array], window: Bytes) -> None:
        """Put the result of these operands into a window."""
        node, out = self.node, self.node.output
        if not out.nbytes:
            return
        place = bind(out, window.data)
        if node.op == "set_rows":
            source, ids = loaded
            set_rows(place, source, ids, out.dtype)
            return
        operands = as_library_has_them(node.op, loaded, [o.dtype for o in self.read])
        value = encode(computed(OPS[node.op], operands, node.params), out.dtype)
        self._runs += 1
        if self._wobbles and self._runs % 2 == 0:
            value = np.nextafter(value, np.float32(np.inf))
        place[...] = value


def buffer_of(operand: Operand) -> SimBuffer:
    """Return the buffer that holds an operand."""
    assert isinstance(operand.buffer, SimBuffer)
    return operand.buffer


def _place(operand: Operand) -> tuple[SimBuffer, int, int]:
    return buffer_of(operand), operand.offset, operand.nbytes


def load(operand: Operand) -> Array:
    """Return what an operand holds now, in the type that the oracle computes in."""
    return load_from(buffer_of(operand).read(operand.offset, operand.nbytes), operand)


def load_from(window: Bytes, operand: Operand) -> Array:
    """Return what an operand holds, given its bytes."""
    return decoded(bind(operand, window.data), operand.dtype)
