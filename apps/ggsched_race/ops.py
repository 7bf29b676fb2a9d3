"""What an op of PyTorch's dispatcher touches, by its schema and its name."""

import weakref
from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

from ggsched_race.byte_runs import MAX_RUNS, Runs, chosen_runs, indexed_starts

_TENSORS: Final = {torch.Tensor, torch.nn.Parameter}
Kind = Literal[
    "none", "view", "plain", "copy", "to_copy", "record_stream", "collective", "copied_collective"
]
"""``view`` allocates nothing either."""

_UNTOUCHED: Final = frozenset(
    {
        *("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty"),
        *("new_empty_strided", "resize_", "resize_as_", "set_", "is_pinned", "_pin_memory"),
        *("is_same_size", "sym_size", "sym_stride", "sym_numel", "sym_storage_offset"),
        *("wait_tensor", "barrier", "monitored_barrier_", "_wrap_tensor_autograd"),
    }
)
"""Ops that read and write no elements, apart from views."""
_OVERWRITES: Final = frozenset(
    {
        *("copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_"),
        *("exponential_", "geometric_", "log_normal_", "cauchy_", "_foreach_copy_"),
        "_foreach_zero_",
    }
)
"""Ops in place that read nothing of what they write."""

_WAITS_FIRST: Final = frozenset(
    {
        *("index", "index_put_", "_index_put_impl_", "_unsafe_index", "masked_select", "nonzero"),
        *("bincount", "repeat_interleave"),
    }
)
"""Ops in which the host waits for a number of elements, and then launches what works on them."""

_STATISTICS: Final = frozenset({"running_mean", "running_var"})
_UPDATING: Final = frozenset(
    {
        *("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"),
        *("batch_norm_gather_stats", "batch_norm_gather_stats_with_counts"),
    }
)
"""Ops that write statistics of batches in training, which their schemas do not say."""

_COPIED: Final = frozenset({"all_reduce", "all_reduce_coalesced", "broadcast"})
"""Functional collectives that work in place on a copy, which the calling stream makes."""


class Chosen(NamedTuple):
    """Which rows of a table ids choose.

    Attributes:
        table: Position of the table among the arguments.
        ids: Returns for each dimension that ids choose (dimension, array), by the arguments.
        is_gather: Whether ids choose elements along one dimension, as ``gather`` does.
        tensors: Returns the tensors of ids, by the arguments.
    """

    table: int
    ids: Callable[[Sequence[Any], Callable[[Any], Any]], list[tuple[int, Any]]]
    tensors: Callable[[Sequence[Any]], list[Any]]
    is_gather: bool = False


def _several(args: Sequence[Any], read: Callable[[Any], Any]) -> list[tuple[int, Any]]:
    found, dim = [], 0
    for ids in args[1]:
        if ids is None:
            dim += 1
            continue
        is_mask = ids.dtype in (torch.bool, torch.uint8)
        for part in np.nonzero(read(ids)) if is_mask else (read(ids),):
            found.append((dim, part))
            dim += 1
    return found


def _one(args: Sequence[Any], read: Callable[[Any], Any]) -> list[tuple[int, Any]]:
    return [(args[1] % max(args[0].dim(), 1), read(args[2]))]


def _flat(args: Sequence[Any], read: Callable[[Any], Any]) -> list[tuple[int, Any]]:
    shape, ids = args[0].shape, read(args[1])
    return list(enumerate(np.unravel_index(np.where(ids < 0, ids + prod(shape), ids), shape)))


def _masked(args: Sequence[Any], read: Callable[[Any], Any]) -> list[tuple[int, Any]]:
    mask = np.broadcast_to(read(args[1]), args[0].shape)
    return list(enumerate(np.nonzero(mask))) if mask.ndim else []


