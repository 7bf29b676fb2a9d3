"""Sizes of nodes for the cost model: operations and bytes."""

from ggsched.ir.graph import Graph, Node


def node_size(graph: Graph, node: Node) -> tuple[float, float]:
    """Return (operations, bytes moved) of a node, roughly.

    A gather reads the rows that it takes and a product with chosen experts the experts it can take,
    so neither counts its whole first operand.
    """
    tensors = graph.tensors
    result = tensors[node.output]
    operands = [tensors[t] for t in node.inputs]
    nbytes = float(result.nbytes + sum(t.nbytes for t in operands))
    match node.op:
        case "mul_mat":
            return 2.0 * result.size * operands[0].shape[-1], nbytes
        case "mul_mat_id":
            w, _, ids = operands
            taken = min(w.shape[0], max(1, ids.size))
            nbytes -= w.nbytes * (1 - taken / max(1, w.shape[0]))
            return 2.0 * result.size * w.shape[-1], nbytes
        case "get_rows" | "set_rows":
            return 0.0, 2.0 * (result.nbytes if node.op == "get_rows" else operands[1].nbytes)
        case "argsort" | "top_k":
            return 8.0 * operands[0].size, nbytes
        case _:
            return 2.0 * max(result.size, operands[0].size), nbytes
