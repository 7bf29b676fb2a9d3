"""The pleasant way to write a graph.

    g = GraphBuilder("two layers")
    x = g.input("x", (4, 64))
    w = g.weight("w", (32, 64))
    y = g.silu(g.mul_mat(w, x))
    graph = g.build(y=y)

Operands may be arrays of numpy: constants, whose data travels with the graph. They keep their type
if the op takes it; otherwise 64-bit ones become f32 and i32, or what the other operands are, where
that is exact.

Each method checks its operands at once and returns a ``Tensor``. Nodes run in the order of the
calls. Names given by ``with g.scope("blk.0"):`` prefix labels.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from operator import index
from typing import Any, TypeGuard

from ggsched.errors import GraphError
from ggsched.ir.constants import Constant, Operand, fitted, read_array
from ggsched.ir.dtype import F32, I32, DType, dtype_by_name
from ggsched.ir.graph import Graph, Node, verify_graph
from ggsched.ir.operators import is_array
from ggsched.ir.ops import (
    OpDef,
    Param,
    access_modes,
    check_axes,
    infer,
    op_by_name,
    verify_overlap,
    written_operand,
)
from ggsched.ir.params import canonical_params, check_arity
from ggsched.ir.tensor import Role, Tensor, contiguous_strides, span_nbytes, verify_window
from ggsched.ops import Methods


class GraphBuilder(Methods):
    """Collects tensors and nodes; ``build`` gives the immutable graph.

    All ops raise ``GraphError`` for operands whose types or shapes do not fit, that are of another
    builder, or that would be written and must not be. Examples of methods go on from this one.

    Examples:
        >>> import numpy as np
        >>> from ggsched import GraphBuilder
        >>> g = GraphBuilder()
        >>> x, w = g.input("x", (4, 64)), g.weight("w", (32, 64))
        >>> g.build(y=g.mul_mat(w, x) + 1).named("w").shape
        (32, 64)
    """

    def __init__(self, name: str = "graph") -> None:
        self.name = name
        self._tensors: list[Tensor] = []
        self._nodes: list[Node] = []
        self._scope: tuple[str, ...] = ()
        self._constants: dict[str, bytes] = {}
        self._constant_ids: dict[str, int] = {}

    @classmethod
    def after(cls, graph: Graph) -> "GraphBuilder":
        """Return a builder that has the tensors and constants of a graph, by the same ids.

        It has none of the nodes, so what it builds is not a graph on its own; ``tensors`` and
        ``nodes`` are what was added.

        Args:
            graph: Whose tensors it has.

        Examples:
            >>> other = GraphBuilder.after(g.build(g.silu(x)))
            >>> [t.name for t in other.tensors if t.name]
            ['x', 'w']
        """
        g = cls(graph.name)
        g._tensors = [replace(t, builder=g) for t in graph.tensors]
        g._constants = dict(graph.constants)
        g._constant_ids = {name: graph.named(name).id for name in graph.constants}
        return g

    @property
    def tensors(self) -> Sequence[Tensor]:
        """All tensors so far, by id."""
        return self._tensors

    @property
    def nodes(self) -> Sequence[Node]:
        """All nodes so far, in program order."""
        return self._nodes

    @property
    def constants(self) -> Mapping[str, bytes]:
        """Data of the constants so far, by name."""
        return self._constants

    # --- storages -----------------------------------------------------------------------

    def input(self, name: str, shape: Sequence[int], dtype: DType | str = F32) -> Tensor:
        """Add a tensor that the host sets before each run.

        Args:
            name: By which ``run`` is given the array; unique in the graph.
            shape: Extents, outermost first; at most eight, of which built-in ops take four.
            dtype: Element type, or its name: ``"f16"``, ``"i32"``, ``"q8_0"``, ...

        Raises:
            GraphError: the name is taken or empty, the type is unknown, or the shape does not suit
                it.

        Examples:
            >>> g.input("ids", (4,), "i32").shape
            (4,)
        """
        return self._root(name, dtype, shape, Role.INPUT)

    def weight(self, name: str, shape: Sequence[int], dtype: DType | str = F32) -> Tensor:
        """Add a constant tensor, loaded once and never written.

        Args:
            name: The name that ``Scheduler(weights=...)`` is called with; unique in the graph.
            shape: Extents, outermost first; at most eight, of which built-in ops take four.
            dtype: Element type, or its name: ``"f16"``, ``"i32"``, ``"q8_0"``, ...

        Raises:
            GraphError: the name is taken or empty, the type is unknown, or the shape does not suit
                it.

        Examples:
            >>> g.weight("packed", (32, 64), "q8_0").nbytes
            2176
        """
        return self._root(name, dtype, shape, Role.WEIGHT)

    def state(self, name: str, shape: Sequence[int], dtype: DType | str = F32) -> Tensor:
        """Add a tensor that keeps its content from run to run and starts as zeros.

        Args:
            name: Unique in the graph.
            shape: Extents, outermost first; at most eight, of which built-in ops take four.
            dtype: Element type, or its name: ``"f16"``, ``"i32"``, ``"q8_0"``, ...

        Raises:
            GraphError: the name is taken or empty, the type is unknown, or the shape does not suit
                it.

        Examples:
            >>> cache = g.state("cache", (128, 64), "f16")
            >>> cache.role.value
            'state'
        """
        return self._root(name, dtype, shape, Role.STATE)

    def constant(self, array: Any, dtype: DType | str | None = None) -> Tensor:
        """Return a weight whose data, copied now, travels with the graph.

        Ops and operators take arrays as they are; this is for what is used as a view, for instance.

        Args:
            array: Of numpy, or anything with ``__array__`` or the buffer protocol.
            dtype: That of the array where none is given.

        Raises:
            GraphError: no array, or of a type that tensors do not have, or a value that is not
                exact in ``dtype``.

        Examples:
            >>> table = g.constant(np.arange(6, dtype=np.float32).reshape(3, 2))
            >>> g.rows(table, 1, 3).shape
            (2, 2)
        """
        if not is_array(array):
            raise GraphError(f"{array!r} is not an array", hint="write numpy.array(...)")
        found = read_array(array)
        return self._held(found if dtype is None else found.as_type(_dtype(dtype)))

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Prefix the labels of nodes added inside with ``name.``.

        Args:
            name: Without the dot.

        Examples:
            >>> with g.scope("blk.0"):
            ...     y = g.silu(x, name="act")
            >>> g.nodes[-1].name
            'blk.0.act'
        """
        self._scope = (*self._scope, name)
        try:
            yield
        finally:
            self._scope = self._scope[:-1]

    def build(self, *outputs: Tensor, **named: Tensor) -> Graph:
        """Return the graph, verified.

        Args:
            outputs: What runs return, by id, by tensor, or by the names of the nodes that made it.
            named: The same under names of their own: ``g.build(y=y)`` and ``run(...)["y"]``.

        Raises:
            GraphError: no outputs, a foreign one, one name for two or two names for one, another
                name for an input, weight or state, or what ``verify_graph`` refuses.

        Examples:
            >>> graph = g.build(y=g.silu(x), z=g.tanh(x))
            >>> len(graph.outputs)
            2
        """
        if not outputs and not named:
            raise GraphError("a graph needs at least one output", where=self.name)
        wanted = [self._own(t) for t in (*outputs, *named.values())]
        ids = tuple(dict.fromkeys(t.id for t in wanted))
        labels = self._labels(ids, named)
        tensors = tuple([_without_builder(t, labels.get(t.id, t.name)) for t in self._tensors])
        graph = Graph(self.name, tensors, tuple(self._nodes), ids, dict(self._constants))
        verify_graph(graph)
        return graph

    # --- views: no node, no bytes moved ----------------------------------------------------

    def view(
        self, x: Tensor, shape: Sequence[int], strides: Sequence[int] | None = None, offset: int = 0
    ) -> Tensor:
        """Return a window on ``x``: ``offset`` and ``strides`` in bytes, row-major by default.

        Args:
            x: A tensor, or a view.
            shape: Extents of the window.
            strides: Bytes from one index of each axis to the next.
            offset: Bytes from the first element of ``x`` to that of the window.

        Raises:
            GraphError: the window leaves the byte range of ``x``'s storage, or offset and
                strides are not multiples of the element (of the block for quantised types).

        Examples:
            >>> g.view(x, (4, 8), (256, 4), offset=32).shape  # columns 8 to 15
            (4, 8)
        """
        self._own(x)
        size = _extents(x.name, shape)
        steps = contiguous_strides(x.dtype, size) if strides is None else _extents(x.name, strides)
        (begin,) = _extents(x.name, (offset,))
        start, nbytes = x.offset + begin, span_nbytes(x.dtype, size, steps)
        number = len(self._tensors)
        window = Tensor(
            number, x.name, x.dtype, size, steps, x.storage, start, nbytes, x.role, self
        )
        verify_window(window, self._tensors[x.storage])
        self._tensors.append(window)
        return window

    def rows(self, x: Tensor, start: int, stop: int) -> Tensor:
        """Return the view ``x[start:stop]`` of the first axis.

        Args:
            x: A tensor, or a view.
            start: First row.
            stop: One past the last row.

        Raises:
            GraphError: the rows are not all there.

        Examples:
            >>> g.rows(x, 1, 3).shape
            (2, 64)
        """
        start, stop = _extents(x.name, (start, stop))
        if not x.shape or not 0 <= start <= stop <= x.shape[0]:
            raise GraphError(f"rows {start}:{stop} of {list(x.shape)}", where=x.name)
        return self.view(x, (stop - start, *x.shape[1:]), x.strides, start * x.strides[0])

    def reshape(self, x: Tensor, *shape: int) -> Tensor:
        """Return a view of contiguous ``x`` with another shape; one extent may be -1.

        Args:
            x: Contiguous.
            shape: Extents of as many elements.

        Raises:
            GraphError: sizes differ, or ``x`` is strided (call ``cont`` first).

        Examples:
            >>> g.reshape(x, 4, 8, -1).shape
            (4, 8, 8)
        """
        if not x.is_contiguous:
            raise GraphError("reshape of a strided tensor", where=x.name, hint="call cont() first")
        size = list(shape)
        if size.count(-1) == 1:
            known = -prod(size)
            size[size.index(-1)] = x.size // known if known else 0
        if prod(size) != x.size:
            raise GraphError(f"{list(x.shape)} has another size than {list(shape)}", where=x.name)
        return self.view(x, size)

    def permute(self, x: Tensor, *axes: int) -> Tensor:
        """Return a view with the axes in another order, as ``numpy.transpose`` does.

        Args:
            x: A tensor, or a view.
            axes: For each axis of the result, which one of ``x`` it is.

        Raises:
            GraphError: not an order of all axes.

        Examples:
            >>> g.permute(g.reshape(x, 4, 8, 8), 1, 0, 2).shape
            (8, 4, 8)
        """
        if sorted(axes) != list(range(len(x.shape))):
            raise GraphError(f"{axes} is not a permutation of {len(x.shape)} axes", where=x.name)
        if x.dtype.is_quantized and axes[-1] != len(axes) - 1:
            raise GraphError("blocks lie along the last axis, which must stay last", where=x.name)
        return self.view(x, [x.shape[a] for a in axes], [x.strides[a] for a in axes])

    def transpose(self, x: Tensor) -> Tensor:
        """Return a view with the last two axes exchanged.

        Args:
            x: Of two axes or more.

        Raises:
            GraphError: ``x`` has one axis.

        Examples:
            >>> g.transpose(x).shape
            (64, 4)
        """
        n = len(x.shape)
        return self.permute(x, *range(n - 2), n - 1, n - 2)

    # --- ops ------------------------------------------------------------------------------

    def cont(self, x: Tensor, dtype: DType | str | None = None, *, name: str = "") -> Tensor:
        """Return a fresh contiguous copy, converted if a type is given.

        Args:
            x: Strided or not.
            dtype: Of the copy; that of ``x`` by default.
            name: Label of the node.

        Examples:
            >>> g.cont(g.transpose(x)).is_contiguous
            True
        """
        return self.op("cont", x, name=name, dtype=_dtype(dtype).name if dtype is not None else "")

    def op(
        self,
        op_name: str,
        /,
        *operands: Operand,
        name: str = "",
        inplace: bool = False,
        **params: Param,
    ) -> Tensor:
        """Add a node by the name of its op; the methods above are shorthands.

        Args:
            op_name: Of a built-in op, one of the library (``nd.*``) or a user-defined one.
            operands: Tensors, or arrays as constants.
            params: Parameters that are not at their defaults.
            inplace: The result takes the place of the first operand, which is lost.
            name: Label of the node.

        Raises:
            GraphError: unknown op or parameter, operands that do not fit, an operand of another
                builder, a write into a weight.

        Examples:
            >>> g.op("nd.reduce_max", x, axes=(0,), keepdims=False).shape
            (64,)
        """
        op = op_by_name(op_name)
        given = canonical_params(op, {"inplace": inplace, **params})
        inputs = self._operands(op, given, operands)
        dtype, shape = infer(op, inputs, op.full(given))
        check_axes(op, inputs, shape)
        label = ".".join((*self._scope, name)) if name else ".".join(self._scope)
        through = written_operand(op, given)
        if through is None:
            result = self._make_root(label, dtype, shape, Role.TEMP)
        else:
            result = replace(inputs[through], id=len(self._tensors))
        if result.role is Role.WEIGHT:
            raise GraphError(f"would write the weight {result.name!r}", where=op_name)
        modes = access_modes(op, inputs, result, given)
        verify_overlap(op_name, inputs, result, modes)
        ids = tuple(t.id for t in inputs)
        self._tensors.append(result)
        self._nodes.append(Node(len(self._nodes), op_name, ids, result.id, given, label, modes))
        return result

    def op_with_number(
        self,
        op_name: str,
        scaled: Callable[[float], tuple[float, float]],
        a: Any,
        b: Any,
        **more: Any,
    ) -> Tensor:
        """Add a node of an op whose second operand may be a number; the method ``add`` calls this.

        Args:
            op_name: As in ``op``.
            scaled: Returns factor and summand of ``scale``, which takes the place of the op.
            a: First operand.
            b: Second operand, or a number.
            more: ``inplace`` and ``name``.

        Raises:
            GraphError: neither a tensor nor a number, a division by 0, or what ``op`` raises.

        Examples:
            >>> g.op_with_number("add", lambda n: (1.0, n), x, 2.0).shape
            (4, 64)
        """
        if _is_operand(b):
            return self.op(op_name, a, b, **more)
        try:
            factor, summand = scaled(_number(b))
        except ZeroDivisionError:
            raise GraphError("division by 0", where=more.get("name") or op_name) from None
        return self.scale(a, factor, summand, **more)

    # --- helpers ---------------------------------------------------------------------------

    def _labels(self, outputs: Iterable[int], named: Mapping[str, Tensor]) -> dict[int, str]:
        """Return the names that outputs get, by tensor id."""
        labels: dict[int, str] = {}
        for name, t in named.items():
            if labels.setdefault(t.id, name) != name:
                raise GraphError(
                    f"one tensor is the outputs {labels[t.id]!r} and {name!r}",
                    where=self.name,
                    hint="copy it with cont()",
                )
            if name != t.name and t.role is not Role.TEMP and not t.is_view:
                raise GraphError(
                    f"the {t.role.value} {t.name!r} cannot be called {name!r}",
                    where=self.name,
                    hint="copy it with cont(), or return it under its own name",
                )
        for tid in outputs:
            if tid not in labels and self._tensors[tid].name in named:
                raise GraphError(
                    f"two outputs are called {self._tensors[tid].name!r}", where=self.name
                )
        return labels

    def _operands(
        self, op: OpDef, params: Mapping[str, Param], operands: Sequence[Operand]
    ) -> list[Tensor]:
        """Return the operands of an op as tensors of this builder."""
        read = [read_array(t) if is_array(t) else self._own(t) for t in operands]
        check_arity(op, params, len(read))
        tensors = [t for t in read if isinstance(t, Tensor)]
        if len(tensors) == len(read):
            return tensors
        fit = fitted(op, op.full(params), read)
        return [self._held(t) if isinstance(t, Constant) else t for t in fit]

    def _held(self, constant: Constant) -> Tensor:
        """Return the weight of a constant, one for equal ones."""
        name = constant.name
        if name not in self._constant_ids:
            made = replace(constant.as_tensor(len(self._tensors)), builder=self)
            self._constant_ids[name] = made.id
            self._constants[name] = constant.data
            self._tensors.append(made)
        return self._tensors[self._constant_ids[name]]

    def _own(self, t: Any) -> Tensor:
        if not isinstance(t, Tensor):
            raise GraphError(
                f"{t!r} is not a tensor",
                where=self.name,
                hint="operands may be arrays, and the second of add, sub, mul and div a number",
            )
        if t.id >= len(self._tensors) or self._tensors[t.id] is not t:
            raise GraphError(f"{t.name!r} belongs to another builder", where=self.name)
        return t

    def _make_root(self, name: str, dtype: DType, shape: Sequence[int], role: Role) -> Tensor:
        size = _extents(name, shape)
        strides = contiguous_strides(dtype, size)
        nbytes = span_nbytes(dtype, size, strides)
        number = len(self._tensors)
        return Tensor(number, name, dtype, size, strides, number, 0, nbytes, role, self)

    def _root(self, name: str, dtype: DType | str, shape: Sequence[int], role: Role) -> Tensor:
        t = self._make_root(name, _dtype(dtype), shape, role)
        self._tensors.append(t)
        return t