_ROWS: Final = Chosen(0, lambda args, read: [(0, read(args[1]))], lambda args: [args[1]])
_FLAT: Final = Chosen(0, _flat, lambda args: [args[1]])
_MASK: Final = Chosen(0, _masked, lambda args: [args[1]])
_SEVERAL: Final = Chosen(0, _several, lambda args: [i for i in args[1] if i is not None])
_ONE: Final = Chosen(0, _one, lambda args: [args[2]])
_CHOSEN: Final = {
    **dict.fromkeys(("index", "_unsafe_index", "index_put_", "_index_put_impl_"), _SEVERAL),
    **dict.fromkeys(("index_select", "index_copy_", "index_add_", "index_fill_"), _ONE),
    "index_reduce_": _ONE,
    **dict.fromkeys(("take", "put_"), _FLAT),
    **dict.fromkeys(
        ("masked_fill_", "masked_scatter_"), Chosen(0, _masked, lambda args: [args[1]])
    ),
    **dict.fromkeys(
        ("gather", "scatter_", "scatter_add_", "scatter_reduce_"), _ONE._replace(is_gather=True)
    ),
    **dict.fromkeys(("embedding", "_embedding_bag", "_embedding_bag_forward_only"), _ROWS),
}


class Table(NamedTuple):
    """The view of which rows are chosen."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    itemsize: int

    def rows(self, chosen: Sequence[tuple[int, Any]], is_gather: bool) -> Runs:
        """Return the bytes of the rows, or of the elements, that ids choose."""
        ids = {d: np.where(i < 0, i + self.sizes[d], i) for d, i in chosen}
        if any(i.size and (i.min() < 0 or i.max() >= self.sizes[d]) for d, i in ids.items()):
            return Runs([])  # the op itself fails
        parts = [(i, self.strides[d]) for d, i in ids.items()]
        if not is_gather:
            others = [d for d in range(len(self.sizes)) if d not in ids]
            sizes = [self.sizes[d] for d in others]
            strides = [self.strides[d] for d in others]
            return chosen_runs(indexed_starts(self.offset, parts), sizes, strides, self.itemsize)
        ((dim, array),) = ids.items()
        if array.size > MAX_RUNS:
            return chosen_runs(np.asarray([self.offset]), self.sizes, self.strides, self.itemsize)
        for d, n in enumerate(array.shape):
            if d != dim:
                shape = [n if d == e else 1 for e in range(array.ndim)]
                parts.append((np.arange(n).reshape(shape), self.strides[d]))
        return chosen_runs(indexed_starts(self.offset, parts), (), (), self.itemsize)


def table_of(tensor: Any) -> Table:
    """Return the view that a tensor is."""
    size = tensor.element_size()
    return Table(tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), size)


class Op(NamedTuple):
    """Facts about an overload.

    Attributes:
        label: For people.
        kind: How it is recorded.
        writes: Whether each argument is written, by position.
        names: The arguments' names, by position.
        overwrites: Whether it reads nothing of what it writes.
        chosen: Which rows ids choose.
        is_aliasing: Whether a result may be an argument.
        waits_first: Whether the host waits inside, if it does, before it launches the work.
        training: Position of the flag without which nothing is written; below zero of none.
        is_native: Whether it is one of PyTorch's own.
        pins: Whether the result is in pinned memory.
    """

    label: str
    kind: Kind
    writes: tuple[bool, ...]
    names: tuple[str, ...]
    overwrites: bool
    chosen: Chosen | None
    is_aliasing: bool = True
    waits_first: bool = False
    training: int = -1
    is_native: bool = True
    pins: bool = False

    def arguments(
        self, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> list[tuple[int, Sequence[Any], bool]]:
        """Return (position, tensors, whether they are written) of all arguments with tensors."""
        found: list[tuple[int, Sequence[Any], bool]] = []
        writes = self.writes
        if 0 <= self.training < len(args) and not args[self.training]:
            writes = (False,) * len(writes)
        for i, value in enumerate(args):
            if isinstance(value, torch.Tensor):
                found.append((i, (value,), writes[i]))
            elif isinstance(value, (list, tuple)) and (tensors := tensors_in(value)):
                found.append((i, tensors, writes[i]))
        for name, value in kwargs.items():
            if isinstance(value, (torch.Tensor, list, tuple)) and name in self.names:
                i = self.names.index(name)
                found.append((i, tensors_in(value), writes[i]))
        return found


def tensors_in(value: Any) -> Sequence[Any]:
    """Return the tensors of an argument or a result, also of lists."""
    if isinstance(value, torch.Tensor):
        return (value,)
    if not isinstance(value, (list, tuple)):
        return ()
    if set(map(type, value)) <= _TENSORS:
        return value
    found: list[Any] = []
    for item in value:
        if isinstance(item, torch.Tensor):
            found.append(item)
        elif isinstance(item, (list, tuple)):
            found += tensors_in(item)
    return found


def dense(tensors: Sequence[Any]) -> Sequence[Any]:
    """Return tensors with what sparse ones consist of in their place."""
    if {t.layout for t in tensors} <= {torch.strided}:
        return tensors
    found: list[Any] = []
    with _disable_current_modes():
        for t in tensors:
            if t.layout == torch.strided:
                found.append(t)
            elif t.layout == torch.sparse_coo:
                found += [t._indices(), t._values()]
            else:
                is_csr = t.layout in (torch.sparse_csr, torch.sparse_bsr)
                names = ("crow", "col") if is_csr else ("ccol", "row")
                found += [*(getattr(t, f"{name}_indices")() for name in names), t.values()]
    return found


@cache
def op_of(func: Any) -> Op:
    """Return the facts about an overload of an op."""
    schema = func._schema
    name, label = schema.name.partition("::")[2], str(func).removesuffix(".default")
    aliases = [r.alias_info for r in schema.returns if r.alias_info is not None]
    is_view = bool(aliases) and not any(a.is_write for a in aliases) and not schema.is_mutable
    kind: Kind = "plain"
    if name in _UNTOUCHED or torch.Tag.inplace_view in func.tags:
        kind = "none"
    elif is_view:
        kind = "view"
    elif name in ("copy_", "_foreach_copy_"):
        kind = "copy"
    elif name in ("_to_copy", "record_stream"):
        kind = "to_copy" if name == "_to_copy" else "record_stream"
    if schema.name.startswith("c10d::") and kind not in ("none", "view"):
        return _collective(label, name, tuple(a.name for a in schema.arguments))
    if schema.name.startswith("_c10d_functional::") and kind not in ("none", "view"):
        kind = "copied_collective" if name in _COPIED else "collective"
    names = tuple(a.name for a in schema.arguments)
    flags = [a.alias_info is not None and a.alias_info.is_write for a in schema.arguments]
    is_out, is_updating = any(a.is_out for a in schema.arguments), name in _UPDATING
    return Op(
        label,
        kind,
        tuple(f or (is_updating and n in _STATISTICS) for f, n in zip(flags, names, strict=True)),
        names,
        is_out or name in _OVERWRITES,
        _CHOSEN.get(name) if schema.name.startswith("aten::") else None,
        bool(aliases) or schema.is_mutable or not schema.name.startswith("aten::"),
        name in _WAITS_FIRST,
        names.index("training") if is_updating and not is_out and "training" in names else -1,
        label.startswith("aten."),
        label == "aten._pin_memory",
    )


def _collective(label: str, name: str, names: tuple[str, ...]) -> Op:
    """Return the facts about an op of ``c10d``, whose schema does not say what is written."""
    receives, sends = name.startswith("recv"), name == "send"
    writes = tuple(n.startswith("output") or (n == "tensors" and not sends) for n in names)
    overwrites = receives or any(n.startswith("output") for n in names)
    return Op(label, "collective", writes, names, overwrites, None, is_native=False)


class StoredView:
    """A view of memory that it does not keep alive."""

    def __init__(self, tensor: Any) -> None:
        self._storage = weakref.ref(tensor.untyped_storage())
        self._table, self.dtype = table_of(tensor), tensor.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of elements of each dimension."""
        return self._table.sizes

    def dim(self) -> int:
        """Return the number of dimensions."""
        return len(self.shape)

    def tensor(self) -> Any:
        """Return the view.

        Raises:
            LookupError: the memory has ended.
        """
        storage = self._storage()
        if storage is None:
            raise LookupError("the memory has ended")
        view = torch.empty(0, dtype=self.dtype, device=storage.device)
        return view.set_(storage, self._table.offset, self._table.sizes, self._table.strides)


def stored(value: Any) -> Any:
    """Return an argument with stored views in the place of tensors."""
    if isinstance(value, list | tuple):
        return [stored(v) for v in value]
    return StoredView(value) if isinstance(value, torch.Tensor) else value


def restored(value: Any) -> Any:
    """Return an argument with its tensors.

    Raises:
        LookupError: memory of one has ended.
    """
    if isinstance(value, list | tuple):
        return [restored(v) for v in value]
    return value.tensor() if isinstance(value, StoredView) else value
