"""What each op means: its operands, its shape rule, and which bytes it touches.

Shapes are numpy's (outermost first), so ggml's ``ne`` read backwards. The result of an op is a
fresh contiguous tensor unless the op writes *through* an operand; then the result is a view of
that operand's storage. The numerical meaning is stated in ``docs/reference/ops.md`` and computed
by ``ggsched.testing.oracle``.

``modes`` of a node has one letter for each operand and one for the result:

    ``r``  reads every byte of the range that belongs to the tensor
    ``w``  writes every byte, reading none
    ``p``  writes some of the bytes; the others keep their content
    ``-``  does not touch the bytes (the result stands for them)
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ggsched.errors import GraphError
from ggsched.ir.dtype import F16, F32, FLOAT_DTYPES, I32, DType, dtype_by_name
from ggsched.ir.tensor import Tensor

Param = int | float | str | bool | tuple[int, ...]
Params = Mapping[str, Param]
ShapeRule = Callable[[Sequence[Tensor], Params], tuple[DType, tuple[int, ...]]]


@dataclass(frozen=True, slots=True)
class OpDef:
    """Definition of an op.

    Attributes:
        name: As in graphs, plans and kernel tables.
        operands: Names of the operands in order; those ending in ``?`` are optional and present
            when the node's parameter of that name is true.
        infer: Checks operands and parameters, gives type and shape of the result.
        through: Operand through which the op writes, or None for a fresh result. ``inplace=True``
            makes an op of ``may_overwrite`` write through operand 0.
        partial: Whether a write through leaves some bytes as they were.
        may_overwrite: Operands whose bytes the result may take over exactly (same type, shape
            and strides), because element i of the result depends on no other element of it.
        defaults: Parameters and their defaults; a parameter that is not here is an error.
    """

    name: str
    operands: tuple[str, ...]
    infer: ShapeRule
    through: int | None = None
    partial: bool = False
    may_overwrite: tuple[int, ...] = ()
    defaults: Mapping[str, Param] | None = None


def _fail(op: str, what: str, operands: Sequence[Tensor], hint: str = "") -> GraphError:
    given = ", ".join(f"{t.name}:{t.dtype}{list(t.shape)}" for t in operands)
    return GraphError(f"{what}, given {given}", where=op, hint=hint)


def _need_f32(op: str, operands: Sequence[Tensor], *which: int) -> None:
    for i in which:
        if operands[i].dtype is not F32:
            raise _fail(op, f"operand {i} must be f32", operands, "cast it with cont(dtype='f32')")


def _need_i32(op: str, operands: Sequence[Tensor], which: int) -> None:
    if operands[which].dtype is not I32:
        raise _fail(op, f"operand {which} must be i32", operands)


def broadcasts_to(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Whether numpy would broadcast ``shape`` to exactly ``target``."""
    if len(shape) > len(target):
        return False
    tail = target[len(target) - len(shape) :]
    return all(a in (1, b) for a, b in zip(shape, tail, strict=True))


def _same(op: str) -> ShapeRule:
    def rule(x: Sequence[Tensor], params: Params) -> tuple[DType, tuple[int, ...]]:
        _need_f32(op, x, 0)
        return F32, x[0].shape

    return rule


def _binary(op: str) -> ShapeRule:
    def rule(x: Sequence[Tensor], params: Params) -> tuple[DType, tuple[int, ...]]:
        _need_f32(op, x, 0, 1)
        if not broadcasts_to(x[1].shape, x[0].shape):
            raise _fail(op, "operand 1 does not broadcast to operand 0", x)
        return F32, x[0].shape

    return rule


def _gated(op: str) -> ShapeRule:
    def rule(x: Sequence[Tensor], params: Params) -> tuple[DType, tuple[int, ...]]:
        _need_f32(op, x, 0, 1)
        if x[0].shape != x[1].shape:
            raise _fail(op, "gate and up must have one shape", x)
        return F32, x[0].shape

    return rule


def _get_rows(x: Sequence[Tensor], params: Params) -> tuple[DType, tuple[int, ...]]:
    table, ids = x
    _need_i32("get_rows", x, 1)
    if len(table.shape) < 2:
        raise _fail("get_rows", "the table needs rows", x)
    dtype = I32 if table.dtype is I32 else F32
    if len(table.shape) == 2:
        return dtype, (*ids.shape, table.shape[-1])
    batch = table.shape[:-2]
    if ids.shape[:-1] != batch:
        raise _fail("get_rows", "the ids need the table's batch axes and one more", x)
    return dtype, (*ids.shape, table.shape[-1])


