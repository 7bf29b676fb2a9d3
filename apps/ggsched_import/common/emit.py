"""Makes nodes, and computes at once what depends on constants only.

A value is a tensor of the graph or a constant. An op on constants is computed with its reference,
so that shape arithmetic folds by itself; a constant becomes a weight when a node needs it.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ggsched.errors import GraphError, ModelError
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.constants import PREFIX
from ggsched.ir.dtype import ARRAY_DTYPES, BF16, F32, DType
from ggsched.ir.ops import BUILT_IN_AXES, Param, infer, op_by_name
from ggsched.ir.params import canonical_params, check_arity
from ggsched.ir.tensor import Role, Tensor, contiguous_strides
from ggsched.ops.nd.declare import wide
from ggsched_import.common.built_in import built_in

Array = npt.NDArray[Any]

_BY_NUMPY: Final = {np.dtype(t.host): t for t in ARRAY_DTYPES}

MAX_CALLS: Final = 1_000_000
"""Calls of ops in one import: functions and loops can multiply without end."""

FOLD_NBYTES: Final = 1 << 30
"""Bytes of constants that one import may compute; larger ones are computed by the graph."""

FOLD_FLOPS: Final = 1 << 33
"""Operations that it may take to compute them: seconds, in numpy."""


_INDEXED: Final = frozenset(
    ("gather", "gather_elements", "gather_nd", "scatter_elements", "scatter_nd")
)
"""Ops that fail at indices out of range; operand 1 has the indices."""


class Const:
    """A constant.

    Args:
        array: Its elements, contiguous; None for bfloat16, whose elements come as f32 where an op
            needs them.
        name: Of the weight, if it is one of the file's as it stands there.
        bits: The elements of bfloat16 as u16.
    """

    __slots__ = ("_array", "bits", "name")

    def __init__(self, array: Array | None, name: str = "", bits: Array | None = None) -> None:
        self._array, self.name, self.bits = array, name, bits

    @property
    def array(self) -> Array:
        """Its elements, contiguous."""
        if self._array is None:
            assert self.bits is not None  # one of them is given
            self._array = widened(self.bits)
        return self._array

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return self.array.shape if self.bits is None else self.bits.shape

    @property
    def dtype(self) -> DType:
        """Its element type."""
        return _dtype_of(self.array) if self.bits is None else F32


def widened(bits: Array) -> Array:
    """Return bfloat16, given as its bits, as f32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def reshaped_strides(x: Tensor, shape: Sequence[int]) -> tuple[int, ...] | None:
    """Return the strides of a view of a shape with as many elements, or None if there is none."""
    if 0 in shape:
        return None
    runs: list[tuple[int, int]] = []  # elements that are evenly apart, and by how many bytes
    for n, step in zip(x.shape, x.strides, strict=True):
        if runs and runs[-1][1] == n * step:
            runs[-1] = runs[-1][0] * n, step
        elif n != 1:
            runs.append((n, step))
    strides: list[int] = []
    left, step = runs.pop() if runs else (1, x.dtype.block_nbytes)
    for n in reversed(shape):
        if n != 1 and left == 1 and runs:
            left, step = runs.pop()
        if left % n:
            return None
        strides.insert(0, step)
        left, step = left // n, step * n
    return tuple(strides)


Value = Const | Tensor


