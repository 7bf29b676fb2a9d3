"""What each op means: its operands, its shape rule, and which bytes it touches.

Shapes are numpy's (outermost first), so ggml's ``ne`` read backwards. The result of an op is a
fresh contiguous tensor unless the op writes *through* an operand; then the result is a view of
that operand's storage. The numerical meaning is stated in ``docs/reference/ops.md`` and computed
by ``ggsched_testing.oracle.interpreter``.

``modes`` of a node has one letter for each operand and one for the result:

    ``r``  reads every byte of the range that belongs to the tensor, or of the rows that it takes
    ``w``  writes every byte, reading none
    ``p``  writes some of the bytes; the others keep their content
    ``-``  does not touch the bytes (the result stands for them)
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Final

from ggsched.errors import GraphError
from ggsched.ir.intervals import overlap
from ggsched.ir.shapes import SHAPE_RULES, Param, Params, ShapeRule, broadcasts_to, fail
from ggsched.ir.tensor import Tensor

BUILT_IN_AXES: Final = 4
"""Axes of operands of built-in and user-defined ops; their kernels address no more."""


@dataclass(frozen=True, slots=True)
class OpDef:
    """Definition of an op.

    Attributes:
        name: As in graphs, plans and kernel tables.
        operands: Names of the operands in order; those ending in ``?`` are optional and present
            when the node's parameter of that name is true; a last one that ends in ``*`` stands
            for one or more.
        infer: Checks operands and parameters, gives type and shape of the result.
        through: Operand through which the op writes, or None for a fresh result. ``inplace=True``
            makes an op of ``may_overwrite`` write through operand 0.
        partial: Whether a write through leaves some bytes as they were.
        may_overwrite: Operands whose bytes the result may take over exactly (same type, shape
            and strides), because element i of the result depends on no other element of it.
        max_axes: That operands and result can have.
        defaults: Parameters and their defaults; a parameter that is not here is an error.
        rows: (operand, ids): of that operand only the rows (its outermost axis) are read whose
            numbers the operand ``ids`` holds; what the other rows hold does not matter.
        user: What the caller of ``register_op`` gave beside; None for built-in ops.
    """

    name: str
    operands: tuple[str, ...]
    infer: ShapeRule
    through: int | None = None
    partial: bool = False
    may_overwrite: tuple[int, ...] = ()
    defaults: Mapping[str, Param] | None = None
    rows: tuple[int, int] | None = None
    user: "UserOp | None" = None
    max_axes: int = BUILT_IN_AXES

    def full(self, params: Params) -> dict[str, Param]:
        """Return the op's parameters with the defaults filled in.

        ``inplace`` of a node is left out: it places the result and is not part of the meaning.
        """
        full = {**(self.defaults or {}), **params}
        full.pop("inplace", None)
        return full

    @property
    def version(self) -> str:
        """The version of a user-defined op; empty for built-in ops."""
        return self.user.version if self.user is not None else ""


@dataclass(frozen=True, slots=True)
class UserOp:
    """What ``register_op`` keeps of an op beyond its definition.

    Attributes:
        version: Changes whenever the meaning of the op does; part of plans and digests.
        dtypes: Names of the element types that the first operand can have.
        reference: ``reference(*arrays, **params)`` returns the result in numpy, from float64 and
            int64 operands; the definition of correct.
        kernels: By name of the backend, what computes it there.
        flops: ``flops(*shapes, **params)`` returns the operations of a node, or None for two per
            element.
        samples: Operands that tests and random graphs use.
        magnitude: ``magnitude(*magnitudes)`` returns the largest magnitude of the result, or None
            where it is not known; then random graphs do not compute with results.
        decompose: ``decompose(g, *operands, **params)`` decomposes the op into others, see
            ``ggsched.ir.decompositions``; None where it cannot be.
    """

    version: str
    dtypes: tuple[str, ...]
    reference: Callable[..., Any]
    kernels: Mapping[str, Any]
    flops: Callable[..., float] | None = None
    samples: tuple[Any, ...] = ()
    magnitude: Callable[..., float] | None = None
    decompose: Callable[..., Tensor] | None = None


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


_ATTENTION_DEFAULTS: Final[dict[str, Param]] = {
    "scale": 1.0,
    "soft_cap": 0.0,
    "mask": False,
    "sinks": False,
    "bounds": False,
}


def _op(
    name: str,
    *operands: str,
    through: int | None = None,
    partial: bool = False,
    over: tuple[int, ...] = (),
    rows: tuple[int, int] | None = None,
    **defaults: Param,
) -> OpDef:
    return OpDef(name, operands, SHAPE_RULES[name], through, partial, over, defaults, rows)


def _table() -> dict[str, OpDef]:
    ops = [
        _op("get_rows", "table", "ids", rows=(0, 1)),
        _op("set_rows", "dst", "src", "ids", through=0, partial=True),
        _op("mul_mat", "w", "x"),
        _op("mul_mat_id", "w", "x", "ids", rows=(0, 2)),
        _op("add_id", "x", "bias", "ids", over=(0,), rows=(1, 2)),
        *(_op(name, "a", "b", over=(0, 1)) for name in ("add", "sub", "mul", "div")),
        _op("scale", "x", over=(0,), scale=1.0, bias=0.0),
        _op("rms_norm", "x", over=(0,), eps=1e-5),
        _op("norm", "x", over=(0,), eps=1e-5),
        replace(_op("rope", "x", "positions", "freq_factors?", over=(0,)), defaults=_ROPE_DEFAULTS),
        _op("soft_max", "x", "mask?", "sinks?", over=(0,), scale=1.0, mask=False, sinks=False),
        replace(
            _op("attention", "k", "v", "q", "mask?", "sinks?", "bounds?"),
            defaults=_ATTENTION_DEFAULTS,
        ),
        _op("silu", "x", over=(0,)),
        _op("gelu", "x", over=(0,)),
        _op("sigmoid", "x", over=(0,)),
        _op("tanh", "x", over=(0,)),
        _op("softplus", "x", over=(0,)),
        _op("swiglu", "gate", "up", over=(0, 1)),
        _op("swiglu_oai", "gate", "up", over=(0, 1), alpha=1.702, limit=7.0),
        _op("argsort", "x", descending=False),
        _op("top_k", "x", k=1),
        _op("sum_rows", "x"),
        _op("clamp", "x", over=(0,), min=0.0, max=0.0),
        _op("cpy", "src", "dst", through=1),
        _op("cont", "x", dtype=""),
        _op("concat", "a", "b", axis=0),
        _op("repeat", "x", shape=()),
        _op("short_conv", "state", "x", "w", "slots", "positions"),
        _op(
            "linear_attention",
            *("state", "q", "k", "v", "decay", "slots", "positions", "beta?"),
            scale=1.0,
            tiled=False,
            beta=False,
        ),
    ]
    return {op.name: op for op in ops}


_DEFINED: Final = _table()

_LIBRARIES: Final = {"nd": "ggsched.oplib", "task": "ggsched.oplib.tasks"}
"""Libraries of ops by prefix, and the module whose ``library()`` returns the definitions.

They are loaded when a name with the prefix is first looked up: they need numpy, which planning of
other graphs does not.
"""

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
        module = _LIBRARIES.get(prefix)
        if module is None:
            return {}
        _LIBRARY_OPS[prefix] = import_module(module).library()
    return _LIBRARY_OPS[prefix]


OPS: Final[Mapping[str, OpDef]] = _Ops()
"""Every op by name: those above, and what ``ggsched.register_op`` has added to this process."""

BUILT_IN: Final = tuple(_DEFINED)
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
    "ShapeRule",
    "UserOp",
    "access_modes",
    "broadcasts_to",
    "check_axes",
    "define",
    "is_of_library",
    "op_by_name",
    "undefine",
    "verify_overlap",
    "written_operand",
]