def _set_rows(x: Sequence[Tensor], params: Params) -> tuple[DType, tuple[int, ...]]:
    dst, src, ids = x
    _need_f32("set_rows", x, 1)
    _need_i32("set_rows", x, 2)
    if dst.dtype not in (F32, F16):
        raise _fail("set_rows", "rows can be set in f32 and f16 only", x)
    if len(dst.shape) != 2 or len(src.shape) != 2 or len(ids.shape) != 1:
        raise _fail("set_rows", "needs dst (R, n), src (T, n), ids (T,)", x)
    if src.shape != (ids.shape[0], dst.shape[1]) or src.shape[0] > dst.shape[0]:
        raise _fail("set_rows", "needs dst (R, n), src (T, n), ids (T,) with T <= R", x)
    return dst.dtype, dst.shape


def _mul_mat(x: Sequence[Tensor], params: Params) -> tuple[DType, tuple[int, ...]]:
    w, a = x
    _need_f32("mul_mat", x, 1)
    if w.dtype not in FLOAT_DTYPES:
        raise _fail("mul_mat", "operand 0 must be a float type", x)
    if len(w.shape) < 2 or len(a.shape) < 2 or w.shape[-1] != a.shape[-1]:
        raise _fail("mul_mat", "needs w (.., n, k) and x (.., m, k)", x)
    w_batch = (1,) * (len(a.shape) - len(w.shape)) + w.shape[:-2]
    if len(w_batch) != len(a.shape) - 2 or any(
        wb == 0 or ab % wb for wb, ab in zip(w_batch, a.shape[:-2], strict=True)
    ):
        raise _fail("mul_mat", "each batch axis of x must be a multiple of w's", x)
    return F32, (*a.shape[:-1], w.shape[-2])


def _mul_mat_id(x: Sequence[Tensor], params: Params) -> tuple[DType, tuple[int, ...]]:
    w, a, ids = x
    _need_f32("mul_mat_id", x, 1)
    _need_i32("mul_mat_id", x, 2)
    ok = len(w.shape) == 3 and len(a.shape) == 3 and len(ids.shape) == 2
    ok = ok and w.shape[2] == a.shape[2] and a.shape[0] == ids.shape[0]
    if not ok or a.shape[1] not in (1, ids.shape[1]) or w.dtype not in FLOAT_DTYPES:
        raise _fail("mul_mat_id", "needs w (E, n, k), x (T, U or 1, k), ids (T, U)", x)
    return F32, (*ids.shape, w.shape[1])


def _add_id(x: Sequence[Tensor], params: Params) -> tuple[DType, tuple[int, ...]]:
    a, bias, ids = x
    _need_f32("add_id", x, 0, 1)
    _need_i32("add_id", x, 2)
    ok = len(a.shape) == 3 and len(bias.shape) == 2 and len(ids.shape) == 2
    if not ok or a.shape[:2] != ids.shape or a.shape[2] != bias.shape[1]:
        raise _fail("add_id", "needs x (T, U, n), bias (E, n), ids (T, U)", x)
    return F32, a.shape


