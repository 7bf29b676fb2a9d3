"""Graphs of f32 models in float64 from end to end: what they mean before anything is rounded.

``run_oracle`` rounds each result to its type, as a device does. Here every storage of f32 is one of
float64, at twice the distances.
"""

import numpy as np

from ggsched.backend.elements import computed
from ggsched.ir.dtype import F32, MXFP4, Q8_0
from ggsched.ir.ops import op_by_name
from ggsched.ir.tensor import Role
from tests.models.helpers import Runner

BLOCK = 32
PRODUCTS = ("mul_mat", "mul_mat_id")
ROUNDING = (Q8_0, MXFP4)


class WideRunner(Runner):
    """A runner whose weights, states and results are float64.

    Args:
        model: Loaded with ``weights="expand"`` if it is packed.
        rounds: Whether activations that meet a weight of q8_0 or mxfp4 are rounded to 8 bits in
            blocks of 32, as llama.cpp does.
    """

    def __init__(self, model, *, rounds=False, **options):
        super().__init__(model, **options)
        self.rounds = rounds

    def run(self, graph, values):
        """Return the logits."""
        storages = {t.id: self._storage(t, values) for t in graph.tensors if not t.is_view}

        def window(tid):
            t = graph.tensors[tid]
            wide = 2 if t.dtype is F32 else 1
            storage, strides = storages[t.storage], tuple(wide * s for s in t.strides)
            return np.ndarray(t.shape, storage.dtype, storage.data, wide * t.offset, strides)

        for node in graph.nodes:
            result, op = window(node.output), op_by_name(node.op)
            read = [window(tid).copy() for tid in node.inputs]
            if self.rounds and node.op in PRODUCTS and self._is_packed(graph, node.inputs[0]):
                read[1] = rounded_to_8_bits(read[1])
            if node.op == "set_rows":
                result[read[2]] = read[1]
            else:
                operands = read[:1] if node.op == "cpy" else read
                value = computed(op, operands, op.full(node.params))
                result[...] = value.reshape(result.shape)
        return window(graph.outputs[0]).copy()

    def _is_packed(self, graph, tid):
        root = graph.tensors[graph.tensors[tid].storage]
        return root.role is Role.WEIGHT and self.model.file.tensors[root.name].dtype in ROUNDING

    def _storage(self, t, values):
        if t.role is Role.STATE:
            return self.states.setdefault(t.name, np.zeros(t.nbytes // 4))
        kind = np.float64 if t.dtype is F32 else np.int32
        if t.role is Role.TEMP:
            return np.zeros(t.nbytes // 4, kind)
        return np.ascontiguousarray(values[t.name], kind).ravel()


def rounded_to_8_bits(x):
    """Return x as q8_0 holds it, a scale of f16 for each block."""
    blocks = x.reshape(*x.shape[:-1], -1, BLOCK)
    scale = np.abs(blocks).max(-1, keepdims=True) / 127
    codes = np.rint(blocks / np.where(scale > 0, scale, 1))
    return (codes * scale.astype(np.float16)).reshape(x.shape)
