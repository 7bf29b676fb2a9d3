"""Chains of ops on single elements, each of which replaces the result of the one before it.

"Replaces" is seen from bytes, as in ``ggsched_cpu.lowering.windows``: the next node of the program
writes the very window that a node has written, so nobody else can read that, and it is as well
never written. Such a chain is one kernel, made from the expressions of its ops, whose intermediate
results stay in registers. No pattern is declared, and the plan is as before.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from math import prod
from typing import Final, NamedTuple, TypeVar, cast

from ggsched.backend.program import BoundNode, Operand
from ggsched_kernels.array_table import BY_TYPE, ELEMENTS, MOVES, Expression
from ggsched_kernels.arrays import PREFIX, SOURCE_PREFIX, broadcast, packed, place
from ggsched_kernels.calls import MAX_PARTS, TuningProfile, f32, i32
from ggsched_kernels.lowering_context import LoweringContext

SOURCE: Final = f"{SOURCE_PREFIX}chain"
MAX_OPERANDS: Final = 3
MAX_NUMBERS: Final = 3
MAX_NODES: Final = 12

_BUILT_IN: Final = {
    "add": Expression("A + B"),
    "sub": Expression("A - B"),
    "mul": Expression("A * B"),
    "div": Expression("A / B"),
    "scale": Expression("A * P0 + P1", params=("scale", "bias")),
    "clamp": Expression("MIN(P1, MAX(P0, A))", params=("min", "max")),
    "silu": Expression("A / (EXP(-A) + 1.0f)"),
    "gelu": Expression("A / (EXP((A * A * 0.044715f + 1.0f) * A * -1.5957691216057308f) + 1.0f)"),
    "sigmoid": Expression("1.0f / (EXP(-A) + 1.0f)"),
    "tanh": Expression("TANH(A)"),
    "softplus": Expression("MAX(A, 0.0f) + LOG1P(EXP(MIN(A, -A)))"),
    "swiglu": Expression("A / (EXP(-A) + 1.0f) * B"),
}  # fmt: skip
"""As in ``elementwise.cl``."""

_FLOATS: Final = {
    PREFIX + op: found
    for op, found in ELEMENTS.items()
    if "f32" in found.types and op not in (*MOVES, "cast", "where", "is_nan", "is_inf", "equal",
                                           "less", "less_equal", "greater", "greater_equal")
}  # fmt: skip

EXPRESSIONS: Final = {**_BUILT_IN, **_FLOATS, PREFIX + "div": Expression(BY_TYPE["div"]["f32"])}
"""By op: of f32 operands, with an f32 result."""

_CALLS: Final = re.compile(
    r"\b(a?(sin|cos|tan)h?|exp|expm1|log|log1p|erf|pow|EXP|TANH|LOG1P|fmod|floor_mod)\("
)

CHEAP: Final = frozenset(op for op, e in EXPRESSIONS.items() if not _CALLS.search(e.text))
"""Ops without ``exp``, ``tanh`` and the like. A chain with four ``tanh`` among eight sums, products
and maxima took 1.1 to 1.7 of the time of its parts with PoCL (4,096 to a million elements), with
``relu`` in their place 0.5 to 0.6."""

Groups = Sequence[Sequence[BoundNode]]


Site = TypeVar("Site", bound=LoweringContext)


class _Step(NamedTuple):
    """An op of a chain: places of its operands among those of the chain, -1 for the last result."""

    op: str
    operands: tuple[int, ...]


class Chain(NamedTuple):
    """Ops of consecutive groups, one on the result of another.

    Attributes:
        steps: One for each group.
        operands: What the ops read besides results of the chain.
        numbers: Parameters of the ops.
    """

    steps: tuple[_Step, ...]
    operands: tuple[Operand, ...]
    numbers: tuple[float, ...]

    @property
    def text(self) -> str:
        """The chain in the name of a source, which ``chain_source`` reads."""
        return "+".join("_".join([s.op, *map(_letter, s.operands)]) for s in self.steps)


def join_chain(
    groups: Groups, at: int, profile: TuningProfile, ctx: type[Site]
) -> tuple[int, Site] | None:
    """Return how many groups from ``at`` on are a chain, and the context of its call.

    None where fewer than two are, or none of them is an op of the library: other ops have kernels
    that load vectors. On devices whose groups are single work-items, CPUs, ops are ``CHEAP``.
    """
    y = groups[at][0].output
    chain = chain_from(groups, at, lambda op, _: profile.lanes > 1 or op in CHEAP)
    count = len(chain.steps)
    if count < 2 or not any(step.op.startswith(PREFIX) for step in chain.steps):
        return None
    made = ctx(groups[at + count - 1][0], profile)
    _call(made, chain, y)
    return count, made


def chain_from(groups: Groups, at: int, fits: Callable[[str, Sequence[Operand]], bool]) -> Chain:
    """Return the ops from ``at`` on, each of which replaces the result of the one before it.

    Args:
        fits: Whether an op and what it reads besides can be part of it.
    """
    return _chain(groups, at, groups[at][0].output, fits, is_behind=False)


def chain_behind(groups: Groups, at: int, takes: Callable[[Operand], bool]) -> Chain:
    """Return the ops that replace, one behind another, the result of the group at ``at``.

    Args:
        groups: Groups of a program.
        at: The group in front of the chain.
        takes: Whether the kernel of that group can read an operand of the ops.
    """
    y = groups[at][0].output
    return _chain(groups, at + 1, y, lambda _, more: all(map(takes, more)), is_behind=True)


def chain_within(group: Sequence[BoundNode]) -> Chain | None:
    """Return the ops of a group, each on the result of the one before it; None if it is no chain.

    Nobody else reads results inside a group, so they may lie anywhere.
    """
    steps, operands, numbers = list[_Step](), list[Operand](), list[float]()
    y, made = group[-1].output, None
    for node in group:
        expression, places = EXPRESSIONS.get(node.op), list[int]()
        if expression is None or any(o.dtype.name != "f32" for o in (*node.inputs, node.output)):
            return None
        for operand in node.inputs:
            is_apart = not operand.meets(y) or _is_same(operand, y)
            if made is not None and _is_same(operand, made):
                places.append(-1)
            elif not is_apart:
                return None
            else:
                places.append(len(operands))
                operands.append(operand)
        if made is not None and -1 not in places:
            return None
        steps.append(_Step(node.op, tuple(places)))
        numbers += [float(cast(float, node.params[name])) for name in expression.params]
        made = node.output
    if len(operands) > MAX_OPERANDS or len(numbers) > MAX_NUMBERS:
        return None
    return Chain(tuple(steps), tuple(operands), tuple(numbers))


def joined_chains(inner: Chain, outer: Chain) -> Chain | None:
    """Return one chain of two, of which the second replaces the result of the first, if it fits."""
    shift = len(inner.operands)
    operands, numbers = (*inner.operands, *outer.operands), (*inner.numbers, *outer.numbers)
    if len(operands) > MAX_OPERANDS or len(numbers) > MAX_NUMBERS:
        return None
    moved = (
        _Step(step.op, tuple(o + shift if o >= 0 else o for o in step.operands))
        for step in outer.steps
    )
    return Chain((*inner.steps, *moved), operands, numbers)


def _chain(
    groups: Groups,
    at: int,
    y: Operand,
    fits: Callable[[str, Sequence[Operand]], bool],
    *,
    is_behind: bool,
) -> Chain:
    """Return the chain from ``at`` on, as far as ``fits`` takes its ops and their new operands."""
    steps: list[_Step] = []
    operands: list[Operand] = []
    numbers: list[float] = []
    for group in islice(groups, at, at + MAX_NODES):
        step = _step(group, y, operands, is_first=not steps and not is_behind)
        if step is None or not fits(step[0].op, step[1]):
            break
        found, more = step
        own = [group[0].params[name] for name in EXPRESSIONS[found.op].params]
        if len(operands) + len(more) > MAX_OPERANDS or len(numbers) + len(own) > MAX_NUMBERS:
            break
        steps.append(found)
        operands += more
        numbers += [float(n) for n in own if isinstance(n, (int, float))]
    return Chain(tuple(steps), tuple(operands), tuple(numbers))


def _step(
    group: Sequence[BoundNode], y: Operand, known: Sequence[Operand], *, is_first: bool
) -> tuple[_Step, list[Operand]] | None:
    """Return an op as a step of a chain that ends in ``y``, and the operands that are new."""
    node = group[0]
    expression = EXPRESSIONS.get(node.op)
    made = _as_long(node.output, y)
    if len(group) > 1 or expression is None or not made.is_same_window(y) or 0 in y.shape:
        return None
    if any(o.dtype.name != "f32" for o in (*node.inputs, y)):
        return None
    places, more = [], list[Operand]()
    for operand in (_as_long(o, y) for o in node.inputs):
        is_y = operand.is_same_window(y)
        if is_y and not is_first:
            places.append(-1)
            continue
        if len(operand.shape) > len(y.shape) or (operand.meets(y) and not is_y):
            return None  # an element of it may have been replaced
        everything = [*known, *more]
        same = next((i for i, o in enumerate(everything) if o.is_same_window(operand)), None)
        if same is None:
            same = len(everything)
            more.append(operand)
        places.append(same)
    if not is_first and -1 not in places:
        return None
    return _Step(node.op, tuple(places)), more


def without_ones(operand: Operand) -> Operand:
    """Return an operand without the axes of extent 1 in front."""
    more = next((i for i, n in enumerate(operand.shape) if n != 1), len(operand.shape))
    return replace(operand, shape=operand.shape[more:], strides=operand.strides[more:])


def _is_same(a: Operand, b: Operand) -> bool:
    return without_ones(a).is_same_window(without_ones(b))


def _as_long(operand: Operand, y: Operand) -> Operand:
    """Return an operand without the axes of extent 1 that it has more than y in front."""
    more = len(operand.shape) - len(y.shape)
    if more <= 0 or prod(operand.shape[:more]) != 1:
        return operand
    return replace(operand, shape=operand.shape[more:], strides=operand.strides[more:])


def _call(ctx: LoweringContext, chain: Chain, y: Operand) -> None:
    x = [broadcast(o, y.shape) for o in chain.operands]
    places = [*x, *[x[0]] * (MAX_OPERANDS - len(x)), place(y)]
    struct, rows, extent = packed(places, y.shape, ctx)
    span = max(ctx.profile.span, -(-extent // MAX_PARTS))
    values = [*chain.numbers, 0.0, 0.0, 0.0][:MAX_NUMBERS]
    ctx.call(
        f"{SOURCE}-{chain.text}-f32",
        "chain",
        (*(p[0] for p in places), struct, i32(span), *map(f32, values)),
        (rows, max(1, -(-extent // span)), 1),
        A_T="f32",
        B_T="f32",
        C_T="f32",
        Y_T="f32",
        OPERANDS=len(x),
    )


def _letter(operand: int) -> str:
    return "v" if operand < 0 else str(operand)


def chain_source(text: str) -> str:
    """Return the definition of BODY for a chain, by the middle part of a source's name."""
    lines, used = [], 0
    for step in text.split("+") if text else ():
        op, operands = _parsed(step)
        expression = EXPRESSIONS[op]
        own = [f"const float {name} = {'V' if o == 'v' else f'X{o}'};"
               for name, o in zip("ABC", operands, strict=False)]  # fmt: skip
        own += [f"const float P{i} = Q{used + i};" for i in range(len(expression.params))]
        used += len(expression.params)
        lines.append(f"{{ {' '.join(own)} V = (float)({expression.text}); }}")
    return f"#define BODY {' '.join(lines)}\n"


def _parsed(step: str) -> tuple[str, list[str]]:
    """Return op and operands of ``nd.leaky_relu_v``, whose name may have the same sign."""
    parts = step.split("_")
    operands: list[str] = []
    while parts[-1] == "v" or parts[-1].isdigit():
        operands.insert(0, parts.pop())
    return "_".join(parts), operands


__all__ = [
    "EXPRESSIONS",
    "MAX_NUMBERS",
    "MAX_OPERANDS",
    "Chain",
    "Groups",
    "Site",
    "chain_behind",
    "chain_from",
    "chain_source",
    "chain_within",
    "join_chain",
    "joined_chains",
    "without_ones",
]
