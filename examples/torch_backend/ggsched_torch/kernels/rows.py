"""Rows chosen by ids that are known at run time only."""

from collections.abc import Callable, Mapping
from itertools import product
from typing import Final

from torch import Tensor

from ggsched.errors import UsageError
from ggsched_torch.operands import Node


def checked(ids: Tensor, count: int) -> Tensor:
    """Return ids as indices; PyTorch would take negative ones from the end.

    Raises:
        UsageError: an id is outside ``[0, count)``; the stream turns it into its fault.
    """
    bad = ids[(ids < 0) | (ids >= count)]
    if bad.numel():
        raise UsageError(f"row {int(bad[0])} was requested", why=f"there are {count} rows")
    return ids.long()


def _get_rows(node: Node) -> None:
    table, ids = node.inputs
    for batch in product(*map(range, table.shape[:-2])):
        picked = table[batch][checked(ids[batch] if batch else ids, table.shape[-2])]
        plain = picked if node.bound.inputs[0].dtype.name == "i32" else node.floats(0, picked)
        node.out[batch].copy_(plain)


def _set_rows(node: Node) -> None:
    _, source, ids = node.inputs
    node.out.index_copy_(0, checked(ids, node.out.shape[0]), source.to(node.out.dtype))


def _add_id(node: Node) -> None:
    x, bias, ids = node.inputs
    node.out.copy_(x + bias[checked(ids, bias.shape[0])])


def _order(node: Node, *, descending: bool) -> Tensor:
    return node.inputs[0].sort(dim=-1, descending=descending, stable=True).indices


def _argsort(node: Node) -> None:
    node.out.copy_(_order(node, descending=bool(node.param("descending"))))


def _top_k(node: Node) -> None:
    node.out.copy_(_order(node, descending=True)[..., : int(node.number("k"))])


KERNELS: Final[Mapping[str, Callable[[Node], object]]] = {
    "get_rows": _get_rows,
    "set_rows": _set_rows,
    "add_id": _add_id,
    "argsort": _argsort,
    "top_k": _top_k,
}
