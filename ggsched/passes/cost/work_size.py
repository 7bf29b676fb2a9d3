"""Sizes of nodes for the cost model: operations, bytes and steps, by the records of their ops."""

from collections.abc import Iterable, Sequence

from ggsched.ir.graph import Graph, Node
from ggsched.ir.ops import op_by_name
from ggsched.ops.record import PRODUCTS
from ggsched.topology.caps import op_key
from ggsched.topology.cost import Rates, Work, node_seconds


def node_works(graph: Graph, nodes: Iterable[Node]) -> list[Work]:
    """Return what each of some nodes does."""
    return [node_work(graph, node) for node in nodes]


def work_costs(rates: Rates, works: Sequence[Work], streams: float = 1) -> list[float]:
    """Return what ``node_cost`` does for many nodes. Those of one size are looked at once."""
    costs = {work: node_seconds(rates, work, streams) for work in set(works)}
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
    return node_seconds(rates, node_work(graph, node), streams)


def node_work(graph: Graph, node: Node) -> Work:
    """Return what a node does, roughly.

    A gather reads the rows that it takes and a product with chosen experts the experts it can take,
    so neither counts its whole first operand.
    """
    tensors = graph.tensors
    result = tensors[node.output]
    operands = [tensors[t] for t in node.inputs]
    op = op_by_name(node.op)
    shapes, full = [t.shape for t in operands], op.full(node.params)
    family = op.family if isinstance(op.family, str) else op.family(*shapes, **full)
    if family == PRODUCTS:
        family = op_key(PRODUCTS, operands[0].dtype.name)
    whole = float(result.nbytes + sum(t.nbytes for t in operands))
    flops = 2.0 * max(result.size, operands[0].size)
    return Work(
        node.op,
        family,
        flops if op.flops is None else float(op.flops(*shapes, **full)),
        whole if op.nbytes is None else op.nbytes(operands, result, **full),
        1.0 if op.sequential is None else op.sequential(*shapes, **full),
    )


def expected_rows(count: int, draws: int) -> float:
    """Return how many of ``count`` rows are named when each of ``draws`` ids names any of them.

    Ids of one token differ, so slightly more are; and routers have favourites, so fewer.
    """
    return count * (1.0 - (1.0 - 1.0 / count) ** draws) if count else 0.0
