"""What is to be computed: tensors, ops and graphs. Knows nothing of devices."""

from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import DType
from ggsched.ir.graph import Graph, Node
from ggsched.ir.tensor import Role, Tensor

__all__ = ["DType", "Graph", "GraphBuilder", "Node", "Role", "Tensor"]
