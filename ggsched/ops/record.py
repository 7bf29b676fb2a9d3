"""The record of an op: the one place where an op is declared.

Graphs, the builder's methods, placement, memory, waits, the checker, the oracle, generators of
tests, sharding and costs follow from it. Records know nothing of graphs, and load no numpy until a
reference is called.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import Parameter, Signature
from typing import Any, Final, Protocol, TypeVar

from ggsched.errors import GraphError

Param = int | float | str | bool | tuple[int, ...]
Params = Mapping[str, Param]
Shape = tuple[int, ...]

ELEMENTS: Final = "elements"
"""The family of kernels that compute element by element, and of ops that name no other."""

FUNCTIONS: Final = "functions"
"""The family of kernels that compute an exponential, a logarithm or an angle for each element."""

PRODUCTS: Final = "mul_mat"
"""The family of products with weights; the type of the weights is the variant."""

BUILT_IN_AXES: Final = 4
"""Axes of operands of built-in and user-defined ops; their kernels address no more."""

ARRAY_AXES: Final = 8
"""Axes that any tensor can have."""


class ElementType(Protocol):
    """What a rule sees of an element type."""

    @property
    def name(self) -> str:
        """As in ``ggsched.ir.dtype``."""

    @property
    def kind(self) -> str:
        """``float``, ``int``, ``uint`` or ``bool``."""

    @property
    def is_quantized(self) -> bool:
        """Whether elements are packed in blocks."""


class Operand(Protocol):
    """What a rule sees of an operand."""

    @property
    def name(self) -> str:
        """For messages."""

    @property
    def dtype(self) -> ElementType:
        """Element type."""

    @property
    def shape(self) -> Shape:
        """Extents, outermost first."""

    @property
    def size(self) -> int:
        """Number of elements."""

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""

    @property
    def is_contiguous(self) -> bool:
        """Whether elements are in row-major order without gaps."""


Rule = Callable[..., tuple[str, Sequence[int]]]
"""``rule(operands, **params)`` returns name of the type and shape of the result; ``ValueError``."""


class Misfit(ValueError):
    """Operands or parameters that do not fit an op, with a hint."""

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class OpDef:
    """An op.

    Attributes:
        name: As in graphs, plans and kernel tables.
        operands: Names of the operands in order; those ending in ``?`` are optional and present
            when the node's parameter of that name is true; a last one that ends in ``*`` stands
            for one or more.
        rule: Type and shape of the result, see ``Rule``. Number and types of operands were checked.
        reference: ``reference(*arrays, **params)`` returns the result in numpy, from float64 and
            int64 operands; the definition of correct. Operands written through are left out.
        types: Of each operand the names of its element types; ``float`` stands for those of
            weights, ``kv`` for those of caches; ``...`` leaves the others to the rule.
        through: Operand through which the op writes, or None for a fresh result. ``inplace=True``
            makes an op of ``may_overwrite`` write through operand 0.
        partial: Whether a write through leaves some bytes as they were.
        may_overwrite: Operands whose bytes the result may take over exactly (same type, shape
            and strides), because element i of the result depends on no other element of it.
        defaults: Parameters and their defaults; a parameter that is not here is an error.
        rows: (operand, ids): of that operand only the rows (its outermost axis) are read whose
            numbers the operand ``ids`` holds; what the other rows hold does not matter.
        max_axes: That operands and result can have.
        family: Family of the kernels that compute a node, whose measured rates predict its time
            (``ggsched_calibrate.samples``), with ``:variant`` where kernels of the family differ;
            or ``family(*shapes, **params)``, which returns it.
        flops: ``flops(*shapes, **params)`` returns the operations of a node, or None for two per
            element.
        sequential: ``sequential(*shapes, **params)`` returns how many parts of a node run one after
            another, each with a latency of its own, or None for one.
        nbytes: ``nbytes(operands, result, **params)`` returns the bytes that a node reads and
            writes, or None for all of its operands and result.
        decompose: ``decompose(g, *operands, **params)`` adds nodes of other ops to a builder and
            returns the result; None where the op cannot be decomposed.
        sharding: Rule of ``ggsched_shard.rules``; empty: that of the op's name, if any.
        bound: ``bound(*magnitudes, *errors, **params)`` returns the largest magnitude of the
            result and its error in units of 2**-24, from those of float operands; None where they
            are not known. Random graphs stay tame by it.
        draws: Of parameters the values among which random graphs choose.
        array: Name in the library ``nd`` of the same op, on all floats and up to eight axes.
        onnx: Name of the op of ONNX that computes the same from the same operands.
        aten: Name of that of PyTorch.
        version: Changes whenever the meaning of the op does; part of plans and digests. Empty for
            built-in ops, which have the version of ggsched.
        kernels: By name of the backend, what computes a user-defined op there.
        samples: Operands of a user-defined op that tests and random graphs use.
        doc: What the op returns, in a sentence.
    """

    name: str
    operands: tuple[str, ...]
    rule: Rule
    reference: Callable[..., Any]
    types: tuple[tuple[str, ...], ...] = ()
    through: int | None = None
    partial: bool = False
    may_overwrite: tuple[int, ...] = ()
    defaults: Mapping[str, Param] = field(default_factory=dict)
    rows: tuple[int, int] | None = None
    max_axes: int = BUILT_IN_AXES
    family: str | Callable[..., str] = ELEMENTS
    flops: Callable[..., float] | None = None
    sequential: Callable[..., float] | None = None
    nbytes: Callable[..., float] | None = None
    decompose: Callable[..., Any] | None = None
    sharding: str = ""
    bound: Callable[..., tuple[float, float]] | None = None
    draws: Mapping[str, tuple[Param, ...]] = field(default_factory=dict)
    array: str = ""
    onnx: str = ""
    aten: str = ""
    version: str = ""
    kernels: Mapping[str, Any] = field(default_factory=dict)
    samples: tuple[Any, ...] = ()
    doc: str = ""

    def full(self, params: Params) -> dict[str, Param]:
        """Return the op's parameters with the defaults filled in.

        ``inplace`` of a node is left out: it places the result and is not part of the meaning.
        """
        full = {**self.defaults, **params}
        full.pop("inplace", None)
        return full

    def present(self, params: Params) -> list[int]:
        """Return which operands a node has, by its parameters, defaults included."""
        return [i for i, o in enumerate(self.operands) if o[-1] != "?" or params.get(o[:-1])]


def op(name: str, *operands: str, doc: str = "", over: tuple[int, ...] = (), **more: Any) -> OpDef:
    """Return the record of a built-in op.

    Args:
        name: Of the op.
        operands: ``name:type|type``, f32 by default, with ``?`` before the types if optional.
        doc: See ``OpDef``.
        over: ``OpDef.may_overwrite``.
        more: Other attributes of ``OpDef``; any other name is a parameter with its default.
    """
    attributes = {k: more.pop(k) for k in tuple(more) if k in OpDef.__dataclass_fields__}
    names, _, types = zip(*(text.partition(":") for text in operands), strict=True)
    kinds = tuple(tuple((kind or "f32").split("|")) for kind in types)
    attributes |= {"defaults": attributes.get("defaults", more), "may_overwrite": over}
    return OpDef(name, names, types=kinds, doc=doc, **attributes)


# --- rules and checks that several ops share ------------------------------------------------------


def fail(op: str, what: str, operands: Sequence[Operand], hint: str = "") -> GraphError:
    """Return the error of an op whose operands do not fit; it names type and shape of each."""
    given = ", ".join(f"{t.name}:{t.dtype}{list(t.shape)}" for t in operands)
    return GraphError(f"{what}, given {given}", where=op, hint=hint)


def broadcasts_to(shape: Shape, target: Shape) -> bool:
    """Whether numpy would broadcast ``shape`` to exactly ``target``."""
    if len(shape) > len(target):
        return False
    tail = target[len(target) - len(shape) :]
    return all(a in (1, b) for a, b in zip(shape, tail, strict=True))


def need(holds: object, what: str, hint: str = "") -> None:
    """Refuse operands unless something holds.

    Raises:
        Misfit: it does not.
    """
    if not holds:
        raise Misfit(what, hint)


def same(x: Sequence[Operand], **_: Param) -> tuple[str, Shape]:
    """The result is as operand 0."""
    return x[0].dtype.name, x[0].shape


def along_rows(x: Sequence[Operand], **_: Param) -> tuple[str, Shape]:
    """The result is as operand 0, which has rows."""
    need(x[0].shape, "needs at least one axis")
    return same(x)


def gathered(x: Sequence[Operand], result: Operand, **_: Param) -> float:
    """Bytes of an op that reads of operand 0 what it writes, and all of the others."""
    return 2.0 * result.nbytes + sum(t.nbytes for t in x[1:])


def sorted_rows(length: int, taken: int) -> str:
    """Return the family of an op that orders rows of a length and takes the first of each."""
    extent = next((n for n in SORTED_LENGTHS if length <= n), SORTED_LENGTHS[-1])
    return f"sort:{'first' if 8 * taken < length and taken <= SELECTED else 'all'}-of-{extent}"


SELECTED: Final = 64
"""How many of a row kernels select; to take more they order all of it."""
SORTED_LENGTHS: Final = (256, 2048, 16384)
"""Up to which lengths of rows the rates of sorting are kept: kernels may compare all pairs."""


def nothing(*_: Shape, **__: Param) -> float:
    """Operations of an op that moves elements without computing."""
    return 0.0


# --- methods of builders --------------------------------------------------------------------------

T = TypeVar("T", covariant=True)


class Builder(Protocol[T]):
    """What methods of ops need of a builder of graphs."""

    def op(self, op_name: str, /, *operands: Any, **more: Any) -> T:
        """Add a node by the name of its op."""

    def op_with_number(
        self,
        op_name: str,
        scaled: Callable[[float], tuple[float, float]],
        a: Any,
        b: Any,
        **more: Any,
    ) -> T:
        """Add a node of an op whose second operand may be a number."""


class UnaryCall(Protocol[T]):
    """A method of an op with one operand."""

    def __call__(self, x: Any, *, inplace: bool = False, name: str = "") -> T:
        """Add a node."""


class Unary(Protocol):
    """The method of an op with one operand and no parameter, in the class of a builder."""

    def __get__(self, g: Builder[T], owner: Any = None) -> UnaryCall[T]:
        """Return the method of a builder."""


class Pair(Protocol):
    """The method of an op whose result has two parts, in the class of a builder."""

    def __get__(self, g: Builder[T], owner: Any = None) -> Callable[..., tuple[T, T]]:
        """Return the method of a builder."""


class Method(Protocol):
    """The method of any op, in the class of a builder."""

    def __get__(self, g: Builder[T], owner: Any = None) -> Callable[..., T]:
        """Return the method of a builder."""


def method(
    record: OpDef,
    *example: str,
    scaled: Callable[[float], tuple[float, float]] | None = None,
    given: Callable[..., Params] | None = None,
    first: tuple[str, ...] = (),
    parts: Callable[..., Any] | None = None,
    **spelled: str,
) -> Any:
    """Return the method of builders that adds a node of an op: a function with its documentation.

    It takes operands and parameters in the order of the record, and each by its name.

    Args:
        record: Of the op; the attribute ``record`` of the result.
        example: Lines of a doctest, the last of which is what the one before it prints.
        scaled: Factor and summand of ``scale``, which computes the op for a number as operand 1.
        given: Returns parameters that are not given, from the operands.
        first: Operands that callers give first.
        parts: Returns views of the result, from the builder, the result and the operands.
        spelled: Names of parameters by which callers know them, and those of the record.
    """
    operands = {o.rstrip("?"): o.endswith("?") for o in record.operands}
    known = {own: name for name, own in spelled.items()}
    params = {known.get(p, p): d for p, d in record.defaults.items() if p not in operands}
    order = (*dict.fromkeys((*first, *operands)), *params)
    plain = -1 if any((*operands.values(), first, given, parts)) else len(operands)

    def call(self: Builder[Any], *these: Any, name: str = "", **named: Any) -> Any:
        if len(these) == plain and not named:  # models have thousands of these
            if scaled is not None:
                return self.op_with_number(record.name, scaled, *these, name=name)
            return self.op(record.name, *these, name=name)
        values = {**dict(zip(order, these, strict=False)), **named}
        found: list[Any] = []
        more: dict[str, Any] = {}
        for operand, is_optional in operands.items():
            if operand in values and not (values[operand] is None and is_optional):
                found.append(values[operand])
                more |= {operand: True} if is_optional else {}
            values.pop(operand, None)
        more |= {spelled.get(key, key): value for key, value in values.items()}
        more = {**given(*found), **more} if given is not None else more
        found += these[len(order) :]
        if scaled is not None and len(found) == 2:
            return self.op_with_number(record.name, scaled, *found, name=name, **more)
        made = self.op(record.name, *found, name=name, **more)
        return parts(self, made, *found) if parts is not None else made

    says = {o: f"{' or '.join(t)}." for o, t in zip(operands, record.types, strict=True)}
    says |= {p: f"{d!r} by default." for p, d in params.items()}
    if 0 in record.may_overwrite:
        says["inplace"] = "The result takes the place of the first operand, which is lost."
    says["name"] = "Label of the node."
    *code, printed = example or (
        f"g.{record.name}({', '.join('x' * len(operands))}).shape",
        "(4, 64)",
    )
    lines = [record.doc, "", "Args:", *(f"    {k}: {v}" for k, v in says.items())]
    lines += ["", "Examples:", *(f"    >>> {line}" for line in code), f"    {printed}"]
    call.__name__, call.__doc__ = record.name, "\n".join(lines)
    kinds = dict.fromkeys(order, Parameter.POSITIONAL_OR_KEYWORD)
    own = [Parameter(p, kinds.get(p, Parameter.KEYWORD_ONLY)) for p in ("self", *says)]
    own[0] = Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)
    vars(call).update(__signature__=Signature(own), record=record)
    return call


def records(*places: object) -> Iterable[OpDef]:
    """Return the records of the methods of classes, in order."""
    found = (getattr(f, "record", None) for place in places for f in vars(place).values())
    return (record for record in found if record is not None)
