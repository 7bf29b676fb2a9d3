"""Operands as tensors that are views of the device's memory."""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from ggsched.backend.base_buffer import own_buffer
from ggsched.backend.program import BoundNode, Operand
from ggsched.ir.dtype import BF16, F16, F32, I32
from ggsched.ir.ops import Param
from ggsched_torch.blocks import decode

TYPES: Final = {
    F32.name: torch.float32,
    F16.name: torch.float16,
    BF16.name: torch.bfloat16,
    I32.name: torch.int32,
}
"""Quantised types are rows of bytes."""


def view(operand: Operand) -> Tensor:
    """Return a tensor over an operand's own bytes; a quantised one as ``(.., row_nbytes)``."""
    kind = TYPES.get(operand.dtype.name, torch.uint8)
    shape, strides = operand.shape, operand.strides
    if operand.dtype.is_quantized:
        shape = (*shape[:-1], operand.dtype.row_nbytes(shape[-1]))
        strides = (*strides[:-1], 1)
    if 0 in shape:
        return torch.empty(shape, dtype=kind)
    window = own_buffer(operand.buffer).memory[operand.offset : operand.offset + operand.nbytes]
    return window.view(kind).as_strided(shape, [n // kind.itemsize for n in strides])


@dataclass(frozen=True, slots=True)
class Node:
    """A node with its operands as tensors.

    Attributes:
        bound: The node.
        out: The result.
        inputs: The operands, each in its own type.
    """

    bound: BoundNode
    out: Tensor
    inputs: tuple[Tensor, ...]

    @classmethod
    def bind(cls, bound: BoundNode) -> "Node":
        """Make the views."""
        return cls(bound, view(bound.output), tuple(map(view, bound.inputs)))

    def floats(self, i: int, packed: Tensor | None = None) -> Tensor:
        """Return an operand as f32, or some of its rows that were picked from it."""
        return decode(self.inputs[i] if packed is None else packed, self.bound.inputs[i].dtype)

    def param(self, name: str) -> Param:
        """Return a parameter."""
        return self.bound.params[name]

    def number(self, name: str) -> float:
        """Return a parameter that is a number."""
        value = self.bound.params[name]
        assert isinstance(value, (int, float))  # the graph was verified
        return value
