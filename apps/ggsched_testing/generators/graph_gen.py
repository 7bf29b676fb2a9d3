"""The state of a random graph while it is drawn: tensors to choose from, and how wild they are.

For every storage a bound of the magnitude and an estimate of the rounding error are kept (in
units of 2**-24, relative to 1). An op that would exceed the limits is not taken, so that any
correct backend agrees with the oracle closely. An error of 0 means that every correct backend
has the very same bits; only such values are rounded to f16 or sorted.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from ggsched.errors import GraphError
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import F16, F32, I32, DType
from ggsched.ir.ops import Param, op_by_name, written_operand
from ggsched.ir.tensor import Role, Tensor
from ggsched_testing.generators.values import LeafKind, LeafRule

T = TypeVar("T")

MAG_MAX: Final = 256.0
ERR_MAX: Final = 1000.0
# What a state may hold at the end of a run, and therefore at the start of the next one.
STATE_MAG: Final = 8.0
STATE_ERR: Final = 200.0
LONGEST_ROW: Final = 64
"""Elements of the longest rows that are drawn, so types of longer blocks occur in no graph."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Largest magnitude, and error in units of 2**-24, of what a storage holds."""

    mag: float
    err: float


@dataclass(frozen=True, slots=True)
class Ids:
    """An i32 tensor with numbers in [0, bound)."""

    tensor: Tensor
    bound: int
    distinct: bool = False