def _rope(x: Sequence[Tensor], params: Params) -> tuple[DType, tuple[int, ...]]:
    _need_f32("rope", x, 0)
    _need_i32("rope", x, 1)
    n_dims = params["n_dims"]
    if len(x[0].shape) != 3 or x[1].shape != x[0].shape[:1]:
        raise _fail("rope", "needs x (T, H, D) and positions (T,)", x)
    if not isinstance(n_dims, int) or n_dims % 2 or not 0 < n_dims <= x[0].shape[2]:
        raise _fail("rope", f"n_dims={n_dims} must be even and at most D", x)
    if params["pairing"] not in ("adjacent", "halves"):
        raise _fail("rope", "pairing must be 'adjacent' (2i, 2i+1) or 'halves' (i, i+n/2)", x)
    if len(x) == 3 and (x[2].dtype is not F32 or x[2].shape != (n_dims // 2,)):
        raise _fail("rope", "freq_factors must be f32 (n_dims/2,)", x)
    return F32, x[0].shape


def _soft_max(x: Sequence[Tensor], params: Params) -> tuple[DType, tuple[int, ...]]:
    _need_f32("soft_max", x, *range(len(x)))
    shape = x[0].shape
    if not shape:
        raise _fail("soft_max", "needs at least one axis", x)
    rest = list(x[1:])
    if params["mask"] and not broadcasts_to(rest.pop(0).shape, shape):
        raise _fail("soft_max", "the mask does not broadcast to x", x)
    if params["sinks"] and (len(shape) != 3 or rest.pop(0).shape != shape[:1]):
        raise _fail("soft_max", "sinks need x (H, T, K) and shape (H,)", x)
    return F32, shape


def _argsort(x: Sequence[Tensor], params: Params) -> tuple[DType, tuple[int, ...]]:
    _need_f32("argsort", x, 0)
    return I32, x[0].shape


def _top_k(x: Sequence[Tensor], params: Params) -> tuple[DType, tuple[int, ...]]:
    _need_f32("top_k", x, 0)
    k = params["k"]
    if not isinstance(k, int) or not x[0].shape or not 0 < k <= x[0].shape[-1]:
        raise _fail("top_k", f"k={k} must be from 1 to the length of the last axis", x)
    return I32, (*x[0].shape[:-1], k)


def _sum_rows(x: Sequence[Tensor], params: Params) -> tuple[DType, tuple[int, ...]]:
    _need_f32("sum_rows", x, 0)
    return F32, (*x[0].shape[:-1], 1)


def _cpy(x: Sequence[Tensor], params: Params) -> tuple[DType, tuple[int, ...]]:
    src, dst = x
    if src.shape != dst.shape:
        raise _fail("cpy", "source and destination must have one shape", x)
    _castable("cpy", src, dst.dtype, x)
    return dst.dtype, dst.shape


def _castable(op: str, src: Tensor, to: DType, x: Sequence[Tensor]) -> None:
    floats = src.dtype in FLOAT_DTYPES and to in (F32, F16)
    if not floats and src.dtype is not to:
        raise _fail(op, f"{src.dtype} cannot be converted to {to}", x)
    if to.is_quantized or (src.dtype.is_quantized and not src.is_contiguous):
        raise _fail(op, "quantised tensors can only be read, contiguously", x)


def _cont(x: Sequence[Tensor], params: Params) -> tuple[DType, tuple[int, ...]]:
    named = params["dtype"]
    to = dtype_by_name(str(named)) if named else x[0].dtype
    _castable("cont", x[0], to, x)
    return to, x[0].shape


def _concat(x: Sequence[Tensor], params: Params) -> tuple[DType, tuple[int, ...]]:
    a, b = x
    axis = params["axis"]
    if not isinstance(axis, int) or not 0 <= axis < len(a.shape) or len(a.shape) != len(b.shape):
        raise _fail("concat", f"axis={axis} is not an axis of both", x)
    if a.dtype is not b.dtype or a.dtype not in (F32, I32):
        raise _fail("concat", "both operands must be f32 or both i32", x)
    if any(i != axis and m != n for i, (m, n) in enumerate(zip(a.shape, b.shape, strict=True))):
        raise _fail("concat", "the other axes must agree", x)
    return a.dtype, tuple(
        m + n if i == axis else m for i, (m, n) in enumerate(zip(a.shape, b.shape, strict=True))
    )


def _repeat(x: Sequence[Tensor], params: Params) -> tuple[DType, tuple[int, ...]]:
    shape = params["shape"]
    _need_f32("repeat", x, 0)
    if not isinstance(shape, tuple) or len(shape) != len(x[0].shape):
        raise _fail("repeat", "the target shape needs as many axes as the operand", x)
    if any(n == 0 or m % n for m, n in zip(shape, x[0].shape, strict=True)):
        raise _fail("repeat", f"{shape} is not a whole number of copies on each axis", x)
    return F32, shape


_ROPE_DEFAULTS: Final[dict[str, Param]] = {
    "n_dims": 0,
    "pairing": "adjacent",
    "base": 10000.0,
    "freq_scale": 1.0,
    "ext_factor": 0.0,
    "attn_factor": 1.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "n_ctx_orig": 0,
    "freq_factors": False,
}


def _table() -> dict[str, OpDef]:
    ops = [
        OpDef("get_rows", ("table", "ids"), _get_rows),
        OpDef("set_rows", ("dst", "src", "ids"), _set_rows, through=0, partial=True),
        OpDef("mul_mat", ("w", "x"), _mul_mat),
        OpDef("mul_mat_id", ("w", "x", "ids"), _mul_mat_id),
        OpDef("add_id", ("x", "bias", "ids"), _add_id, may_overwrite=(0,)),
        *(OpDef(n, ("a", "b"), _binary(n), may_overwrite=(0, 1)) for n in ("add", "sub", "mul", "div")),
        OpDef("scale", ("x",), _same("scale"), may_overwrite=(0,), defaults={"scale": 1.0, "bias": 0.0}),
        OpDef("rms_norm", ("x",), _same("rms_norm"), may_overwrite=(0,), defaults={"eps": 1e-5}),
        OpDef("norm", ("x",), _same("norm"), may_overwrite=(0,), defaults={"eps": 1e-5}),
        OpDef("rope", ("x", "positions", "freq_factors?"), _rope, may_overwrite=(0,), defaults=_ROPE_DEFAULTS),
        OpDef(
            "soft_max",
            ("x", "mask?", "sinks?"),
            _soft_max,
            may_overwrite=(0,),
            defaults={"scale": 1.0, "mask": False, "sinks": False},
        ),
        *(OpDef(n, ("x",), _same(n), may_overwrite=(0,)) for n in ("silu", "gelu")),
        OpDef("swiglu", ("gate", "up"), _gated("swiglu"), may_overwrite=(0, 1)),
        OpDef(
            "swiglu_oai",
            ("gate", "up"),
            _gated("swiglu_oai"),
            may_overwrite=(0, 1),
            defaults={"alpha": 1.702, "limit": 7.0},
        ),
        OpDef("argsort", ("x",), _argsort, defaults={"descending": False}),
        OpDef("top_k", ("x",), _top_k, defaults={"k": 1}),
        OpDef("sum_rows", ("x",), _sum_rows),
        OpDef("clamp", ("x",), _same("clamp"), may_overwrite=(0,), defaults={"min": 0.0, "max": 0.0}),
        OpDef("cpy", ("src", "dst"), _cpy, through=1),
        OpDef("cont", ("x",), _cont, defaults={"dtype": ""}),
        OpDef("concat", ("a", "b"), _concat, defaults={"axis": 0}),
        OpDef("repeat", ("x",), _repeat, defaults={"shape": ()}),
    ]
    return {op.name: op for op in ops}


OPS: Final[Mapping[str, OpDef]] = _table()


def op_by_name(name: str) -> OpDef:
    """Return the definition of an op.

    Raises:
        GraphError: there is no such op.
    """
    try:
        return OPS[name]
    except KeyError:
        raise GraphError(f"unknown op {name!r}", hint=f"known ops: {', '.join(OPS)}") from None


def written_operand(op: OpDef, params: Params) -> int | None:
    """Return the operand that a node writes through, or None for a fresh result."""
    return 0 if params.get("inplace") else op.through


def access_modes(op: OpDef, operands: Sequence[Tensor], result: Tensor, params: Params) -> str:
    """Return how a node touches its operands and its result, one letter each.

    A write into a strided view covers its bounding range only in part, so it is ``p``.
    """
    modes = ["r"] * len(operands)
    if op.through is not None:
        modes[op.through] = "-"
    write = "p" if op.partial or not result.is_contiguous else "w"
    return "".join(modes) + write


def verify_overlap(op_name: str, operands: Sequence[Tensor], result: Tensor, modes: str) -> None:
    """Refuse a node that reads bytes which it also writes, unless element by element.

    Raises:
        GraphError: an operand overlaps the result and is not the very same window, or the op
            reads more of it than the element that it writes.
    """
    op = op_by_name(op_name)
    for i, (t, mode) in enumerate(zip(operands, modes, strict=False)):
        if mode != "r" or t.storage != result.storage or not _overlap(t, result):
            continue
        same = (t.offset, t.shape, t.strides) == (result.offset, result.shape, result.strides)
        if not (same and i in op.may_overwrite):
            raise _fail(op_name, f"operand {i} overlaps the bytes that are written", operands, "copy it with cont()")


def _overlap(a: Tensor, b: Tensor) -> bool:
    return a.offset < b.end and b.offset < a.end
