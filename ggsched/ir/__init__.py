"""What is to be computed: tensors, ops and graphs. Knows nothing of devices."""

from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import DType
from ggsched.ir.graph import Graph, Node, verify_graph
from ggsched.ir.tensor import Role, Tensor
from ggsched.ir.text import parse_graph, print_graph

__all__ = [
    "DType",
    "Graph",
    "GraphBuilder",
    "Node",
    "Role",
    "Tensor",
    "parse_graph",
    "print_graph",
    "verify_graph",
]
