"""Small ONNX models, made with the package onnx."""

from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

F = TensorProto.FLOAT
I64 = TensorProto.INT64
BOOL = TensorProto.BOOL


def tensor(name: str, shape: Any, kind: int = F) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def node(op: str, inputs: str, outputs: str, **attrs: Any) -> Any:
    names = [("" if n == "_" else n) for n in inputs.split()]
    return helper.make_node(op, names, outputs.split(), **attrs)


def model(
    nodes: list[Any],
    inputs: list[Any],
    outputs: list[Any],
    weights: dict[str, np.ndarray] | None = None,
    *,
    opset: int = 18,
    functions: Any = (),
    domains: Any = (),
) -> Any:
    made = [numpy_helper.from_array(a, n) for n, a in (weights or {}).items()]
    graph = helper.make_graph(nodes, "test", inputs, outputs, made)
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(graph, opset_imports=opsets, functions=list(functions))