class Emitter:
    """Builds the graph of one import.

    Attributes:
        weights: Arrays by the name of their weight.
        rounded: By the id of a tensor of integers, the floats that were saturated to it, and the
            limits of its type.
    """

    def __init__(self, name: str) -> None:
        self.g = GraphBuilder(name)
        self.weights: dict[str, Array] = {}
        self.rounded: dict[int, tuple[Value, int, int]] = {}
        self._made: dict[str, Tensor] = {}
        self._calls = 0
        self._folded_nbytes = 0
        self._folded_flops = 0.0
        self._taken: Value | None = None

    def count(self) -> None:
        """Count a call of an op.

        Raises:
            ModelError: there are too many.
        """
        self._calls += 1
        if self._calls > MAX_CALLS:
            raise ModelError(
                f"more than {MAX_CALLS:,} calls of ops", why="functions or loops multiply them"
            )

    def op(self, name: str, *values: Value, **params: Any) -> Value:
        """Apply an op of the library ``nd``, or fold it.

        Args:
            name: Without the prefix ``nd.``.
            values: Operands.
            params: Parameters of the op.

        Raises:
            GraphError: operands that do not fit.
        """
        self.count()
        if self._taken is not None and name in _INDEXED:
            values = (values[0], self._harmless(name, values, params), *values[2:])
        folded = self._fold("nd." + name, values, params)
        if folded is not None:
            return folded
        operands = [v.array if isinstance(v, Const) else v for v in values]
        names = {id(v.array): v for v in values if isinstance(v, Const)}
        known = built_in(
            self.g,
            lambda x: x if isinstance(x, Tensor) else self.tensor(names.get(id(x), Const(x))),
            name,
            operands,
            {**op_by_name("nd." + name).defaults, **params},
        )
        if known is not None:
            return known
        return self.g.op("nd." + name, *[self.tensor(v) for v in values], **params)

    def choose(
        self,
        condition: Value,
        then: Callable[[], Sequence[Value]],
        other: Callable[[], Sequence[Value]],
        where: str,
    ) -> Sequence[Value]:
        """Return the results of one of two branches.

        A constant condition leaves out the other branch. Otherwise both are computed: no op has an
        effect, and indices of the branch that is not taken are replaced, so that none is out of
        range.

        Args:
            condition: A bool; ``then`` where it is true.
            then: Converts a branch and returns its results.
            other: Converts the other branch.
            where: The node, for messages.

        Raises:
            ModelError: the results of the branches differ in shape or type.
        """
        if isinstance(condition, Const):
            return then() if condition.array.reshape(-1)[:1].any() else other()
        condition = self.reshape(condition, ())
        with self._only_if(condition):
            first = then()
        with self._only_if(self.op("not", condition)):
            second = other()
        found = []
        for a, b in zip(first, second, strict=True):
            if (a.shape, a.dtype) != (b.shape, b.dtype):
                raise ModelError(
                    "its branches differ in shape or type",
                    where=where,
                    why=f"{a.dtype}{list(a.shape)} and {b.dtype}{list(b.shape)}",
                    hint="make the condition a constant of the model",
                )
            found.append(self.op("where", condition, a, b))
        return found

    @contextmanager
    def _only_if(self, condition: Value) -> Iterator[None]:
        """Convert a branch whose results are read only where a bool of shape () is true."""
        outer = self._taken
        self._taken = condition if outer is None else self.op("and", outer, condition)
        try:
            yield
        finally:
            self._taken = outer

    def _harmless(self, name: str, values: Sequence[Value], params: dict[str, Any]) -> Value:
        """Return indices that are 0, which is in range, where the branch is not taken."""
        x, indices = values[:2]
        if isinstance(indices, Const):
            if name.endswith("_nd"):
                first = int(params.get("batch_dims", 0))
                extents: Any = x.shape[first : first + indices.shape[-1]]
            else:
                extents = x.shape[int(params.get("axis", 0))]
            array = indices.array
            if ((array >= -np.asarray(extents)) & (array < np.asarray(extents))).all():
                return indices
        assert self._taken is not None
        return self.op("where", self._taken, indices, Const(np.zeros((), indices.dtype.host)))

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        """Return the same elements in another shape, without a node unless they have to be copied.

        Raises:
            ModelError: the sizes differ.
        """
        size = tuple(shape)
        if size == x.shape:
            return x
        if prod(size) != prod(x.shape) or any(n < 0 for n in size):
            raise ModelError(f"{list(x.shape)} cannot have the shape {list(size)}")
        if isinstance(x, Const):
            return Const(x.array.reshape(size))
        if x.is_contiguous:
            return self.g.reshape(x, *size)
        strides = reshaped_strides(x, size)
        if strides is not None:
            return self.g.view(x, size, strides)
        is_built_in = len(x.shape) <= BUILT_IN_AXES
        return self.g.reshape(self.g.cont(x) if is_built_in else self.g.op("nd.copy", x), *size)

    def tensor(self, value: Value) -> Tensor:
        """Return a tensor of the graph: a constant becomes a weight."""
        if isinstance(value, Tensor):
            return value
        return self._weight(value.name or content_name(value.array), value.array, value.dtype)

    def factor(self, value: Value) -> Tensor:
        """Return a tensor of the graph as a product takes it: a constant keeps its 16 bits."""
        if isinstance(value, Const) and value.bits is not None and value.name:
            return self._weight(f"{value.name} (bf16)", value.bits, BF16)
        return self.tensor(value)

    def _weight(self, name: str, array: Array, dtype: DType) -> Tensor:
        if name not in self._made:
            self._made[name] = self.g.weight(name, array.shape, dtype)
            self.weights[name] = array
        return self._made[name]

    def _fold(self, name: str, values: Sequence[Value], params: dict[str, Param]) -> Const | None:
        arrays = [v.array for v in values if isinstance(v, Const)]
        if len(arrays) != len(values):
            return None
        op = op_by_name(name)
        given = canonical_params(op, params)
        check_arity(op, given, len(values))
        full = op.full(given)
        dtype, shape = infer(op, [_described(v) for v in values], full)
        nbytes = prod(shape) * dtype.block_nbytes
        shapes, flops = [v.shape for v in values], 2.0 * prod(shape)
        if op.flops is not None:
            flops = op.flops(*shapes, **full)
        if self._folded_nbytes + nbytes > FOLD_NBYTES or self._folded_flops + flops > FOLD_FLOPS:
            return None
        self._folded_nbytes += nbytes
        self._folded_flops += flops
        with np.errstate(all="ignore"):
            found = np.asarray(op.reference(*map(wide, arrays), **full))
            return Const(np.ascontiguousarray(found.astype(dtype.host)).reshape(shape))


