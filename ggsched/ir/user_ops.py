"""Ops that are defined outside ggsched.

    ggsched.register_op(
        "sqr", version="1", operands=("x",), in_place=(0,),
        reference=lambda x: x * x,
        kernels={"cpu": np.square},
        samples=[Sample(((3, 8),))],
    )
    y = g.op("sqr", x)

A registered op is used like a built-in one: graphs, placement, memory, waits, checker and
simulator follow from its entry in ``ggsched.ir.ops.OPS``. Devices that are opened after the
registration support it if ``kernels`` names their backend.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from ggsched.errors import GraphError, UsageError
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.decompositions import Decomposition, apply_decomposition
from ggsched.ir.dtype import dtype_by_name
from ggsched.ir.ops import BUILT_IN, OPS, OpDef, Param, broadcasts_to, define, undefine
from ggsched.ir.params import canonical_params
from ggsched.ops.record import ELEMENTS, Misfit, Operand, Rule, need

NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,39}")

LeafKind = Literal["plain", "positive", "ranked", "mask", "ids"]

DTypeRule = str | Callable[..., str]


@dataclass(frozen=True, slots=True)
class Sample:
    """Operands on which tests run an op.

    Attributes:
        shapes: Shape of each operand.
        params: Parameters that are not at their defaults.
        kinds: By name of an operand, the kind of its elements: ``plain`` in [-1, 1] (the
            default of floats), ``positive`` in [1/4, 1], ``ranked`` (rows of well separated
            elements), ``mask`` (0 and -inf), ``ids`` (the only one for i32).
        bounds: By name of an i32 operand, one more than its largest element. Default: 2.

    Examples:
        >>> from ggsched import Sample
        >>> Sample([(40, 8), (5,)], {"eps": 0.5}, bounds={"ids": 40}).bounds["ids"]
        40
    """

    shapes: Sequence[Sequence[int]]
    params: Mapping[str, Param] = field(default_factory=dict)
    kinds: Mapping[str, LeafKind] = field(default_factory=dict)
    bounds: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SourceKernel:
    """A function in OpenCL C or CUDA C++ that each work item (thread) of a kernel calls.

    Operands and result are contiguous: strided ones are copied first.

    Attributes:
        source: The source. Types: ``f32`` is float, ``i32`` is int, ``f16`` and ``bf16`` are 16-bit
            words (``ushort_t``), quantised operands are bytes (``uchar_t``).
        name: The function (OpenCL: ``void``; CUDA: ``__device__ void``).
        args: The meaning of each argument: the name of an operand or ``out`` (a pointer to its
            first element), ``size:NAME`` (its number of elements, 64-bit), ``extent:NAME:AXIS``
            (64-bit; a negative axis counts from the end), or the name of a parameter (float:
            32-bit, int and bool: 32-bit).
        items: ``items(*shapes, out)`` returns the number of work items (threads) of a launch, which
            is rounded up to groups of ``lanes``; None: one for each element of the result.
        lanes: Work items of a group (threads of a block).

    Examples:
        >>> from ggsched import SourceKernel
        >>> text = '''void twice(__global const float *x, __global float *out, long n) {
        ...   long i = get_global_id(0);
        ...   if (i < n) out[i] = 2 * x[i];
        ... }'''
        >>> SourceKernel(text, "twice", ("x", "out", "size:out")).lanes
        128
    """

    source: str
    name: str
    args: tuple[str, ...]
    items: Callable[..., int] | None = None
    lanes: int = 128


def register_op(
    name: str,
    *,
    version: str,
    operands: Sequence[str],
    reference: Callable[..., Any],
    shape: Callable[..., Sequence[int]] | None = None,
    dtype: DTypeRule = "f32",
    params: Mapping[str, Param] | None = None,
    in_place: Sequence[int] = (),
    rows: tuple[int, int] | None = None,
    family: str = ELEMENTS,
    flops: Callable[..., float] | None = None,
    magnitude: Callable[..., float] | None = None,
    kernels: Mapping[str, Any] | None = None,
    decompose: Decomposition | None = None,
    samples: Sequence[Sample] = (),
) -> None:
    """Add an op to this process.

    Args:
        name: Lower-case letters, digits and ``_``.
        version: Part of plans and digests: change it whenever the meaning of the op changes.
        operands: Names, with element types where they are not f32: ``ids:i32``, ``w:f32|f16``.
        reference: ``reference(*arrays, **params)`` returns the result as an array. It gets float64
            and int64 arrays and defines what is correct.
        shape: ``shape(*shapes, **params)`` returns the shape of the result and raises
            ``ValueError`` for operands that do not fit. Default: operands broadcast to the first.
        dtype: Element type of the result, f32 or i32 or f16, or ``dtype(*dtypes, **params)``.
        params: Parameters and their defaults; a node may set no others.
        in_place: Operands whose bytes the result may take over: element i of the result must
            depend on no other element of such an operand.
        rows: (operand, ids): only the rows of that operand that ``ids`` names are read.
        family: Of the kernels that are as fast, for predictions (``OpDef.family``).
        flops: ``flops(*shapes, **params)``, for predictions. Default: two for each element.
        magnitude: ``magnitude(*magnitudes)`` returns a bound of the result's elements, so that
            random graphs can use the result.
        kernels: By backend. ``cpu``: ``kernel(*arrays, out=array, **params)`` on numpy views, of
            which only ``out`` is writable, like numpy's ufuncs. ``opencl``, ``cuda``: a
            ``SourceKernel``, or ``kernel(stream, *arrays, out=array, **params)``, which enqueues
            commands on the stream and does not wait; it gets ``DeviceArray``s. Others: see the
            documentation of the plug-in.
        decompose: ``decompose(g, *operands, **params)`` decomposes the op: it adds nodes to a
            ``GraphBuilder`` and returns a result of the same type and shape. Devices without a
            kernel for the op, but with kernels for these nodes, may run it so.
        samples: Operands for tests and random graphs; at least one.

    Raises:
        UsageError: a name that is taken, or arguments that do not fit each other.

    Examples:
        >>> import numpy as np
        >>> from ggsched import GraphBuilder, Sample, Scheduler, register_op, unregister_op
        >>> register_op(
        ...     "twice",
        ...     version="1",
        ...     operands=("x",),
        ...     reference=lambda x: 2 * x,
        ...     kernels={"cpu": lambda x, *, out: np.multiply(x, 2, out=out)},
        ...     samples=[Sample([(3, 8)])],
        ... )
        >>> g = GraphBuilder()
        >>> graph = g.build(y=g.op("twice", g.input("x", (2,))))
        >>> with Scheduler(["cpu:0"]) as scheduler:
        ...     scheduler.run(graph, {"x": np.array([1, 2], np.float32)})["y"].tolist()
        [2.0, 4.0]
        >>> unregister_op("twice")
    """
    where = f"op {name!r}"
    if not NAME.fullmatch(name):
        raise UsageError("invalid name", where=where, hint="lower-case letters, digits and _")
    if name in OPS:
        kind = "a built-in op" if name in BUILT_IN else "registered already"
        raise UsageError(f"the name is taken: {kind}", where=where, hint="see unregister_op")
    if not version:
        raise UsageError("the version is empty", where=where)
    names, types = _operands(where, operands)
    for i in (*in_place, *(rows or ())):
        if not 0 <= i < len(names):
            raise UsageError(f"there is no operand {i}", where=where)
    op = OpDef(
        name,
        names,
        _rule(shape, dtype),
        reference,
        types,
        may_overwrite=tuple(in_place),
        defaults=dict(params or {}),
        rows=rows,
        family=family,
        flops=flops,
        decompose=decompose,
        bound=_bound(magnitude) if magnitude is not None else None,
        version=version,
        kernels=dict(kernels or {}),
        samples=tuple(samples),
    )
    for backend, kernel in op.kernels.items():
        _check_kernel(where, backend, kernel, op)
    _check_samples(where, op)
    _check_decomposition(where, op, types)
    define(op)


def unregister_op(name: str) -> None:
    """Remove a user-defined op. Graphs and plans that contain it can no longer be used.

    Args:
        name: Of the op.

    Raises:
        UsageError: no such op, or a built-in one.

    Examples:
        >>> from ggsched import Sample, register_op, unregister_op
        >>> how = {"operands": ("x",), "reference": lambda x: x, "samples": [Sample([(3,)])]}
        >>> register_op("same", version="1", **how)
        >>> unregister_op("same")
    """
    if name not in OPS or name in BUILT_IN:
        raise UsageError("it is not a user-defined op", where=f"op {name!r}")
    undefine(name)


def user_ops() -> tuple[OpDef, ...]:
    """Return the definitions of all user-defined ops."""
    return tuple(op for op in OPS.values() if op.version)


def _operands(
    where: str, operands: Sequence[str]
) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Split ``name:type|type`` into names and types."""
    names, types = [], []
    for text in operands:
        name, _, kinds = text.partition(":")
        listed = tuple(kinds.split("|")) if kinds else ("f32",)
        for kind in listed:
            try:
                dtype_by_name(kind)
            except GraphError as error:
                raise UsageError(f"operand {name!r}: {error.what}", where=where) from None
        if not NAME.fullmatch(name) or name == "out" or name in names:
            raise UsageError(f"invalid name of an operand: {name!r}", where=where)
        names.append(name)
        types.append(listed)
    if not names:
        raise UsageError("it needs an operand", where=where)
    return tuple(names), tuple(types)


