"""Constants that take long to compute are left to the graph."""

import numpy as np
import pytest

import ggsched
from ggsched_import.common import emit
from tests.importers.onnx_files import model, node, tensor


@pytest.mark.parametrize("limit", [1 << 20, 100])
def test_work_of_folding_is_limited(limit, monkeypatch):
    """A chain of products of small matrices took hours: only bytes were counted."""
    monkeypatch.setattr(emit, "FOLD_FLOPS", limit)
    weights = {"a": np.ones((8, 8), np.float32), "b": np.ones((8, 8), np.float32)}
    nodes = [node("MatMul", "a b", "c"), node("Add", "x c", "y")]
    made = model(nodes, [tensor("x", [8, 8])], [tensor("y", [8, 8])], weights)
    bound = ggsched.from_onnx(made).bind()
    assert len(bound.graph.nodes) == (2 if limit == 100 else 1)
