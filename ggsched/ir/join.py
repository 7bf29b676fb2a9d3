"""Join: several graphs that run one after another as one graph.

Weights and states of one name are one tensor, so what a part leaves in a state the next part finds
there. Everything else is each part's own; inputs are called ``name@k`` in part k. The meaning is
that of running the parts in order, and since it is one graph, whatever the data flow leaves
independent (the second half of one part and the first half of the next) may run at the same time.
That is all that pipelining over micro-batches needs.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from ggsched.errors import GraphError
from ggsched.ir.graph import Graph, Node, verify_graph
from ggsched.ir.tensor import Role, Tensor

_SHARED = (Role.WEIGHT, Role.STATE)


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
    for g in parts:
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
    verify_graph(graph)
    return Joined(graph, tuple(firsts), outputs, tuple(part_of))


class _Writer:
    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.nodes: list[Node] = []
        self.shared: dict[str, int] = {}

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

    def add(self, g: Graph, part: int, outputs: Collection[int]) -> dict[int, int]:
        """Add the nodes of a part that somebody needs; return the new ids of its tensors."""
        nodes = _needed(g, outputs)
        used = {t for n in nodes for t in n.tensors} | set(outputs)
        used |= {g.tensors[t].storage for t in used}
        new: dict[int, int] = {}
        for t in g.tensors:
            if t.id not in used:
                continue
            if t.role in _SHARED and not t.is_view:
                new[t.id] = self.shared[t.name]
                continue
            new[t.id] = number = len(self.tensors)
            name = f"{t.name}@{part}" if t.role is Role.INPUT and not t.is_view else t.name
            storage = new[t.storage] if t.is_view else number
            self.tensors.append(replace(t, id=number, storage=storage, name=name))
        for n in nodes:
            self.nodes.append(
                replace(
                    n,
                    id=len(self.nodes),
                    inputs=tuple(new[t] for t in n.inputs),
                    output=new[n.output],
                    name=f"{n.name}@{part}" if n.name else "",
                )
            )
        return new


def _needed(g: Graph, outputs: Collection[int]) -> list[Node]:
    """Return the nodes whose results reach an output or a state, in order."""
    storages = {g.tensors[t].storage for t in outputs}
    nodes: list[Node] = []
    for n in reversed(g.nodes):
        result = g.tensors[n.output]
        if result.role is Role.STATE or result.storage in storages:
            nodes.append(n)
            storages.update(g.tensors[t].storage for t in n.tensors)
    nodes.reverse()
    return nodes