def _rule(shape: Callable[..., Sequence[int]] | None, dtype: DTypeRule) -> Rule:
    """Return the rule for type and shape of a user-defined op."""

    def rule(x: Sequence[Operand], **params: Param) -> tuple[str, Sequence[int]]:
        shapes = [t.shape for t in x]
        if shape is None:
            fits = all(broadcasts_to(s, shapes[0]) for s in shapes[1:])
            need(fits, "operands do not broadcast to operand 0")
            found: Any = shapes[0]
        else:
            found = _told(shape, shapes, params)
        kind = dtype
        if not isinstance(kind, str):
            kind = str(_told(kind, [t.dtype.name for t in x], params))
        result = dtype_by_name(kind)
        can_be = not result.is_quantized and result.name != "bf16"
        need(can_be, f"the result cannot be {result}", "f32, f16 or i32")
        fits = all(isinstance(n, int) and n >= 0 for n in found)
        need(fits, f"its shape rule returned {found!r}")
        return kind, found

    return rule


def _told(rule: Callable[..., Any], given: Sequence[Any], params: Mapping[str, Param]) -> Any:
    try:
        found = rule(*given, **params)
        return found if isinstance(found, str) else tuple(found)
    except GraphError:
        raise
    except Exception as error:
        raise Misfit(f"{type(error).__name__}: {error}") from error