def _dtype_of(array: Array) -> DType:
    """Return the element type of an array.

    Raises:
        ModelError: a type that ggsched does not have.
    """
    try:
        return _BY_NUMPY[array.dtype]
    except KeyError:
        raise ModelError(f"elements of type {array.dtype} are not supported") from None


def _described(value: Value) -> Tensor:
    """Return a tensor as a rule for shapes sees it."""
    if isinstance(value, Tensor):
        return value
    dtype, shape = value.dtype, value.shape
    nbytes = value.array.nbytes
    strides = contiguous_strides(dtype, shape)
    return Tensor(0, value.name, dtype, shape, strides, 0, 0, nbytes, Role.WEIGHT)


def misfit(error: GraphError, where: str) -> ModelError:
    """Return the error of a node of a foreign graph, for what its ops of ggsched refuse.

    Constants have names and nodes have parts here that the graph does not know: constants are
    called that, and the op that a part became is left out.

    Args:
        error: Of the op.
        where: The node.
    """
    what = re.sub(rf"\b{re.escape(PREFIX)}[0-9a-f]+", "a constant", error.what)
    why = "" if error.where.startswith("nd.") else error.where
    return ModelError(what, where=where, why=why, hint=error.hint)


def not_supported(missing: Mapping[str, int], where: str, hint: str) -> ModelError:
    """Return the error of a model with ops that are not supported, which names all of them.

    Args:
        missing: Number of nodes by the name of the op.
        where: The model, or the node of a single op.
        hint: What to do.
    """
    if len(missing) == 1:
        return ModelError(
            f"the op {next(iter(missing))!r} is not supported", where=where, hint=hint
        )
    listed = ", ".join(f"{name} ({n})" for name, n in sorted(missing.items()))
    return ModelError(
        f"the ops {listed} are not supported",
        where=where,
        why="in brackets: how many nodes",
        hint=hint,
    )


def content_name(array: Array) -> str:
    """Return a name that equal constants share, also over several imports of a file."""
    h = hashlib.blake2b(digest_size=12)
    h.update(repr((array.dtype.str, array.shape)).encode())
    h.update(np.ascontiguousarray(array).tobytes())
    return PREFIX + h.hexdigest()
