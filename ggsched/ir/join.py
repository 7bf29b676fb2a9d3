"""Join: several graphs that run one after another as one graph.

Weights and states of one name are one tensor, so what a part leaves in a state the next part finds
there. Everything else is each part's own; inputs are called ``name@k`` in part k. The meaning is
that of running the parts in order, and since it is one graph, whatever the data flow leaves
independent (the second half of one part and the first half of the next) may run at the same time.
That is all that pipelining over micro-batches needs.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from ggsched.errors import GraphError
from ggsched.ir.graph import Graph, Node, verify_graph
from ggsched.ir.tensor import Role, Tensor

_SHARED: Final = (Role.WEIGHT, Role.STATE)


@dataclass(frozen=True)
class Joined:
    """Several graphs as one.

    Attributes:
        graph: The one graph. Weights and states come first, then the tensors of each part.
        firsts: Id of the first tensor of each part. Parts of one structure have tensors of one
            meaning at one distance from it.
        outputs: The joined graph's tensor for each output that was kept, by (part, tensor id in
            that part's graph). One that is a state shows what the last part left there.
        part_of: The part of each node.
    """

    graph: Graph
    firsts: tuple[int, ...]
    outputs: dict[tuple[int, int], int]
    part_of: tuple[int, ...]

    def input_name(self, part: int, name: str) -> str:
        """Return what an input of a part is called."""
        return f"{name}@{part}"


def join_graphs(
    parts: Sequence[Graph], *, keep: Sequence[Collection[int]] | None = None, name: str = ""
) -> Joined:
    """Return one graph that does what the parts do one after another.

    Args:
        parts: Graphs over the same weights and states.
        keep: For each part the outputs that are wanted, all of them if not given. Nodes that are
            needed for neither an output nor a state are left out.
        name: Label of the graph.

    Raises:
        GraphError: no parts, a weight or state whose shape or type differs between parts, or
            nothing left to compute.
    """
    if not parts:
        raise GraphError("nothing to join")
    wanted = [tuple(g.outputs) for g in parts] if keep is None else [tuple(k) for k in keep]
    writer = _Writer()
    for g in dict(zip(map(id, parts), parts, strict=True)).values():
        verify_graph(g)
        writer.share(g)
    firsts: list[int] = []
    part_of: list[int] = []
    outputs: dict[tuple[int, int], int] = {}
    for k, (g, outs) in enumerate(zip(parts, wanted, strict=True)):
        firsts.append(len(writer.tensors))
        new = writer.add(g, k, outs)
        part_of += [k] * (len(writer.nodes) - len(part_of))
        outputs.update({(k, tid): new[tid] for tid in outs})
    label = name or f"{len(parts)} x {parts[0].name}"
    ids = tuple(dict.fromkeys(outputs.values()))
    constants = {name: data for g in parts for name, data in g.constants.items()}
    graph = Graph(label, tuple(writer.tensors), tuple(writer.nodes), ids, constants)
    _require_names(graph)
    return Joined(graph, tuple(firsts), outputs, tuple(part_of))


def _require_names(graph: Graph) -> None:
    """Check what may be wrong of parts that are sound: two tensors of one name.

    Each tensor and node is what it is in its part, so looking at all of them again would take
    longer than to join them.
    """
    names = [t.name for t in graph.tensors if t.role is not Role.TEMP and not t.is_view]
    if len(set(names)) != len(names):
        verify_graph(graph)  # says which


class _Writer:
    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.nodes: list[Node] = []
        self.shared: dict[str, int] = {}
        self._needed: dict[tuple[int, tuple[int, ...]], _Needed] = {}

    def share(self, g: Graph) -> None:
        """Add the weights and states that are not there yet."""
        for t in g.tensors:
            if t.role not in _SHARED or t.is_view:
                continue
            if t.name not in self.shared:
                self.shared[t.name] = len(self.tensors)
                self.tensors.append(replace(t, id=len(self.tensors), storage=len(self.tensors)))
            known = self.tensors[self.shared[t.name]]
            if (known.dtype, known.shape, known.role) != (t.dtype, t.shape, t.role):
                what = f"{known.role.value} {known.dtype}{list(known.shape)} and "
                what += f"{t.role.value} {t.dtype}{list(t.shape)}"
                raise GraphError(what, where=t.name, why="the parts share it by name")

    def add(self, g: Graph, part: int, outputs: tuple[int, ...]) -> dict[int, int]:
        """Add the nodes of a part that somebody needs; return the new ids of its tensors."""
        key = (id(g), outputs)
        if key not in self._needed:
            self._needed[key] = _needed(g, outputs)
        needed = self._needed[key]
        number = len(self.tensors)
        new = {t.id: self.shared[t.name] for t in needed.shared}
        new.update({t.id: number + i for i, t in enumerate(needed.own)})
        suffix = f"@{part}"
        self.tensors += [
            # By position: with names, or by ``replace``, this would take most of the time.
            Tensor(
                new[t.id],
                t.name + suffix if t.role is Role.INPUT and t.storage == t.id else t.name,
                t.dtype, t.shape, t.strides, new[t.storage], t.offset, t.nbytes, t.role,
            )
            for t in needed.own
        ]  # fmt: skip
        self.nodes += [
            Node(
                i, n.op, tuple([new[t] for t in n.inputs]), new[n.output], n.params,
                n.name and n.name + suffix, n.modes,
            )
            for i, n in enumerate(needed.nodes, len(self.nodes))
        ]  # fmt: skip
        return new


class _Needed(NamedTuple):
    """What of a part reaches an output or a state.

    Attributes:
        nodes: In order.
        shared: Weights and states that they use.
        own: The other tensors that they use, in order of id.
    """

    nodes: list[Node]
    shared: list[Tensor]
    own: list[Tensor]


def _needed(g: Graph, outputs: Collection[int]) -> _Needed:
    storages = {g.tensors[t].storage for t in outputs}
    nodes: list[Node] = []
    for n in reversed(g.nodes):
        result = g.tensors[n.output]
        if result.role is Role.STATE or result.storage in storages:
            nodes.append(n)
            storages.update([g.tensors[t].storage for t in n.tensors])
    nodes.reverse()
    used = {t for n in nodes for t in n.tensors} | set(outputs)
    used |= {g.tensors[t].storage for t in used}
    tensors = [t for t in g.tensors if t.id in used]
    shared = [t for t in tensors if t.role in _SHARED and not t.is_view]
    own = [t for t in tensors if t.role not in _SHARED or t.is_view]
    return _Needed(nodes, shared, own)
