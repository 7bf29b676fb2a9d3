"""Graphs: nodes in program order over tensors.

The meaning of a graph is what its nodes do when they run one after another, writes through
views included. Every reordering that a plan makes must keep that meaning.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final

from ggsched.errors import GraphError
from ggsched.ids import show
from ggsched.ir.ops import (
    Param,
    Params,
    access_modes,
    check_axes,
    infer,
    op_by_name,
    verify_overlap,
    written_operand,
)
from ggsched.ir.params import canonical_params, check_arity
from ggsched.ir.tensor import KNOWN, Role, Tensor, verify_window

if TYPE_CHECKING:
    import networkx as nx


_SOUND: Final[set[tuple[object, ...]]] = set()
"""Calls of ops that were found sound, by all that ``_verify_call`` looks at."""


@dataclass(frozen=True, slots=True)
class Node:
    """One op applied to tensors.

    Attributes:
        id: Position in program order.
        op: Name of the op, see ``ggsched.ir.ops``.
        inputs: Ids of the operand tensors.
        output: Id of the result tensor; a view of an operand's storage if the op writes through.
        params: Every parameter of the op that is not at its default.
        name: A label for people.
        modes: How operands and result are touched, see ``ggsched.ir.ops``.

    Examples:
        >>> from ggsched import GraphBuilder
        >>> g = GraphBuilder()
        >>> graph = g.build(y=g.scale(g.input("x", (4, 64)), 2.0))
        >>> node = graph.nodes[0]
        >>> node.op, node.params
        ('scale', {'scale': 2.0})
    """

    id: int
    op: str
    inputs: tuple[int, ...]
    output: int
    params: Params
    name: str
    modes: str

    def param(self, name: str) -> Param:
        """Return a parameter, or its default.

        Args:
            name: Of a parameter of the op.

        Examples:
            >>> node.param("bias")
            0.0
        """
        if name in self.params:
            return self.params[name]
        return op_by_name(self.op).defaults[name]

    @property
    def tensors(self) -> tuple[int, ...]:
        """Operands and result, in the order of ``modes``."""
        return (*self.inputs, self.output)


@dataclass(frozen=True)
class Graph:
    """An immutable graph. Make one with ``GraphBuilder`` or ``ggsched.ir.text.parse_graph``.

    Attributes:
        tensors: All tensors, indexed by id.
        nodes: All nodes, in program order, indexed by id.
        outputs: Ids of the tensors whose content the user reads after a run.
        constants: Bytes of weights that need no source, by name (``ggsched.ir.constants``). Their
            names hash their content, so they say nothing that names do not; the text form and
            plans leave them out.

    Examples:
        >>> from ggsched import GraphBuilder
        >>> g = GraphBuilder()
        >>> graph = g.build(g.silu(g.input("x", (4, 64))))
        >>> [node.op for node in graph.nodes]
        ['silu']
    """

    name: str
    tensors: tuple[Tensor, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]
    constants: Mapping[str, bytes] = field(default_factory=dict, compare=False, repr=False)
    _by_name: dict[str, Tensor] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        named = {t.name: t for t in self.tensors if not t.is_view and t.role is not Role.TEMP}
        object.__setattr__(self, "_by_name", named)

    def roots(self, role: Role) -> Iterator[Tensor]:
        """Yield the storages of a role, in order of id.

        Args:
            role: Inputs, weights, states or temporaries.

        Examples:
            >>> from ggsched.ir import Role
            >>> [t.name for t in graph.roots(Role.INPUT)]
            ['x']
        """
        return (t for t in self.tensors if t.role is role and not t.is_view)

    def __contains__(self, name: object) -> bool:
        """Whether there is an input, weight or state of that name."""
        return name in self._by_name

    def named(self, name: str) -> Tensor:
        """Return the input, weight or state called ``name``.

        Args:
            name: As given to the builder.

        Raises:
            GraphError: there is none.

        Examples:
            >>> graph.named("x").shape
            (4, 64)
        """
        try:
            return self._by_name[name]
        except KeyError:
            raise GraphError(f"no input, weight or state {name!r}", where=self.name) from None

    def label(self, node: Node) -> str:
        """Return ``n12 mul_mat 'ffn_up'`` for messages.

        Args:
            node: Of this graph.

        Examples:
            >>> graph.label(graph.nodes[0])
            'n0 silu'
        """
        text = f"{show('node', node.id)} {node.op}"
        return f"{text} '{node.name}'" if node.name else text

    @cached_property
    def digest(self) -> str:
        """Hash of all that a plan can depend on: shapes, views, ops, parameters, bound names.

        Labels of nodes and temporaries do not enter, so two graphs that differ only in these
        share a plan.
        """
        h = hashlib.blake2b(digest_size=16)
        for t in self.tensors:
            name = t.name if t.role is not Role.TEMP and not t.is_view else ""
            h.update(
                repr(
                    (t.dtype.name, t.shape, t.strides, t.storage, t.offset, t.role.value, name)
                ).encode()
            )
        for n in self.nodes:
            version = op_by_name(n.op).version
            call = (n.op, n.inputs, n.output, sorted(n.params.items()))
            h.update(repr((*call, version) if version else call).encode())
        h.update(repr(self.outputs).encode())
        return h.hexdigest()

    def to_networkx(self) -> "nx.MultiDiGraph":
        """Return the data flow as a networkx graph.

        Nodes are printed node ids (``n12``) and, for inputs, weights and states, tensor ids
        (``t3``), with attributes ``op``/``role``, ``label``, ``shape`` and ``dtype``. An edge
        means that the target reads or overwrites bytes whose latest writer is the source, and
        carries the tensor id as ``tensor``.

        Examples:
            >>> sorted(graph.to_networkx().nodes)
            ['n0', 't0']
        """
        import networkx as nx

        out = nx.MultiDiGraph(name=self.name)
        last_writer: dict[int, str] = {}
        for t in self.tensors:
            if t.role is not Role.TEMP and not t.is_view:
                key = show("tensor", t.id)
                last_writer[t.id] = key
                out.add_node(
                    key, role=t.role.value, label=t.name, shape=t.shape, dtype=str(t.dtype)
                )
        for n in self.nodes:
            key, result = show("node", n.id), self.tensors[n.output]
            out.add_node(key, op=n.op, label=n.name, shape=result.shape, dtype=str(result.dtype))
            for tid in dict.fromkeys(n.tensors):
                source = last_writer.get(self.tensors[tid].storage)
                if source is not None:
                    out.add_edge(source, key, tensor=tid)
            last_writer[result.storage] = key
        return out


def verify_graph(graph: Graph) -> None:
    """Check that a graph is well formed, whatever code made it.

    Raises:
        GraphError: a dangling id, a view outside its storage, a node whose parameters, result or
            modes do not follow from op and operands, a temporary that is used before the node
            that makes it or made by none, a duplicate name.

    Examples:
        >>> from ggsched import GraphBuilder
        >>> from ggsched.ir import verify_graph
        >>> g = GraphBuilder()
        >>> verify_graph(g.build(g.silu(g.input("x", (4, 64)))))
    """
    names: set[str] = set()
    for i, t in enumerate(graph.tensors):
        _verify_tensor(graph, i, t, names)
    written: set[int] = set()
    results: set[int] = set()
    for i, n in enumerate(graph.nodes):
        _verify_node(graph, i, n, written)
        if n.output in results or n.output in n.inputs:
            raise GraphError("each node needs a result tensor of its own", where=graph.label(n))
        results.add(n.output)
        written.add(graph.tensors[n.output].storage)
    for t in graph.roots(Role.TEMP):
        if t.id not in written:
            raise GraphError(f"no node makes {show('tensor', t.id)}", where=graph.name)
    for tid in graph.outputs:
        if not 0 <= tid < len(graph.tensors):
            raise GraphError(f"output {show('tensor', tid)} does not exist", where=graph.name)


def _verify_tensor(graph: Graph, i: int, t: Tensor, names: set[str]) -> None:
    where = f"{show('tensor', i)} {t.name!r}"
    if t.id != i or not 0 <= t.storage <= i:
        raise GraphError("ids are not dense or the storage is not an earlier tensor", where=where)
    root = graph.tensors[t.storage]
    if root.is_view or root.role is not t.role:
        raise GraphError("the storage of a view must be a root tensor of its role", where=where)
    verify_window(t, root)
    if not t.is_view and t.role is not Role.TEMP:
        if not t.name or t.name in names:
            raise GraphError("inputs, weights and states need names of their own", where=where)
        names.add(t.name)


def _verify_node(graph: Graph, i: int, n: Node, written: set[int]) -> None:
    if n.id != i or any(not 0 <= t < len(graph.tensors) for t in n.tensors):
        raise GraphError("ids are not dense or a tensor does not exist", where=graph.label(n))
    operands = [graph.tensors[t] for t in n.inputs]
    result = graph.tensors[n.output]
    kinds = tuple([(t.dtype, t.shape, t.strides) for t in (*operands, result)])
    params = repr(sorted(n.params.items()))
    call = (n.op, op_by_name(n.op).version, params, kinds, n.modes)
    if call not in _SOUND:
        _verify_call(graph, n, operands, result)
        if len(_SOUND) >= KNOWN:
            _SOUND.clear()
        _SOUND.add(call)
    for t in operands:
        if t.role is Role.TEMP and t.storage not in written:
            raise GraphError(f"uses {t.name!r} before it is written", where=graph.label(n))
    _verify_result(graph, n, operands, result, written)
    verify_overlap(n.op, operands, result, n.modes)


def _verify_call(graph: Graph, n: Node, operands: list[Tensor], result: Tensor) -> None:
    """Check what depends on the op, its parameters, and types, shapes and strides alone."""
    op = op_by_name(n.op)
    plain = canonical_params(op, n.params)
    if repr(sorted(plain.items())) != repr(sorted(n.params.items())):
        raise GraphError(
            f"the canonical parameters are {plain}, not {n.params}", where=graph.label(n)
        )
    check_arity(op, n.params, len(operands))
    params = op.full(n.params)
    dtype, shape = infer(op, operands, params)
    check_axes(op, operands, shape)
    if (result.dtype, result.shape) != (dtype, shape):
        raise GraphError(f"the result must be {dtype}{list(shape)}", where=graph.label(n))
    if n.modes != access_modes(op, operands, result, params):
        raise GraphError(f"access modes {n.modes!r} are not those of the op", where=graph.label(n))


def _verify_result(
    graph: Graph, n: Node, operands: list[Tensor], result: Tensor, written: set[int]
) -> None:
    through = written_operand(op_by_name(n.op), n.params)
    if through is None:
        if result.is_view or result.role is not Role.TEMP or result.id in written:
            raise GraphError("the result must be a temporary of its own", where=graph.label(n))
        return
    target = operands[through]
    if (target.storage, target.offset, target.strides) != (
        result.storage,
        result.offset,
        result.strides,
    ):
        raise GraphError(f"must write through operand {through}", where=graph.label(n))
    if target.role is Role.WEIGHT:
        raise GraphError(f"writes the weight {target.name!r}", where=graph.label(n))
