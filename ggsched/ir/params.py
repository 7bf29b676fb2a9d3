"""Parameters of nodes in one canonical form, so that equal graphs have equal digests."""

from collections.abc import Mapping
from operator import index

from ggsched.errors import GraphError
from ggsched.ir.ops import OpDef, Param


def canonical_params(op: OpDef, given: Mapping[str, object]) -> dict[str, Param]:
    """Return the parameters that are not at their default, as plain Python values.

    Each takes the type of its default: numbers of numpy become ``int`` and ``float``, lists of
    extents become tuples. ``inplace=True`` is kept for ops that can overwrite operand 0.

    Raises:
        GraphError: an unknown parameter, a value of another type, NaN (which equals nothing, not
            even itself), or ``inplace`` for an op that cannot.
    """
    defaults = op.defaults
    out: dict[str, Param] = {}
    for name, value in given.items():
        if name == "inplace":
            if value not in (True, False) or (value and 0 not in op.may_overwrite):
                raise GraphError("cannot work in place", where=op.name)
            if value:
                out[name] = True
            continue
        if name not in defaults:
            known = ", ".join(defaults) or "none"
            raise GraphError(f"no parameter {name!r}", where=op.name, hint=f"there are: {known}")
        plain = _like(op.name, name, value, defaults[name])
        if plain != defaults[name]:
            out[name] = plain
    return out


def _like(op: str, name: str, value: object, default: Param) -> Param:
    """Return ``value`` as the type of ``default``."""
    plain: Param | None = None
    try:
        match default:
            case bool() | str():
                plain = value if isinstance(value, type(default)) else None
            case int():
                plain = None if isinstance(value, bool) else index(value)  # type: ignore[arg-type]
            case float():
                number = not isinstance(value, (bool, str, bytes))
                plain = float(value) if number else None  # type: ignore[arg-type]
            case tuple():
                listed = isinstance(value, (tuple, list))
                plain = tuple(index(n) for n in value) if listed else None  # type: ignore[attr-defined]
    except (TypeError, ValueError, OverflowError):
        plain = None
    if plain is None or plain != plain:
        if isinstance(default, tuple):
            what = f"{value!r} of parameter {name} are not whole numbers"
            raise GraphError(what, where=op, hint="write a tuple, as in (4, 64)")
        kind = type(default).__name__
        raise GraphError(f"parameter {name}={value!r} must be {kind}, not NaN", where=op)
    return plain


def check_arity(op: OpDef, params: Mapping[str, Param], given: int) -> None:
    """Check the number of operands, counting the optional ones that ``params`` announce.

    A last operand that ends in ``*`` stands for one or more.

    Raises:
        GraphError: another number was given.
    """
    full = op.full(params)
    if op.operands and op.operands[-1].endswith("*"):
        if given < len(op.operands):
            raise GraphError(f"takes {', '.join(op.operands)}, not {given}", where=op.name)
        return
    wanted = len(op.present(full))
    if given != wanted:
        raise GraphError(
            f"takes {wanted} operands ({', '.join(op.operands)}), not {given}", where=op.name
        )
