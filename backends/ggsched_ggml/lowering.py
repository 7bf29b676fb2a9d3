"""Nodes as nodes of ggml's graphs, and which of them mean the same.

ggml asserts what it expects of operands, and an assertion ends the process. So everything that its
functions assert is seen to here: rows without gaps, no empty operand, masks that fit. A node that
ggml computes otherwise, or that a backend does not support with these shapes, raises ``Unlowered``
and runs by the reference arithmetic.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Final, NamedTuple

from ggsched.backend.precision import activations
from ggsched.backend.program import BoundNode, Operand
from ggsched.ir.dtype import BF16, F16, F32, I32, DType
from ggsched.ir.tensor import contiguous_strides
from ggsched_ggml.driver import TYPES, Handle, Library, Tensor

OTHERWISE: Final[Mapping[str, str]] = {
    "argsort": "the order of equal elements is not defined",
    "top_k": "neither the order of the indices nor that of equal elements is defined",
    "clamp": "NaN becomes the upper bound",
    "gelu": "the CPU computes it by a table of f16, up to 2e-4 off",
    "linear_attention": "the state has another layout",
    "short_conv": "the state has another layout",
}
"""Ops that ggml has, or nearly has, and that are not offered; each with the difference."""

FUSIONS: Final = frozenset({
    "rms_norm+mul", "mul_mat+add", "mul_mat+add+add", "mul_mat_id+add_id", "mul_mat*2+swiglu",
    "mul_mat_id*2+swiglu", "(mul_mat_id+add_id)*2+swiglu_oai",
})  # fmt: skip
"""Groups of which ggml's backends compute the inner results in registers (``ggml_can_fuse``)."""

_PREC_F32: Final = 10
_TENSORS: Final = 256
"""Tensors in a context."""


class Unlowered(Exception):
    """A node that ggml is not given, with the reason."""


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of ggml: extents and strides in bytes, the innermost first."""

    handle: Handle
    dtype: DType
    ne: tuple[int, ...]
    nb: tuple[int, ...]

    @property
    def has_rows(self) -> bool:
        """Whether elements of a row lie side by side."""
        return self.nb[0] == self.dtype.block_nbytes

    @property
    def is_contiguous(self) -> bool:
        """Whether elements are in order, without gaps."""
        return self.nb == dense(self.dtype, self.ne)


class Placed(NamedTuple):
    """A tensor that gets memory once all nodes are known.

    Attributes:
        operand: Where it lies; None for scratch memory, or that of the tensor it is a view of.
        scratch: Where in the scratch memory it lies, or -1.
        is_kept: Whether in the part that no other tensor of the graph uses.
    """

    handle: Handle
    operand: Operand | None = None
    scratch: int = -1
    is_kept: bool = False


class MaskOf(NamedTuple):
    """A mask f16 (N, T) that the host makes of bounds of attention before the graph runs."""

    handle: Handle
    bounds: Operand
    rows: int


def dense(dtype: DType, ne: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of contiguous elements."""
    return contiguous_strides(dtype, ne[::-1])[::-1]


