"""Sizes of nodes for the cost model: operations and bytes."""

from collections.abc import Iterable, Sequence

from ggsched.ir.graph import Graph, Node
from ggsched.ir.ops import op_by_name
from ggsched.topology.caps import op_key
from ggsched.topology.cost import ELEMENTS, Rates, node_seconds

Work = tuple[str, float, float]
"""What a node does: (name of its kernel, operations, bytes moved)."""


def node_works(graph: Graph, nodes: Iterable[Node]) -> list[Work]:
    """Return what each of some nodes does."""
    return [(kernel_name(graph, node), *node_size(graph, node)) for node in nodes]


def work_costs(rates: Rates, works: Sequence[Work], streams: float = 1) -> list[float]:
    """Return what ``node_cost`` does for many nodes. Those of one size are looked at once."""
    costs = {
        work: node_seconds(rates.of_kernel(work[0]), *work[1:], streams) for work in set(works)
    }
    return [costs[work] for work in works]


def node_costs(rates: Iterable[Rates], graph: Graph) -> list[list[float]]:
    """Return the predicted seconds of each node, by device and node."""
    works = node_works(graph, graph.nodes)
    return [work_costs(device, works) for device in rates]


def node_cost(rates: Rates, graph: Graph, node: Node, streams: float = 1) -> float:
    """Return the predicted seconds of a node, by the rates measured for its sort if there are any.

    Args:
        rates: Of the device that runs it.
        graph: Of the node.
        streams: Streams of the device that are busy meanwhile.
    """
    return node_seconds(rates.of_kernel(kernel_name(graph, node)), *node_size(graph, node), streams)


def kernel_name(graph: Graph, node: Node) -> str:
    """Return under which name the rate of a node is kept."""
    if node.op in ("mul_mat", "mul_mat_id", "attention"):
        return op_key("mul_mat", graph.tensors[node.inputs[0]].dtype.name)
    return ELEMENTS


def node_size(graph: Graph, node: Node) -> tuple[float, float]:
    """Return (operations, bytes moved) of a node, roughly.

    A gather reads the rows that it takes and a product with chosen experts the experts it can take,
    so neither counts its whole first operand.
    """
    tensors = graph.tensors
    result = tensors[node.output]
    operands = [tensors[t] for t in node.inputs]
    nbytes = float(result.nbytes + sum(t.nbytes for t in operands))
    if node.op == "mul_mat_id":
        w, _, ids = operands
        taken = min(w.shape[0], max(1, ids.size))
        nbytes -= w.nbytes * (1 - taken / max(1, w.shape[0]))
    elif node.op in ("get_rows", "set_rows"):
        nbytes = 2.0 * (result.nbytes if node.op == "get_rows" else operands[1].nbytes)
    op = op_by_name(node.op)
    if op.flops is None:
        return 2.0 * max(result.size, operands[0].size), nbytes
    return float(op.flops(*[t.shape for t in operands], **op.full(node.params))), nbytes


def expected_rows(count: int, draws: int) -> float:
    """Return how many of ``count`` rows are named when each of ``draws`` ids names any of them.

    Ids of one token differ, so slightly more are; and routers have favourites, so fewer.
    """
    return count * (1.0 - (1.0 - 1.0 / count) ** draws) if count else 0.0
