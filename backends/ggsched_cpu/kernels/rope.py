"""Rotary position embedding. Nodes that rotate by the same positions share cosines and sines."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from ggsched.backend.arrays import Array
from ggsched.backend.program import Operand
from ggsched.ir.rope import rope_table
from ggsched_cpu.lowering_context import Call, CpuLoweringContext, Node, shares

Layout = Literal["complex", "adjacent", "halves"]


@dataclass(frozen=True, slots=True)
class _Table:
    """Cosines and sines times the magnitude, as the kernel multiplies with them.

    Attributes:
        straight: Factor of each element; for layout ``complex`` ``cos + i sin`` of each pair.
        crossed: Factor of the other element of its pair; unused for ``complex``.
        cosines: Views of all places that hold the cosine, each (T, 1, n/2).
        sines: Views of all places that hold the sine.
        minus_sines: Views of all places that hold the sine negated.
    """

    straight: Array
    crossed: Array
    cosines: tuple[Array, ...]
    sines: tuple[Array, ...]
    minus_sines: tuple[Array, ...]

    @classmethod
    def make(cls, length: int, pairs: int, layout: Layout) -> "_Table":
        """Return a table that is not filled yet."""
        if layout == "complex":
            turn = np.empty((length, 1, pairs), np.complex64)
            return cls(turn, turn, (turn.real,), (turn.imag,), ())
        shape = (length, 1, 2, pairs) if layout == "halves" else (length, 1, pairs, 2)
        c, s = np.empty(shape, np.float32), np.empty(shape, np.float32)
        if layout == "halves":
            return cls(c, s, (c[:, :, 0], c[:, :, 1]), (s[:, :, 1],), (s[:, :, 0],))
        return cls(c, s, (c[..., 0], c[..., 1]), (s[..., 1],), (s[..., 0],))


def _fill(positions: Array, inverse: Array, magnitude: float, table: _Table) -> None:
    """Compute the table in f64: at far positions an f32 angle is off by whole degrees."""
    angle = positions[:, None, None] * inverse
    cos, sin = np.cos(angle) * magnitude, np.sin(angle) * magnitude
    for view in table.cosines:
        view[...] = cos
    for view in table.sines:
        view[...] = sin
    for view in table.minus_sines:
        np.negative(sin, view, casting="same_kind")


def _fill_scaled(
    positions: Array, inverse: Array, factors: Array, magnitude: float, table: _Table
) -> None:
    _fill(positions, inverse / factors, magnitude, table)


def _place(operand: Operand) -> tuple[object, ...]:
    return (id(operand.buffer), operand.offset, operand.shape, operand.strides)


def _table(node: Node, site: CpuLoweringContext, layout: Layout) -> tuple[_Table, list[Call]]:
    """Return the table for a node, and the calls that fill it unless an earlier node has."""
    operands = node.bound.inputs[1:]
    params = tuple(sorted((k, repr(v)) for k, v in node.bound.params.items()))
    key = ("rope", layout, tuple(_place(o) for o in operands), params)
    known = site.tables.get(key)
    if known is not None:
        return known[1], []
    inverse, magnitude = rope_table(node.bound.params)
    positions = node.inputs[1]
    table = _Table.make(positions.shape[0], len(inverse), layout)
    site.tables[key] = operands, table
    frequencies = np.array(inverse, np.float64)
    if len(operands) == 2:
        factors = node.inputs[2]
        return table, [(_fill_scaled, (positions, frequencies, factors, magnitude, table))]
    return table, [(_fill, (positions, frequencies, magnitude, table))]


def _layout(node: Node) -> Layout:
    if node.param("pairing") == "halves":
        return "halves"
    dense = node.inputs[0].strides[-1] == node.out.strides[-1] == node.out.itemsize
    return "complex" if dense else "adjacent"


def rotation(node: Node, site: CpuLoweringContext) -> list[Call]:
    """Return the calls of a node; the last is one ufunc of two arrays into the result."""
    layout = _layout(node)
    table, calls = _table(node, site, layout)
    x, out, n = node.inputs[0], node.out, int(node.number("n_dims"))
    if n < x.shape[-1] and not shares(x, out):
        calls.append((np.copyto, (out[..., n:], x[..., n:])))
    x, out = x[..., :n], out[..., :n]
    if layout == "complex":
        # Neighbours are the parts of one complex number, and rotating is one product.
        pairs = (x.view(np.complex64), table.straight, out.view(np.complex64))
        return [*calls, (np.multiply, pairs)]
    axis = -2 if layout == "halves" else -1
    inner = (2, n // 2) if layout == "halves" else (n // 2, 2)
    # Cutting an axis in two never copies, so these are still views of the operands.
    x, out = x.reshape(*x.shape[:-1], *inner), out.reshape(*out.shape[:-1], *inner)
    crossed = site.scratch(x.shape)
    return [
        *calls,
        (np.multiply, (np.flip(x, axis), table.crossed, crossed)),
        (np.multiply, (x, table.straight, out)),
        (np.add, (out, crossed, out)),
    ]


EMITTERS: Final[Mapping[str, Callable[[Node, CpuLoweringContext], list[Call]]]] = {"rope": rotation}
