"""Products with weights chosen by ids, as in mixtures of experts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ggsched.backend.arrays import Array
from ggsched.ir.dtype import F32
from ggsched_cpu.dequant import Decoder, decoder
from ggsched_cpu.kernels.gemm import multiply
from ggsched_cpu.kernels.matmul import CACHED_NBYTES, SCRATCH_NBYTES
from ggsched_cpu.kernels.rows import checked_ids, unsigned
from ggsched_cpu.lowering_context import Call, CpuLoweringContext, Node
from ggsched_cpu.quant_gemv import VectorProduct, vector_product


@dataclass(frozen=True, slots=True)
class _Packed:
    """Experts in a packed type, decoded into scratch when they are used."""

    decode: Decoder
    by_vector: VectorProduct | None
    room: Array

    def multiply(self, w: Array, x: Array, out: Array) -> None:
        """Compute ``out = x @ w.T`` for vectors x (m, k)."""
        rows = self.room.shape[0]
        for start in range(0, w.shape[0], rows):
            packed = w[start : start + rows]
            if self.by_vector is not None and x.shape[0] == 1:
                self.by_vector(packed, x[0], out[0, start : start + rows])
                continue
            decoded = self.room[: packed.shape[0]]
            self.decode(packed, decoded)
            multiply(decoded, x, out[:, start : start + rows])


def _one_token(experts: Sequence[Array], ids: Array, pairs: Sequence[tuple[Array, Array]]) -> None:
    """One token and plain weights: a product of a matrix and a vector for each id."""
    chosen = checked_ids(ids, len(experts)).tolist()
    for expert, (x, out) in zip(chosen, pairs, strict=True):
        np.dot(experts[expert], x, out)


def _grouped(
    w: Array, x: Array, ids: Array, out: Array, multiply: Callable[[Array, Array, Array], None]
) -> None:
    """Gather the rows of each expert, so that each is one product; used weights are read once."""
    used = ids.shape[1]
    flat_ids = checked_ids(ids, w.shape[0])
    order = np.argsort(flat_ids, kind="stable")
    experts, starts = np.unique(flat_ids[order], return_index=True)
    bounds = [*starts.tolist(), order.size]
    tokens, slots = np.divmod(order, used)
    sources = slots if x.shape[1] > 1 else np.zeros_like(slots)
    for i, expert in enumerate(experts.tolist()):
        span = slice(bounds[i], bounds[i + 1])
        result = np.empty((bounds[i + 1] - bounds[i], out.shape[-1]), np.float32)
        multiply(w[expert], x[tokens[span], sources[span]], result)
        out[tokens[span], slots[span]] = result


def _mul_mat_id(node: Node, site: CpuLoweringContext) -> list[Call]:
    w, x, ids = node.inputs
    ids, out, columns = unsigned(ids), node.out, x.shape[-1]
    if columns == 0:
        return [(out.fill, (0.0,))]
    if node.dtype(0) is not F32:
        limit = CACHED_NBYTES if ids.shape[0] == 1 else SCRATCH_NBYTES
        rows = max(1, min(w.shape[1], limit // (4 * columns)))
        dtype = node.dtype(0)
        packed = _Packed(decoder(dtype), vector_product(dtype), site.scratch((rows, columns)))
        return [(_grouped, (w, x, ids, out, packed.multiply))]
    if ids.shape[0] == 1 and out.flags.carray:  # np.dot takes no other result
        pairs = [(x[0, u if x.shape[1] > 1 else 0], out[0, u]) for u in range(ids.shape[1])]
        return [(_one_token, (list(w), ids, pairs))]
    return [(_grouped, (w, x, ids, out, multiply))]


EMITTERS: Final[Mapping[str, Callable[[Node, CpuLoweringContext], list[Call]]]] = {
    "mul_mat_id": _mul_mat_id
}
