"""What each op makes of operands that are split or partial.

A rule says how the result lies among the participants, and what each operand has to be for that. An
op without a rule for its operands gets whole ones, which is always right: parts are joined or added
up first.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final, Literal

from ggsched.ir.dtype import F32
from ggsched.ir.graph import Node
from ggsched.ir.ops import op_by_name
from ggsched.ir.tensor import Role, Tensor
from ggsched_shard.layout import Layout, Partial, Split, Whole

WHOLE: Final[Literal["whole"]] = "whole"

Need = Split | Literal["whole"] | None
"""What an operand has to be: whole, a part that is cut from a whole one, or what it is (None)."""


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand: a window, and how it lies (None: in a way that only the whole can be used)."""

    tensor: Tensor
    layout: Layout | None

    @property
    def last(self) -> int:
        """The number of its last axis."""
        return len(self.tensor.shape) - 1


@dataclass(frozen=True, slots=True)
class Decision:
    """What a node becomes.

    Attributes:
        result: How the result lies; the axis is that of the result.
        needs: For each operand ``WHOLE``, a split that a whole one is cut to, or None: as it is.
        once: Whether only the first participant runs the node and the others hand operand 0 on:
            what is added to a sum is added to one of its summands.
        experts: Where each participant runs the node for its range of experts, how they are split.
    """

    result: Split | Partial
    needs: tuple[Need, ...]
    once: bool = False
    experts: Split | None = None


Rule = Callable[[Node, Sequence[Operand]], Decision | None]


def decide(node: Node, operands: Sequence[Operand]) -> Decision | None:
    """Return what a node becomes, or None if it needs whole operands.

    Args:
        operands: In the order of its inputs.
    """
    if all(isinstance(o.layout, Whole) for o in operands):
        return None
    x = operands[0].layout
    if node.op in KEEPS_ZEROS and all(_has_rows_of(o, x) for o in operands):
        assert isinstance(x, Partial)
        return Decision(x, (None,) * len(operands))
    rule = RULES.get(op_by_name(node.op).sharding or node.op)
    return rule(node, operands) if rule is not None else None


KEEPS_ZEROS: Final = frozenset(
    {"add", "sub", "mul", "silu", "gelu", "tanh", "swiglu", "swiglu_oai"}
)
"""Ops of which the result is 0 where all operands are."""


def _has_rows_of(o: Operand, layout: Layout | None) -> bool:
    """Whether an operand has rows on the participants that have those of experts."""
    is_apart = isinstance(layout, Partial) and layout.rows is not None
    return is_apart and o.layout == layout and not o.tensor.is_view


def _summands(layout: Partial) -> Partial:
    """Return the layout of what is computed from summands, whose rows can be anything."""
    return Partial(layout.on)


def _fitting(o: Operand, wanted: Split) -> tuple[Need] | None:
    """Return (need,) with which an operand is split like this, or None if it cannot be."""
    if o.layout == wanted:
        return (None,)
    is_cut = isinstance(o.layout, Whole)
    if (
        is_cut
        and len(wanted.segments) == 1
        and not (o.tensor.dtype.is_quantized and wanted.axis == o.last)
    ):
        return (wanted,)
    return None