def _bound(magnitude: Callable[..., float]) -> Callable[..., tuple[float, float]]:
    """Return bounds of a result whose errors are at most a few times those of its operands."""

    def bound(*given: float, **_: Param) -> tuple[float, float]:
        count = len(given) // 2
        mag = float(magnitude(*given[:count]))
        return mag, 4 * sum(given[count:]) + 8 * mag

    return bound


def _check_kernel(where: str, backend: str, kernel: Any, op: OpDef) -> None:
    """Refuse a kernel whose declaration does not fit the op."""
    if not isinstance(kernel, SourceKernel):
        if backend in ("opencl", "cuda") and not callable(kernel):
            what = f"the kernel for {backend!r} must be a SourceKernel or a function"
            raise UsageError(what, where=where)
        if backend == "cpu" and not callable(kernel):
            raise UsageError("the kernel for 'cpu' must be callable", where=where)
        return
    known = {*op.operands, "out"}
    if not 0 < kernel.lanes <= 1024:
        raise UsageError(f"{kernel.lanes} lanes in a group", where=where, hint="from 1 to 1,024")
    for text in kernel.args:
        head, _, rest = text.partition(":")
        if head in ("size", "extent") and rest:
            target = rest.partition(":")[0]
        else:
            target = "out" if text in (op.defaults) else text
        if target not in known:
            raise UsageError(
                f"argument {text!r} of the kernel for {backend!r} is not known",
                where=where,
                hint=f"operands: {', '.join(op.operands)}, out; size:NAME, extent:NAME:AXIS; "
                f"parameters: {', '.join(op.defaults) or 'none'}",
            )


def _check_samples(where: str, op: OpDef) -> None:
    if not op.samples:
        raise UsageError("it needs a sample, for its tests", where=where, hint="samples=[Sample()]")
    for sample in op.samples:
        if len(sample.shapes) != len(op.operands):
            raise UsageError(
                f"a sample has {len(sample.shapes)} shapes for {len(op.operands)} operands",
                where=where,
            )
        unknown = {*sample.kinds, *sample.bounds} - {*op.operands}
        if unknown:
            raise UsageError(f"a sample names {min(unknown)!r}, not an operand", where=where)


def _check_decomposition(where: str, op: OpDef, types: Sequence[Sequence[str]]) -> None:
    """Refuse a decomposition that gives another type or shape for a sample, or is not one."""
    if op.decompose is None:
        return
    for sample in op.samples:
        g = GraphBuilder(op.name)
        operands = [
            g.input(name, tuple(shape), kinds[0])
            for name, shape, kinds in zip(op.operands, sample.shapes, types, strict=True)
        ]
        params = op.full(canonical_params(op, sample.params))
        try:
            apply_decomposition(g, op, operands, params)
        except GraphError as error:
            raise UsageError(error.what, where=where, hint=error.hint) from error


__all__ = [
    "Sample",
    "SourceKernel",
    "register_op",
    "unregister_op",
    "user_ops",
]
