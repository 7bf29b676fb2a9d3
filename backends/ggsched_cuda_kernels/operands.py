"""What operands are to each other, and to kernels that want whole rows."""

from typing import Final

from ggsched.backend.program import BoundNode, Operand

PIECE: Final = 16
"""Bytes that are loaded or copied at once, and their alignment."""


def is_same(a: Operand, b: Operand) -> bool:
    """Whether two tensors are the same bytes, in whatever shape."""
    return (a.buffer, a.offset, a.nbytes, a.dtype) == (b.buffer, b.offset, b.nbytes, b.dtype)


def is_row(o: Operand) -> bool:
    """Whether a tensor is a row of floats without gaps, at a multiple of 16 bytes."""
    return all(n == 1 for n in o.shape[:-1]) and has_rows(o)


def has_rows(o: Operand) -> bool:
    """Whether rows of floats lie without gaps, each at a multiple of 16 bytes."""
    steps = [s for n, s in zip(o.shape[:-1], o.strides[:-1], strict=True) if n > 1]
    return (
        o.dtype.name == "f32"
        and (o.shape[-1] == 1 or o.strides[-1] == o.dtype.block_nbytes)
        and o.shape[-1] % 4 == 0
        and all(place % PIECE == 0 for place in (o.offset, *steps))
    )


def has_pieces(o: Operand, along: int) -> bool:
    """Whether elements lie side by side along an axis, and the rows begin at pieces."""
    steps = [
        step
        for axis, (n, step) in enumerate(zip(o.shape, o.strides, strict=True))
        if n > 1 and axis != along
    ]
    side_by_side = o.strides[along] == o.dtype.block_nbytes
    return side_by_side and all(place % PIECE == 0 for place in (o.offset, *steps))


def is_vector(o: Operand, extent: int) -> bool:
    """Whether a tensor has one float for each of a row."""
    return o.dtype.name == "f32" and o.shape[-1] == extent and all(n == 1 for n in o.shape[:-1])


def joins(user: BoundNode, a: BoundNode, b: BoundNode) -> bool:
    """Whether a node takes the results of two others, in this order."""
    return is_same(user.inputs[0], a.output) and is_same(user.inputs[1], b.output)


def other_operand(made: Operand, user: BoundNode) -> Operand | None:
    """Return what a node takes beside a result that it takes as it is."""
    a, b = user.inputs
    if is_same(a, made) and a.shape == user.output.shape:
        return b
    return a if is_same(b, made) and b.shape == user.output.shape else None