def _scaled(split: Split, axis: int, times: int, per: int) -> Split | None:
    """Return a split of another axis whose parts are ``times / per`` as long."""
    if any(n * times % per for s in split.segments for n in s):
        return None
    return Split(axis, tuple(tuple(n * times // per for n in s) for s in split.segments))


def _first_split(operands: Sequence[Operand]) -> tuple[int, Split] | None:
    for i, o in enumerate(operands):
        if isinstance(o.layout, Split):
            return i, o.layout
    return None


def _broadcast(node: Node, operands: Sequence[Operand]) -> Decision | None:
    """Split the result like the first operand that is split; others follow or are broadcast."""
    found = _first_split(operands)
    if found is None:
        return None
    which, split = found
    rank = len(operands[0].tensor.shape)
    axis = split.axis + rank - len(operands[which].tensor.shape)
    needs: list[Need] = []
    for o in operands:
        own = axis - rank + len(o.tensor.shape)
        if own < 0 or o.tensor.shape[own] == 1:
            needs.append(WHOLE)
            continue
        need = _fitting(o, Split(own, split.segments))
        if need is None:
            return None
        needs.append(need[0])
    return Decision(Split(axis, split.segments), tuple(needs))


def _elementwise(node: Node, operands: Sequence[Operand]) -> Decision | None:
    x, *rest = operands
    if isinstance(x.layout, Partial) or (rest and isinstance(rest[0].layout, Partial)):
        return _linear(node, operands)
    return _broadcast(node, operands)


def _linear(node: Node, operands: Sequence[Operand]) -> Decision | None:
    """Keep summands apart where the op is linear in them."""
    layouts = [_summands(p) if isinstance(p := o.layout, Partial) else p for o in operands]
    partial = next(p for p in layouts if isinstance(p, Partial))
    if node.op in ("add", "sub"):
        x, other = operands
        if layouts[0] == layouts[1] and x.tensor.shape == other.tensor.shape:
            return Decision(partial, (None, None))
        # A bias. What is no weight, such as the hidden state, is added to the sum by each.
        is_bias = isinstance(other.layout, Whole) and other.tensor.role is Role.WEIGHT
        is_bias = is_bias and prod(other.tensor.shape) <= prod(x.tensor.shape)
        return Decision(partial, (None, WHOLE), once=True) if is_bias else None
    if node.op == "scale":
        return Decision(partial, (None,)) if not node.param("bias") else None
    if node.op == "mul" and any(isinstance(p, Whole) for p in layouts):
        return Decision(partial, tuple(WHOLE if isinstance(p, Whole) else None for p in layouts))
    if node.op == "div" and isinstance(layouts[1], Whole):
        return Decision(partial, (None, WHOLE))
    return None


def _cont(node: Node, operands: Sequence[Operand]) -> Decision | None:
    layout = operands[0].layout
    if isinstance(layout, Partial):
        is_exact = operands[0].tensor.dtype is F32 and node.param("dtype") in ("", "f32")
        return Decision(_summands(layout), (None,)) if is_exact else None
    return Decision(layout, (None,)) if isinstance(layout, Split) else None


def _along_rows(node: Node, operands: Sequence[Operand]) -> Decision | None:
    """Rows are whole: norms, sorting, softmax with its mask and sinks."""
    x, *rest = operands
    if not isinstance(x.layout, Split) or x.layout.axis == x.last:
        return None
    if node.op != "soft_max" or not rest:
        return Decision(x.layout, (None,))
    needs: list[Need] = [None]
    if node.param("mask"):
        mask = rest.pop(0)
        own = x.layout.axis - x.last + mask.last
        need = (WHOLE,) if own < 0 or mask.tensor.shape[own] == 1 else _fitting(
            mask, Split(own, x.layout.segments)
        )  # fmt: skip
        if need is None:
            return None
        needs.append(need[0])
    for sinks in rest:
        need = (WHOLE,) if x.layout.axis else _fitting(sinks, Split(0, x.layout.segments))
        if need is None:
            return None
        needs.append(need[0])
    return Decision(x.layout, tuple(needs))


def _sum_rows(node: Node, operands: Sequence[Operand]) -> Decision | None:
    x = operands[0]
    if isinstance(x.layout, Partial):
        return Decision(_summands(x.layout), (None,))
    if not isinstance(x.layout, Split):
        return None
    if x.layout.axis == x.last:
        return Decision(Partial(x.layout.on), (None,))
    return Decision(x.layout, (None,))


def _rope(node: Node, operands: Sequence[Operand]) -> Decision | None:
    x, *rest = operands
    if not isinstance(x.layout, Split) or x.layout.axis != 1:
        return None
    return Decision(x.layout, (None, *(WHOLE for _ in rest)))


def _get_rows(node: Node, operands: Sequence[Operand]) -> Decision | None:
    table, ids = operands
    if isinstance(table.layout, Partial):
        return Decision(_summands(table.layout), (None, WHOLE))
    if not isinstance(table.layout, Split) or table.last != 1 or table.layout.axis != 1:
        return None
    return Decision(Split(len(ids.tensor.shape), table.layout.segments), (None, WHOLE))


def _set_rows(node: Node, operands: Sequence[Operand]) -> Decision | None:
    dst, src, _ = operands
    if not isinstance(dst.layout, Split) or dst.layout.axis != 1:
        return None
    need = _fitting(src, dst.layout)
    return Decision(dst.layout, (None, need[0], WHOLE)) if need is not None else None


def _cpy(node: Node, operands: Sequence[Operand]) -> Decision | None:
    src, dst = operands
    if not isinstance(dst.layout, Split):
        return None
    need = _fitting(src, dst.layout)
    return Decision(dst.layout, (need[0], None)) if need is not None else None


def _concat(node: Node, operands: Sequence[Operand]) -> Decision | None:
    found = _first_split(operands)
    if found is None or found[1].axis == node.param("axis"):
        return None
    needs = [_fitting(o, found[1]) for o in operands]
    if any(need is None for need in needs):
        return None
    return Decision(found[1], tuple(need[0] for need in needs if need is not None))


def _mul_mat(node: Node, operands: Sequence[Operand]) -> Decision | None:
    w, x = operands
    if isinstance(w.layout, Split):
        split = w.layout
        if split.axis == w.last - 1:  # rows of w: columns of the result
            return Decision(Split(x.last, split.segments), (None, WHOLE))
        if split.axis == w.last:
            need = _fitting(x, Split(x.last, split.segments))
            return Decision(Partial(split.on), (None, need[0])) if need is not None else None
        axis = split.axis + x.last - w.last
        wanted = _scaled(split, axis, x.tensor.shape[axis], w.tensor.shape[split.axis])
        need = _fitting(x, wanted) if wanted is not None else None
        if wanted is None or need is None:
            return None
        return Decision(wanted, (None, need[0]))
    if not isinstance(x.layout, Split) or not isinstance(w.layout, Whole):
        return None
    split = x.layout
    if split.axis == x.last - 1:
        return Decision(split, (WHOLE, None))
    if split.axis == x.last:
        need = _fitting(w, Split(w.last, split.segments))
        return Decision(Partial(split.on), (need[0], None)) if need is not None else None
    own = split.axis - x.last + w.last
    if own < 0 or w.tensor.shape[own] == 1:
        return Decision(split, (WHOLE, None))
    wanted = _scaled(split, own, w.tensor.shape[own], x.tensor.shape[split.axis])
    need = _fitting(w, wanted) if wanted is not None else None
    return Decision(split, (need[0], None)) if need is not None else None


def _mul_mat_id(node: Node, operands: Sequence[Operand]) -> Decision | None:
    w, x, ids = operands
    if not isinstance(w.layout, Split):
        return None
    split = w.layout
    if split.axis == 0:
        own = Partial(split.on, (ids.tensor.id, split))
        return _of_experts(node, own, (None, None if _has_rows_of(x, own) else WHOLE, WHOLE))
    if split.axis == 1:
        return Decision(Split(2, split.segments), (None, WHOLE, WHOLE))
    need = _fitting(x, split)
    return Decision(Partial(split.on), (None, need[0], WHOLE)) if need is not None else None


def _of_experts(node: Node, own: Partial, needs: tuple[Need, ...]) -> Decision | None:
    """Let each participant compute the rows of the experts that it has; others are 0."""
    assert own.rows is not None
    return Decision(own, needs, experts=own.rows[1]) if not node.param("of") else None


def _add_id(node: Node, operands: Sequence[Operand]) -> Decision | None:
    x, bias, ids = operands
    if isinstance(bias.layout, Split) and bias.layout.axis == 0:
        own = Partial(bias.layout.on, (ids.tensor.id, bias.layout))
        # To what is whole a participant adds what others do not have; 0 there is not a summand.
        return _of_experts(node, own, (None, None, WHOLE)) if _has_rows_of(x, own) else None
    if isinstance(x.layout, Partial):
        return Decision(_summands(x.layout), (None, WHOLE, WHOLE), once=True)
    split = x.layout
    if isinstance(bias.layout, Split) and bias.layout.axis == 1 and isinstance(split, Whole):
        split = Split(x.last, bias.layout.segments)
    if not isinstance(split, Split) or split.axis != x.last:
        return None
    needs = _fitting(x, split), _fitting(bias, Split(1, split.segments))
    if needs[0] is None or needs[1] is None:
        return None
    return Decision(split, (*needs[0], *needs[1], WHOLE))


def _attention(node: Node, operands: Sequence[Operand]) -> Decision | None:
    k, v, q, *rest = operands
    groups, heads = k.tensor.shape[1], q.tensor.shape[1]
    by_group = by_head = None
    if isinstance(k.layout, Split) and k.layout.axis == 1:
        by_group = k.layout
        by_head = _scaled(by_group, 1, heads, groups)
    elif isinstance(q.layout, Split) and q.layout.axis == 1:
        by_head = q.layout
        by_group = _scaled(by_head, 1, groups, heads) if groups > 1 else None
        if groups > 1 and by_group is None:
            return None
    if by_head is None or len(by_head.segments) > 1:
        return None
    needs: list[Need] = []
    for o, wanted in ((k, by_group), (v, by_group), (q, by_head)):
        need = _fitting(o, wanted) if wanted is not None else (WHOLE,)
        if need is None:
            return None
        needs.append(need[0])
    for name in ("mask", "sinks", "bounds"):
        if not node.param(name):
            continue
        o = rest.pop(0)
        has_heads = name == "sinks" or (name == "mask" and o.last == 2 and o.tensor.shape[0] > 1)
        need = _fitting(o, Split(0, by_head.segments)) if has_heads else (WHOLE,)
        if need is None:
            return None
        needs.append(need[0])
    return Decision(by_head, tuple(needs))


RULES: Final[Mapping[str, Rule]] = {
    "elements": _broadcast,
    "linear": _elementwise,
    "rows": _along_rows,
    "get_rows": _get_rows,
    "set_rows": _set_rows,
    "mul_mat": _mul_mat,
    "mul_mat_id": _mul_mat_id,
    "add_id": _add_id,
    "soft_max": _along_rows,
    "rope": _rope,
    "attention": _attention,
    "sum_rows": _sum_rows,
    "cpy": _cpy,
    "cont": _cont,
    "concat": _concat,
}
"""By ``OpDef.sharding``, or else by the name of the op."""
