"""Ops by name, and what a node of an op does with its operands: type and shape, bytes touched.

Shapes are numpy's (outermost first), so ggml's ``ne`` read backwards. The result of an op is a
fresh contiguous tensor unless the op writes *through* an operand; then the result is a view of
that operand's storage. Ops are declared in ``ggsched.ops``; ``docs/reference/ops.md`` states what
they mean.

``modes`` of a node has one letter for each operand and one for the result:

    ``r``  reads every byte of the range that belongs to the tensor, or of the rows that it takes
    ``w``  writes every byte, reading none
    ``p``  writes some of the bytes; the others keep their content
    ``-``  does not touch the bytes (the result stands for them)
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from typing import Final

from ggsched.errors import GraphError
from ggsched.ir.dtype import FLOAT_DTYPES, KV_DTYPES, DType, dtype_by_name
from ggsched.ir.intervals import overlap
from ggsched.ir.tensor import Tensor
from ggsched.ops import BUILT_IN as _BUILT_IN
from ggsched.ops import LIBRARIES
from ggsched.ops.record import BUILT_IN_AXES, Misfit, OpDef, Param, Params, broadcasts_to, fail

_TYPE_SETS: Final = {"float": FLOAT_DTYPES, "kv": KV_DTYPES}

_SAID: Final = {"float": "a float type", "kv": "f32, f16, bf16 or q8_0"}

_DEFINED: Final = dict(_BUILT_IN)

_LIBRARY_OPS: Final[dict[str, Mapping[str, OpDef]]] = {}

LIBRARY_KEYS: Final = frozenset({"nd.*"})
"""What ``DeviceFacts.ops`` contains for a library of which a device has every op on any type."""


def is_of_library(key: str) -> bool:
    """Whether an entry of ``DeviceFacts.ops`` is of a library, which is not loaded for that."""
    return f"{key.partition('.')[0]}.*" in LIBRARY_KEYS


class _Ops(Mapping[str, OpDef]):
    """Definitions by name. Iteration leaves out ops of libraries, which ``in`` and ``[]`` find."""

    def __getitem__(self, name: str) -> OpDef:
        found = _DEFINED.get(name)
        if found is not None:
            return found
        return _library(name.partition(".")[0])[name]

    def __contains__(self, name: object) -> bool:
        if name in _DEFINED:
            return True
        return isinstance(name, str) and name in _library(name.partition(".")[0])

    def __iter__(self) -> Iterator[str]:
        return iter(_DEFINED)

    def __len__(self) -> int:
        return len(_DEFINED)


def _library(prefix: str) -> Mapping[str, OpDef]:
    if prefix not in _LIBRARY_OPS:
        module = LIBRARIES.get(prefix)
        if module is None:
            return {}
        _LIBRARY_OPS[prefix] = import_module(module).library()
    return _LIBRARY_OPS[prefix]


OPS: Final[Mapping[str, OpDef]] = _Ops()
"""Every op by name: those above, and what ``ggsched.register_op`` has added to this process."""

BUILT_IN: Final = tuple(_BUILT_IN)
"""Names of the ops that every version of ggsched has, in the order of the documentation."""


def define(op: OpDef) -> None:
    """Add an op to ``OPS``; ``ggsched.ir.user_ops`` has checked it."""
    _DEFINED[op.name] = op


def undefine(name: str) -> None:
    """Remove an op from ``OPS``."""
    del _DEFINED[name]


def op_by_name(name: str) -> OpDef:
    """Return the definition of an op.

    Raises:
        GraphError: there is no such op.
    """
    try:
        return OPS[name]
    except KeyError:
        raise GraphError(
            f"unknown op {name!r}",
            hint=f"known ops: {', '.join(OPS)}; ggsched.register_op adds others",
        ) from None


def written_operand(op: OpDef, params: Params) -> int | None:
    """Return the operand that a node writes through, or None for a fresh result."""
    return 0 if params.get("inplace") else op.through


def operand_dtypes(op: OpDef, i: int = 0) -> tuple[DType, ...]:
    """Return the element types that an operand can have."""
    return _dtypes(op.types[i])


@lru_cache(None)
def _dtypes(types: tuple[str, ...]) -> tuple[DType, ...]:
    sets = (_TYPE_SETS.get(t) or (dtype_by_name(t),) for t in types if t != "...")
    return tuple(t for some in sets for t in some)


def infer(op: OpDef, operands: Sequence[Tensor], params: Params) -> tuple[DType, tuple[int, ...]]:
    """Return type and shape of a node's result.

    Args:
        operands: As many as it takes.
        params: All of its parameters, defaults included.

    Raises:
        GraphError: operands or parameters that do not fit the op.
    """
    has_all = len(operands) == len(op.operands)  # mostly, and then nothing is looked up
    present = range(len(operands)) if has_all else op.present(params)
    for i, (t, o) in enumerate(zip(operands, present, strict=False)):
        types = op.types[o] if o < len(op.types) else ("...",)
        if "..." not in types and t.dtype not in _dtypes(types):
            hint = "cast it with cont(dtype='f32')" if types == ("f32",) else ""
            known = " or ".join(_SAID.get(t, t) for t in types)
            raise fail(op.name, f"operand {i} must be {known}", operands, hint)
    try:
        kind, shape = op.rule(operands, **params)
    except Misfit as error:
        raise fail(op.name, str(error), operands, error.hint) from error.__cause__
    except (ValueError, IndexError, TypeError, ZeroDivisionError, OverflowError) as error:
        raise fail(op.name, str(error) or "the operands do not fit", operands) from error
    return dtype_by_name(kind), tuple(shape)


def access_modes(op: OpDef, operands: Sequence[Tensor], result: Tensor, params: Params) -> str:
    """Return how a node touches its operands and its result, one letter each.

    A write into a strided view covers its bounding range only in part, so it is ``p``.
    """
    modes = ["r"] * len(operands)
    if op.through is not None:
        modes[op.through] = "-"
    write = "p" if op.partial or not result.is_contiguous else "w"
    return "".join(modes) + write


def check_axes(op: OpDef, operands: Sequence[Tensor], result: tuple[int, ...]) -> None:
    """Refuse operands or a result with more axes than kernels of the op can address.

    Raises:
        GraphError: there is one.
    """
    for shape in (*(t.shape for t in operands), result):
        if len(shape) > op.max_axes:
            raise fail(op.name, f"takes at most {op.max_axes} axes", operands, "reshape it")


def verify_overlap(op_name: str, operands: Sequence[Tensor], result: Tensor, modes: str) -> None:
    """Refuse a node that reads bytes which it also writes, unless element by element.

    Raises:
        GraphError: an operand overlaps the result and is not the very same window, or the op
            reads more of it than the element that it writes; or two elements of the result share
            bytes, so that the last writer would win.
    """
    op = op_by_name(op_name)
    if result.may_overlap_itself:
        raise fail(op_name, f"elements of the result overlap (strides {result.strides})", operands)
    for i, (t, mode) in enumerate(zip(operands, modes, strict=False)):
        if mode != "r" or t.storage != result.storage or not overlap(t, result):
            continue
        same = (t.offset, t.shape, t.strides) == (result.offset, result.shape, result.strides)
        if not (same and i in op.may_overwrite):
            raise fail(
                op_name,
                f"operand {i} overlaps the bytes that are written",
                operands,
                "copy it with cont()",
            )


__all__ = [
    "BUILT_IN",
    "BUILT_IN_AXES",
    "LIBRARY_KEYS",
    "OPS",
    "OpDef",
    "Param",
    "Params",
    "access_modes",
    "broadcasts_to",
    "check_axes",
    "define",
    "fail",
    "infer",
    "is_of_library",
    "op_by_name",
    "operand_dtypes",
    "undefine",
    "verify_overlap",
    "written_operand",
]