class GraphGenerator:
    """Chooses operands, makes leaves where none fits, and adds nodes that stay tame.

    All choices of a step come from the bytes that it was fed, one byte each and 0 after the last;
    0 is the simplest choice. So each step is one draw of Hypothesis, which can delete a step or
    zero its bytes without disturbing the others: that is how failing graphs become small.
    """

    def __init__(self, *, write_inputs: bool, weight_dtypes: Sequence[DType]) -> None:
        self._choices: Iterator[int] = iter(())
        self.g = GraphBuilder("drawn")
        self.weight_dtypes = tuple(weight_dtypes)
        self.write_inputs = write_inputs
        self.floats: list[Tensor] = []
        self.ids: list[Ids] = []
        self.special: list[tuple[LeafKind, Tensor]] = []
        self.bounds: dict[int, Bounds] = {}
        self.rules: dict[str, LeafRule] = {}
        self.results: list[Tensor] = []

    # --- choosing -------------------------------------------------------------------------

    def feed(self, choices: bytes) -> None:
        """Give the choices of the next step."""
        self._choices = iter(choices)

    def flip(self) -> bool:
        """Choose yes or no; 0 is no."""
        return self.number(0, 1) == 1

    def number(self, low: int, high: int) -> int:
        """Choose an integer in [low, high], at most 256 of them; 0 is low."""
        return low + next(self._choices, 0) % (high - low + 1)

    def pick(self, items: Sequence[T]) -> T:
        """Choose one of at most 256 items; 0 is the first."""
        return items[self.number(0, min(len(items), 256) - 1)]

    def shape(self, ndim: int | None = None) -> tuple[int, ...]:
        """Draw a small shape of 1 to 4 axes."""
        axes = self.pick((2, 3, 1, 4)) if ndim is None else ndim
        return (*(self.number(1, 4) for _ in range(axes - 1)), self.pick((4, 2, 8, 32, 1, 3)))

    def f32(
        self,
        fits: Callable[[Tensor], bool] = lambda t: True,
        make: Callable[[], tuple[int, ...]] | None = None,
    ) -> Tensor:
        """Return an f32 tensor that fits: one that is there, or a new leaf of shape ``make()``."""
        # The coin is thrown in any case, so that later choices keep their bytes.
        fresh = make is not None and self.flip()
        there = [t for t in self.floats if t.dtype is F32 and fits(t)]
        if there and not fresh:
            return self.pick(there)
        return self.leaf(self.shape() if make is None else make())

    # --- leaves ---------------------------------------------------------------------------

    def leaf(self, shape: tuple[int, ...], dtype: DType = F32) -> Tensor:
        """Add an input, a weight or a state of plain numbers."""
        roles = (Role.WEIGHT, Role.INPUT, Role.STATE) if dtype in (F32, F16) else (Role.WEIGHT,)
        role = self.pick(roles)
        name = f"{role.value}{len(self.rules)}"
        rule = LeafRule(amp=self.pick((1.0, 0.25)))
        self.rules[name] = rule
        match role:
            case Role.WEIGHT:
                t = self.g.weight(name, shape, dtype)
            case Role.INPUT:
                t = self.g.input(name, shape, dtype)
            case _:
                t = self.g.state(name, shape, dtype)
        exact = role is not Role.STATE or dtype is F16  # only exact values enter an f16 state
        self.bounds[t.id] = Bounds(
            STATE_MAG if role is Role.STATE else rule.amp, 0.0 if exact else STATE_ERR
        )
        self.floats.append(t)
        return t

    def matrix(self, shape: tuple[int, ...]) -> Tensor:
        """Add a leaf of any float type that the last axis allows."""
        allowed = [d for d in self.weight_dtypes if shape[-1] % d.block == 0]
        return self.leaf(shape, self.pick(allowed or [F32]))

    def special_leaf(self, kind: LeafKind, shape: tuple[int, ...]) -> Tensor:
        """Return a leaf for one purpose; it is never written and never used for another."""
        there = [t for k, t in self.special if (k, t.shape) == (kind, shape)]
        fresh = self.flip()
        if there and not fresh:
            return self.pick(there)
        name = f"{kind}{len(self.rules)}"
        self.rules[name] = LeafRule(kind)
        t = self.g.weight(name, shape) if self.flip() else self.g.input(name, shape)
        self.bounds[t.id] = Bounds(1.0, 0.0)
        self.special.append((kind, t))
        return t

    def ids_for(self, shape: tuple[int, ...], rows: int, *, distinct: bool = False) -> Tensor:
        """Return i32 row numbers below ``rows``: ids that are there, or a new input."""
        there = [
            i.tensor
            for i in self.ids
            if i.tensor.shape == shape and i.bound <= rows and (i.distinct or not distinct)
        ]
        fresh = self.flip()
        if there and not fresh:
            return self.pick(there)
        name = f"ids{len(self.rules)}"
        t = self.g.input(name, shape, I32)
        self.rules[name] = LeafRule("ids", bound=rows, distinct=distinct)
        self.ids.append(Ids(t, rows, distinct))
        return t

    def bounds_for(self, tokens: int, rows: int) -> Tensor:
        """Return i32 (tokens, 2) pairs that cut ``rows`` rows: a new input."""
        name = f"bounds{len(self.rules)}"
        self.rules[name] = LeafRule("bounds", bound=rows)
        t = self.g.input(name, (tokens, 2), I32)
        self.bounds[t.id] = Bounds(0.0, 0.0)
        return t

    # --- nodes ----------------------------------------------------------------------------

    def mag(self, t: Tensor) -> float:
        """Return the largest magnitude that a tensor may hold."""
        return self.bounds[t.storage].mag

    def err(self, t: Tensor) -> float:
        """Return the error estimate of a tensor."""
        return self.bounds[t.storage].err

    def writable(self, t: Tensor) -> bool:
        """Whether a node may write through this tensor."""
        roles = {Role.TEMP, Role.STATE} | ({Role.INPUT} if self.write_inputs else set())
        return t.role in roles and t.dtype in (F32, F16) and not t.may_overlap_itself

    def emit(
        self,
        op: str,
        *operands: Tensor,
        mag: float,
        err: float,
        **params: Param,
    ) -> Tensor | None:
        """Add a node with a float result if it stays tame and is legal.

        Args:
            op: Name of the op.
            mag: Largest magnitude of what it computes.
            err: Error of what it computes, in units of 2**-24.
            params: Its parameters; ``inplace`` included.

        Returns:
            The result, now among the tensors to choose from, or None if the node was not taken.
        """
        if mag > MAG_MAX or err > ERR_MAX:
            return None
        through = written_operand(op_by_name(op), params)
        if through is not None:
            target = operands[through]
            inexact_half = target.dtype is F16 and err > 0
            if not self.writable(target) or inexact_half:
                return None
            if target.role is Role.STATE and (mag > STATE_MAG or err > STATE_ERR):
                return None
            old = self.bounds[target.storage]
            mag, err = max(mag, old.mag), max(err, old.err)
        result = self.node(op, *operands, **params)
        if result is not None:
            self.bounds[result.storage] = Bounds(mag, err)
            self.floats.append(result)
        return result

    def node(self, op: str, *operands: Tensor, **params: Any) -> Tensor | None:
        """Add a node if it is legal; overlapping operands are the usual reason that it is not."""
        try:
            result = self.g.op(op, *operands, **params)
        except GraphError:
            return None
        self.results.append(result)
        return result
