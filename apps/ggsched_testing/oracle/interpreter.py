"""The meaning of a graph: its nodes run one after another on plain bytes.

Every storage is one byte array, so views and writes through views alias for real. Tensors hold
what they would hold on a device (f32 rounded to f32 on each store); within one op the arithmetic
is float64. Temporaries start as poison (0xFF, NaN in each float type), so reading a byte that no
node has written shows in the result.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ggsched.backend.arrays import numpy_dtype, numpy_shape
from ggsched.backend.elements import as_library_has_them, computed, decoded, encode, set_rows, wide
from ggsched.backend.precision import (
    BLOCK,
    EXACT,
    FACTORS,
    ROUNDING_TO_8_BITS,
    Rounds,
    rounding_of,
)
from ggsched.errors import UsageError
from ggsched.ir.dtype import ARRAY_DTYPES, F32, DType
from ggsched.ir.graph import Graph, Node
from ggsched.ir.ops import op_by_name
from ggsched.ir.tensor import Role, Tensor
from ggsched.ops.attention import attention_rounding

Array = npt.NDArray[Any]
Storages = dict[int, npt.NDArray[np.uint8]]

POISON = 0xFF

PRODUCTS: Final = frozenset({"mul_mat", "mul_mat_id", "attention"})
"""Ops whose operands a device may round (LCH-3), besides convolutions."""
CONVOLUTION: Final = "nd.conv"


class Rounding(NamedTuple):
    """A product whose elements are off by as much as LCH-3 allows.

    Attributes:
        node: The product's id.
        signs: Draws in which direction each element is off.
    """

    node: int
    signs: np.random.Generator


def run_oracle(
    graph: Graph,
    values: Mapping[str, Array],
    *,
    states: dict[str, Array] | None = None,
    compute: type[np.floating[Any]] = np.float64,
    rounding: Rounding | None = None,
    how: Rounds = EXACT,
) -> dict[int, Array]:
    """Run a graph node by node.

    Args:
        graph: A verified graph.
        values: Array of each input and weight, by name: float32, float16 or int32 of the
            tensor's shape; bf16 as uint16 bits; quantised as uint8 (..., row_nbytes). The packed
            bytes as uint8 are accepted for every type. Not changed, even if the graph writes
            through an input.
        states: Content of each state by name, in the same form; those that are missing are
            created as zeros. Changed in place after the last node.
        compute: Type of the arithmetic within an op; float32 shows how much rounding matters.
        rounding: If given, elements of one product are off by as much as LCH-3 lets a device
            round them.
        how: How that device rounds.

    Returns:
        Output tensor id -> a fresh array of the tensor's shape: float32, float16 or int32;
        float32 also for bf16 and quantised outputs.

    Raises:
        UsageError: a value is missing or of another type or size; an id operand is out of range
            or ``set_rows`` was given one row twice. ``states`` is then unchanged.
    """
    values = {**constants_of(graph), **values}
    states = {} if states is None else states
    storages: Storages = {}
    for t in graph.tensors:
        if not t.is_view:
            storages[t.id] = _initial(t, values, states)
    with np.errstate(all="ignore"):
        for node in graph.nodes:
            try:
                _run_node(graph, node, storages, compute, rounding, how=how)
            except UsageError as error:
                error.add_note(f"in {graph.label(node)}")
                raise
        outputs = {tid: _output(graph.tensors[tid], storages) for tid in graph.outputs}
    for t in graph.roots(Role.STATE):
        final = storages[t.id].view(numpy_dtype(t.dtype)).reshape(numpy_shape(t.dtype, t.shape))
        if t.name in states:
            states[t.name].reshape(-1).view(np.uint8)[:] = storages[t.id]
        else:
            states[t.name] = final
    return outputs


def constants_of(graph: Graph) -> dict[str, Array]:
    """Return the packed bytes of the weights that a graph brings along, by name."""
    return {name: np.frombuffer(data, np.uint8) for name, data in graph.constants.items()}


def _initial(
    t: Tensor, values: Mapping[str, Array], states: Mapping[str, Array]
) -> npt.NDArray[np.uint8]:
    if t.role is Role.TEMP:
        return np.full(t.nbytes, POISON, np.uint8)
    if t.role is Role.STATE:
        if t.name not in states:
            return np.zeros(t.nbytes, np.uint8)
        if not states[t.name].flags.c_contiguous:
            raise UsageError("the array of a state must be C-contiguous", where=t.name)
        return _packed(t, states[t.name])
    if t.name not in values:
        raise UsageError(f"no value for the {t.role.value} {t.name!r}", hint="pass it in values")
    return _packed(t, values[t.name])


def _packed(t: Tensor, value: Array) -> npt.NDArray[np.uint8]:
    """Return a copy of the bytes of a value, having checked type and size."""
    raw = value.dtype == np.uint8 and value.size == t.nbytes
    typed = value.dtype == numpy_dtype(t.dtype) and value.shape == numpy_shape(t.dtype, t.shape)
    if not (raw or typed):
        raise UsageError(
            f"{value.dtype}{list(value.shape)} for {t.dtype}{list(t.shape)}",
            where=t.name,
            hint=f"pass {numpy_dtype(t.dtype)}{list(numpy_shape(t.dtype, t.shape))}",
        )
    return np.array(value, order="C").reshape(-1).view(np.uint8)


def _run_node(
    graph: Graph,
    node: Node,
    storages: Storages,
    compute: type[np.floating[Any]],
    rounding: Rounding | None,
    *,
    how: Rounds,
) -> None:
    operands = [graph.tensors[tid] for tid in node.inputs]
    result = graph.tensors[node.output]
    if node.op == "set_rows":
        source, ids = (_load(t, storages) for t in operands[1:])
        set_rows(_window(result, storages), source, ids, result.dtype)
        return
    op = op_by_name(node.op)
    read = operands[:1] if node.op == "cpy" else operands  # cpy never reads its destination
    loaded = [_load(t, storages) for t in read]
    loaded = [a.astype(compute, copy=False) if a.dtype == np.float64 else a for a in loaded]
    loaded = as_library_has_them(node.op, loaded, [t.dtype for t in read])
    params = op.full(node.params)
    value = computed(op, loaded, params)
    if op.version and value.shape != result.shape:
        raise UsageError(
            f"its reference returned shape {value.shape}, its shape rule {result.shape}",
            where=f"op {op.name!r}",
        )
    entry = rounding_entry(node.op, operands[0].dtype, how)
    if entry == ROUNDING_TO_8_BITS and node.op != "attention":
        loaded[1] = _largest_of_blocks(loaded[1])
    if rounding is not None and rounding.node == node.id and entry:
        if node.op == "attention":
            sizes = attention_rounding(loaded, params)
        elif node.op == CONVOLUTION:
            sizes = computed(op, [abs(a) for a in loaded[:2]], {**params, "bias": False})
        else:
            sizes = computed(op, [abs(loaded[0]), abs(loaded[1]), *loaded[2:]], params)
        value = value + entry * sizes * rounding.signs.choice([-1.0, 1.0], sizes.shape)
    _store(result, value, storages)


def rounding_entry(op: str, dtype: DType, how: Rounds) -> float:
    """Return what an op may be off by, of ``sum |w| |x|``, for a first operand of a type."""
    if op == CONVOLUTION:
        return FACTORS[how.precision] if dtype == F32 else 0.0
    if op not in PRODUCTS:
        return 0.0
    if how.to_8_bits and dtype.is_quantized:
        return ROUNDING_TO_8_BITS
    return rounding_of(dtype.name, how.precision)


def _largest_of_blocks(x: Array) -> Array:
    """Return activations with each element as large as the largest of its block."""
    top = abs(x).reshape(*x.shape[:-1], -1, BLOCK).max(-1, keepdims=True, initial=0.0)
    return np.repeat(top, BLOCK, -1).reshape(x.shape)


def _window(t: Tensor, storages: Storages) -> Array:
    """Return the bytes of a tensor as a numpy view that writes through; blocks as rows of bytes."""
    strides = (*t.strides[:-1], 1) if t.dtype.is_quantized else t.strides
    return np.ndarray(
        numpy_shape(t.dtype, t.shape),
        numpy_dtype(t.dtype),
        storages[t.storage].data,
        t.offset,
        strides,
    )


def _load(t: Tensor, storages: Storages) -> Array:
    """Return the content of a tensor as a fresh array of its shape, of type ``wide``."""
    if t.size == 0:
        return np.zeros(t.shape, wide(t.dtype))
    return decoded(_window(t, storages), t.dtype)


def _store(t: Tensor, value: Array, storages: Storages) -> None:
    if value.shape != t.shape:
        raise AssertionError(f"the oracle computed {value.shape} for {t.shape}")
    if t.size:
        _window(t, storages)[...] = encode(value, t.dtype)


def _output(t: Tensor, storages: Storages) -> Array:
    if t.dtype in ARRAY_DTYPES and t.size:
        return _window(t, storages).copy()
    kind = numpy_dtype(t.dtype) if t.dtype in ARRAY_DTYPES else np.dtype(np.float32)
    return _load(t, storages).astype(kind)
