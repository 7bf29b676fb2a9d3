"""Matrix products, with weights of any float type, also chosen by ids."""

from collections.abc import Callable, Mapping
from typing import Final

from ggsched_torch.kernels.rows import checked
from ggsched_torch.operands import Node


def _mul_mat(node: Node) -> None:
    w, x = node.floats(0), node.inputs[1]
    w = w.reshape((1,) * (x.ndim - w.ndim) + w.shape)
    for axis in range(x.ndim - 2):
        # Batch i of x meets batch i // (Bx / Bw) of w: neighbours share.
        w = w.repeat_interleave(x.shape[axis] // w.shape[axis], dim=axis)
    node.out.copy_(x @ w.transpose(-1, -2))


def _mul_mat_id(node: Node) -> None:
    """Gather the rows of each expert that is used, so that each is decoded once."""
    w, x, ids = node.inputs
    checked(ids, w.shape[0])
    for expert in ids.unique().tolist():
        tokens, slots = (ids == expert).nonzero(as_tuple=True)
        rows = x[tokens, slots if x.shape[1] > 1 else 0]
        node.out[tokens, slots] = rows @ node.floats(0, w[expert]).T


KERNELS: Final[Mapping[str, Callable[[Node], object]]] = {
    "mul_mat": _mul_mat,
    "mul_mat_id": _mul_mat_id,
}
