"""Patterns of nodes that a device may compile as one.

A pattern is data: which ops, whose result is whose operand, and which operands must be the same
tensor. A device names the patterns that it fuses in ``DeviceFacts.fusions``. What a group may share
with the rest of the graph is the same for all patterns: the result of its last node is a result
like any other, and what the others compute is read inside the group and nowhere else, once.

The patterns are those that ggml's CUDA backend and llama.cpp's graphs made worth while
(``ggml_can_fuse``): a norm and its weight, a product and what is added to it, the two halves of a
gated network, what experts compute and its sum, a rotation on its way to a cache. Two additions are
a sum over devices and the residual (``ggsched_shard``), and attention in batches.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Link:
    """A result that stays inside a group.

    Attributes:
        maker: Member that computes it.
        user: Member that reads it, whole and contiguous, perhaps in another shape; ``cont`` also
            with axes in another order.
        operands: Operand of ``user`` that it may be; the first that fits is taken.
    """

    maker: int
    user: int
    operands: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pattern:
    """Nodes that may be compiled as one.

    Attributes:
        name: As in ``DeviceFacts.fusions``.
        ops: Op of each member; makers come before users, and the last is the group's result.
        links: One for each member but the last.
        same: Pairs of (member, operand) that must be the very same window.
    """

    name: str
    ops: tuple[str, ...]
    links: tuple[Link, ...]
    same: tuple[tuple[tuple[int, int], tuple[int, int]], ...] = ()


def _chain(name: str, *operands: tuple[int, ...]) -> Pattern:
    """Return a pattern in which each result is one of some operands of the next member."""
    ops = tuple(name.split("+"))
    return Pattern(name, ops, tuple(Link(i, i + 1, some) for i, some in enumerate(operands)))


def _gated(product: str, gate: str, same: tuple[int, ...]) -> Pattern:
    """Two products of the same operands but for their weights, which a gate joins."""
    links = Link(0, 2, (0,)), Link(1, 2, (1,))
    pairs = tuple(((0, k), (1, k)) for k in same)
    return Pattern(f"{product}*2+{gate}", (product, product, gate), links, pairs)


def _gated_with_biases(product: str, add: str, gate: str) -> Pattern:
    """The same for experts, with a bias on each side; all of them are chosen by the same ids."""
    links = Link(0, 1, (0,)), Link(1, 4, (0,)), Link(2, 3, (0,)), Link(3, 4, (1,))
    same = ((0, 1), (2, 1)), *(((0, 2), (k, 2)) for k in (1, 2, 3))
    return Pattern(f"({product}+{add})*2+{gate}", (*(product, add) * 2, gate), links, same)


_ALL: Final = (
    _chain("rms_norm+mul", (0, 1)),
    _chain("rms_norm+mul+swiglu", (0, 1), (1,)),
    _chain("norm+mul+add", (0, 1), (0, 1)),
    _chain("mul_mat+add", (0, 1)),
    _chain("mul_mat+add+add", (0, 1), (0, 1)),
    _chain("mul_mat_id+mul", (0, 1)),
    _chain("mul_mat_id+add_id", (0,)),
    _chain("mul_mat_id+add_id+mul", (0,), (0, 1)),
    _gated("mul_mat", "swiglu", (1,)),
    _gated("mul_mat_id", "swiglu", (1, 2)),
    _gated_with_biases("mul_mat_id", "add_id", "swiglu_oai"),
    _chain("sum_rows+add", (0, 1)),
    _chain("add+add", (0, 1)),
    _chain("rope+set_rows", (1,)),
    _chain("mul_mat+soft_max+mul_mat+nd.where+cont", (0,), (1,), (1,), (0,)),
    _chain("mul_mat+soft_max+mul_mat+cont", (0,), (1,), (0,)),
    _chain("mul_mat+soft_max+mul_mat+nd.where", (0,), (1,), (1,)),
    _chain("mul_mat+soft_max+mul_mat", (0,), (1,)),
)

PATTERNS: Final[Mapping[str, Pattern]] = {p.name: p for p in _ALL}
"""By name."""