class GraphMaker:
    """Makes the nodes of one graph of ggml.

    Args:
        device: Whose ``supports_op`` is asked.
        buffers: The type of its buffers.
        alignment: Of scratch memory.

    Attributes:
        placed: What needs memory, in the order in which it was made.
        masks: What the host makes before the graph runs.
        scratch_nbytes: Scratch memory that nodes share.
        kept_nbytes: Scratch memory behind it, of what the host makes.
    """

    def __init__(
        self, library: Library, device: Handle, buffers: Handle, alignment: int = 64
    ) -> None:
        self.library, self.device, self.buffers = library, device, buffers
        self.alignment = alignment
        self.nodes: list[Handle] = []
        self.placed: list[Placed] = []
        self.masks: list[MaskOf] = []
        self.scratch_nbytes = self.kept_nbytes = self._scratch = self._left = 0
        self._contexts: list[Handle] = []
        self._results: list[tuple[Operand, Value]] = []

    def add(self, node: BoundNode, *, is_inner: bool = False) -> None:
        """Add a node.

        Args:
            is_inner: Whether nothing but the next node of its group reads the result.

        Raises:
            Unlowered: ggml cannot compute it, or not in this way; nothing was added.
        """
        before = len(self.nodes), len(self.placed), len(self.masks)
        self._scratch = 0
        try:
            self._add(node, is_inner=is_inner)
        except Unlowered:
            del self.nodes[before[0] :], self.placed[before[1] :], self.masks[before[2] :]
            raise

    def _add(self, node: BoundNode, *, is_inner: bool) -> None:
        lower, out = LOWERINGS.get(node.op), node.output
        if lower is None:
            raise Unlowered(OTHERWISE.get(node.op, "ggml has no such op"))
        if any(0 in o.shape for o in node.inputs):
            raise Unlowered("an operand is empty")
        if node.params.get("of"):
            raise Unlowered("ggml needs all experts that ids name")
        result, target = lower(self, node), self.described(out)
        is_here = result.dtype is out.dtype and prod(result.ne) == prod(out.shape)
        if lower in WRITERS:
            self._forget(out)
        elif is_here and target.is_contiguous and self._size(result) <= out.nbytes:
            self.placed.append(Placed(result.handle, out))
            self._forget(out)
            if result.ne == target.ne:
                self._results = [*self._results[-15:], (out, result)]
        else:
            self.copy_to(self.in_scratch(result), self.leaf(out))
            self._forget(out)
        if not is_inner:
            self.library.ggml_set_output(result.handle)

    def _forget(self, written: Operand) -> None:
        """Let later nodes not take results for operands whose bytes are written anew."""
        self._results = [(o, v) for o, v in self._results if not o.meets(written)]

    def described(self, operand: Operand, axes: Sequence[int] | None = None) -> Value:
        """Return an operand with the strides of ggml, without a tensor.

        Args:
            axes: Order of its axes, the outermost first, if another one.
        """
        order = range(len(operand.shape)) if axes is None else axes
        dtype, rest = operand.dtype, 4 - len(operand.shape)
        ne = [*(operand.shape[i] for i in reversed(order)), *[1] * rest]
        nb = [*(operand.strides[i] for i in reversed(order)), *[0] * rest]
        natural = dtype.block_nbytes
        for i, extent in enumerate(ne):
            blocks = extent if i else extent // dtype.block
            nb[i] = nb[i] if blocks > 1 else natural
            natural = nb[i] * blocks
        return Value(0, dtype, tuple(ne), tuple(nb))

    def leaf(self, operand: Operand, axes: Sequence[int] | None = None) -> Value:
        """Return a tensor on the bytes of an operand: the node that computed it, if it is known."""
        for known, value in reversed(self._results) if axes is None else ():
            if known.is_same_window(operand):
                return value
        found = self.described(operand, axes)
        made = self.tensor(found.dtype, found.ne)
        if found.nb != made.nb:
            self.library.set_strides(made.handle, found.nb)
        if found.dtype.is_quantized and self._size(made) > operand.nbytes:
            raise Unlowered("the device reads behind packed rows of this length")
        self.placed.append(Placed(made.handle, operand))
        return replace(made, nb=found.nb)

    def tensor(self, dtype: DType, ne: tuple[int, ...]) -> Value:
        """Return a fresh tensor without memory."""
        handle = self.library.ggml_new_tensor_4d(self._room(), TYPES[dtype.name], *ne)
        return Value(handle, dtype, ne, dense(dtype, ne))

    def _room(self) -> Handle:
        """Return a context with room for a tensor: ggml aborts the process if it has none."""
        if not self._left:
            self._contexts.append(
                self.library.context(_TENSORS * self.library.ggml_tensor_overhead())
            )
            self._left = _TENSORS
        self._left -= 1
        return self._contexts[-1]

    def in_scratch(self, value: Value) -> Value:
        """Give a tensor memory of the program until the next node."""
        self.placed.append(Placed(value.handle, scratch=self._scratch))
        self._scratch += -(-self._size(value) // self.alignment) * self.alignment
        self.scratch_nbytes = max(self.scratch_nbytes, self._scratch)
        return value

    def _size(self, value: Value) -> int:
        """Return what a tensor takes: some backends use memory behind it, as they compute it."""
        nbytes: int = self.library.ggml_backend_buft_get_alloc_size(self.buffers, value.handle)
        return nbytes

    def node(self, function: str, *args: Any, dtype: DType = F32) -> Value:
        """Add a node by a function of ggml; its result has no memory yet.

        Raises:
            Unlowered: the library lacks the function, or the device does not support the node.
        """
        call = getattr(self.library, function, None)
        if call is None:
            raise Unlowered(f"the library lacks {function}")
        plain = [a.handle if isinstance(a, Value) else a for a in args]
        handle: Handle = call(self._room(), *plain)
        if not self.library.ggml_backend_dev_supports_op(self.device, handle):
            raise Unlowered("the device does not support it with these shapes")
        self.nodes.append(handle)
        ne = tuple(Tensor.from_address(handle).ne)
        return Value(handle, dtype, ne, dense(dtype, ne))

    def on_operand(self, function: str, *args: Any, dtype: DType) -> Value:
        """Add a node whose result lies on an operand."""
        result = self.node(function, *args, dtype=dtype)
        self.placed.append(Placed(result.handle))
        return result

    def copy_to(self, value: Value, target: Value) -> Value:
        """Copy elements into a tensor that has memory."""
        return self.on_operand("ggml_cpy", value, target, dtype=target.dtype)

    def contiguous(self, value: Value) -> Value:
        """Return a tensor with the same elements in order."""
        if value.is_contiguous:
            return value
        return self.in_scratch(self.node("ggml_cont", value, dtype=value.dtype))

    def rows(self, value: Value) -> Value:
        """Return a tensor with the same elements whose rows have no gaps."""
        return value if value.has_rows else self.contiguous(value)

    def operands(self, node: BoundNode) -> list[Value]:
        """Return the operands of a node as tensors whose rows have no gaps."""
        return [self.rows(self.leaf(operand)) for operand in node.inputs]

    def as_f32(self, value: Value) -> Value:
        """Return a contiguous tensor of f32."""
        return self.in_scratch(self.node("ggml_cast", value, TYPES["f32"]))

    def repeated(self, value: Value, ne: Sequence[int]) -> Value:
        """Return a tensor of a given shape that repeats another one."""
        if value.ne == tuple(ne):
            return value
        return self.in_scratch(self.node("ggml_repeat_4d", self.rows(value), *ne))

    def mask_of(self, bounds: Operand, rows: int) -> Value:
        """Return the mask of bounds, which nodes on the same operand share."""
        ne = (rows, bounds.shape[0], 1, 1)
        for known in self.masks:
            if known.bounds.is_same_window(bounds) and known.rows == rows:
                return Value(known.handle, F16, ne, dense(F16, ne))
        mask = self.tensor(F16, ne)
        self.placed.append(Placed(mask.handle, scratch=self.kept_nbytes, is_kept=True))
        self.kept_nbytes += -(-self._size(mask) // self.alignment) * self.alignment
        self.masks.append(MaskOf(mask.handle, bounds, rows))
        return mask

    def graph(self) -> Handle:
        """Return the graph of all nodes, in a context of its own."""
        library, size = self.library, 2 * len(self.placed) + 4 * len(self.nodes) + 16
        context = library.context(library.ggml_graph_overhead_custom(size, False) + _TENSORS)
        self._contexts.append(context)
        graph: Handle = library.ggml_new_graph_custom(context, size, False)
        for node in self.nodes:
            library.ggml_build_forward_expand(graph, node)
        return graph

    def take_contexts(self) -> list[Handle]:
        """Return the contexts, which the caller frees."""
        taken, self._contexts, self._left = self._contexts, [], 0
        return taken


Lowering = Callable[[GraphMaker, BoundNode], Value]


def _numbers(node: BoundNode, *names: str) -> list[float]:
    return [float(node.params[name]) for name in names]  # type: ignore[arg-type]  # by the op's rule


def _of_rows(function: str, *names: str) -> Lowering:
    return lambda g, n: g.node(function, *g.operands(n), *_numbers(n, *names))


def _of_contiguous(function: str, *names: str) -> Lowering:
    return lambda g, n: g.node(
        function, *(g.contiguous(g.leaf(o)) for o in n.inputs), *_numbers(n, *names)
    )


def _weight(g: GraphMaker, operand: Operand) -> Value:
    w = g.rows(g.leaf(operand))
    return g.contiguous(w) if w.nb[0] > w.nb[1] else w  # ggml's test of a transposed one


def _mul_mat(g: GraphMaker, node: BoundNode) -> Value:
    result = g.node("ggml_mul_mat", _weight(g, node.inputs[0]), g.rows(g.leaf(node.inputs[1])))
    # Without it backends may add up in f16. With weights of bf16 it would have CUDA convert them to
    # f32 for each product: a prompt took three times as long (H200).
    if node.inputs[0].dtype is not BF16 or activations() == "f32":
        g.library.ggml_mul_mat_set_prec(result.handle, _PREC_F32)
    return result


def _mul_mat_id(g: GraphMaker, node: BoundNode) -> Value:
    w, (x, ids) = _weight(g, node.inputs[0]), (g.rows(g.leaf(o)) for o in node.inputs[1:])
    return g.node("ggml_mul_mat_id", w, x, ids)


def _get_rows(g: GraphMaker, node: BoundNode) -> Value:
    table, ids = node.inputs
    if len(table.shape) == 2 and len(ids.shape) != 1:
        if not g.described(ids).is_contiguous:
            raise Unlowered("ids of several axes have gaps")
        ids = replace(ids, shape=(prod(ids.shape),), strides=(ids.dtype.block_nbytes,))
    rows = g.rows(g.leaf(table))
    return g.node("ggml_get_rows", rows, g.leaf(ids), dtype=I32 if table.dtype is I32 else F32)


def _set_rows(g: GraphMaker, node: BoundNode) -> Value:
    place, source, ids = (g.leaf(o) for o in node.inputs)
    if not place.has_rows:
        raise Unlowered("rows of the result have gaps")
    return g.on_operand("ggml_set_rows", place, g.rows(source), ids, dtype=place.dtype)


def _cpy(g: GraphMaker, node: BoundNode) -> Value:
    source, target = (g.leaf(o) for o in node.inputs)
    if source.dtype.is_quantized and not (target.dtype is F32 and target.is_contiguous):
        source = g.as_f32(source)
    return g.copy_to(source, target)


def _cont(g: GraphMaker, node: BoundNode) -> Value:
    source, dtype = g.leaf(node.inputs[0]), node.output.dtype
    if dtype is source.dtype:
        return g.node("ggml_cont", source, dtype=dtype)
    if source.dtype.is_quantized and dtype is not F32:
        source = g.as_f32(source)
    return g.node("ggml_cast", source, TYPES[dtype.name], dtype=dtype)


def _concat(g: GraphMaker, node: BoundNode) -> Value:
    axes = len(node.output.shape)
    axis = axes - 1 - int(_numbers(node, "axis")[0]) % axes
    return g.node("ggml_concat", *g.operands(node), axis, dtype=node.output.dtype)


def _repeat(g: GraphMaker, node: BoundNode) -> Value:
    return g.node("ggml_repeat_4d", *g.operands(node), *g.described(node.output).ne)


def _rope(g: GraphMaker, node: BoundNode) -> Value:
    x, at, *factors = (g.rows(g.leaf(o)) for o in node.inputs)
    n_dims, n_ctx, *numbers = _numbers(
        node, "n_dims", "n_ctx_orig", "base", "freq_scale", "ext_factor", "attn_factor",
        "beta_fast", "beta_slow",
    )  # fmt: skip
    sizes = int(n_dims), 2 if node.params["pairing"] == "halves" else 0, int(n_ctx)
    return g.node("ggml_rope_ext", x, at, factors[0] if factors else None, *sizes, *numbers)


def _soft_max(g: GraphMaker, node: BoundNode) -> Value:
    x, *rest = (g.leaf(o) for o in node.inputs)
    x, mask = g.contiguous(x), None
    if node.params["mask"]:
        mask, *rest = rest
        mask = g.contiguous(g.repeated(mask, (*x.ne[:2], *mask.ne[2:])))
    result = g.node("ggml_soft_max_ext", x, mask, *_numbers(node, "scale"), 0.0)
    for sinks in rest:
        g.library.ggml_soft_max_add_sinks(result.handle, g.contiguous(sinks).handle)
    return result


def _attention(g: GraphMaker, node: BoundNode) -> Value:
    if node.params["mask"]:
        raise Unlowered("ggml rounds masks to f16")
    k, v, q = (g.rows(g.leaf(o, (1, 0, 2))) for o in node.inputs[:3])
    mask = g.mask_of(node.inputs[-1], k.ne[1]) if node.params["bounds"] else None
    scale, soft_cap = _numbers(node, "scale", "soft_cap")
    result = g.node("ggml_flash_attn_ext", q, k, v, mask, scale, 0.0, soft_cap)
    g.library.ggml_flash_attn_ext_set_prec(result.handle, _PREC_F32)
    if node.params["sinks"]:
        sinks = g.contiguous(g.leaf(node.inputs[3]))
        g.library.ggml_flash_attn_ext_add_sinks(result.handle, sinks.handle)
    return result


LOWERINGS: Final[Mapping[str, Lowering]] = {
    **{op: _of_rows(f"ggml_{op}") for op in ("add", "sub", "mul", "div", "add_id", "sum_rows")},
    **{op: _of_rows(f"ggml_{op}", "eps") for op in ("rms_norm", "norm")},
    **{op: _of_contiguous(f"ggml_{op}") for op in ("silu", "sigmoid", "tanh", "softplus")},
    "scale": _of_contiguous("ggml_scale_bias", "scale", "bias"),
    "swiglu": _of_contiguous("ggml_swiglu_split"),
    "swiglu_oai": _of_contiguous("ggml_swiglu_oai", "alpha", "limit"),
    "mul_mat": _mul_mat, "mul_mat_id": _mul_mat_id, "get_rows": _get_rows, "set_rows": _set_rows,
    "cpy": _cpy, "cont": _cont, "concat": _concat, "repeat": _repeat, "rope": _rope,
    "soft_max": _soft_max, "attention": _attention,
}  # fmt: skip
"""How each op becomes nodes of ggml."""

WRITERS: Final = frozenset({_set_rows, _cpy})
"""Lowerings of ops that write through an operand."""