def _without_builder(t: Tensor, name: str) -> Tensor:
    """Return what ``replace`` would, in half of the time: graphs have thousands of tensors."""
    return Tensor(t.id, name, t.dtype, t.shape, t.strides, t.storage, t.offset, t.nbytes, t.role)


def _dtype(dtype: DType | str) -> DType:
    if isinstance(dtype, DType):
        return dtype
    if isinstance(dtype, str):
        return dtype_by_name(dtype)
    raise GraphError(f"{dtype!r} is not an element type", hint="write a name, as in 'f32'")


def _extents(name: str, shape: Sequence[int]) -> tuple[int, ...]:
    try:
        return tuple(index(n) for n in shape)
    except TypeError as error:
        raise GraphError(
            f"{shape!r} are not whole numbers", where=name, hint="write a tuple, as in (4, 64)"
        ) from error


def _is_operand(value: Any) -> TypeGuard[Operand]:
    """Whether a value is an operand, not a parameter: a tensor, or an array that has axes."""
    return isinstance(value, Tensor) or (is_array(value) and getattr(value, "shape", None) != ())


def _number(value: Any) -> float:
    try:
        if isinstance(value, str | bytes):
            raise TypeError("a text")
        return float(value)
    except (TypeError, ValueError) as error:
        raise GraphError(f"{value!r} is neither a tensor nor a number") from error
    except OverflowError as error:
        raise GraphError("a number is too large", why="operands are floats") from error


__all__ = ["F32", "I32", "GraphBuilder"]
