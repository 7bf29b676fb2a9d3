"""Which arguments a Triton kernel reads and writes, by the text of the kernel.

A value is followed by the parameters that it may point into: ``a + offsets`` points where ``a``
does, what ``tl.load`` returns points nowhere. Functions that a kernel calls are followed too.
Statements count in their order; of branches both count, of loops as many turns as find more.
"""

import ast
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

Origins = frozenset[str]
"""Names of parameters that a value may point into."""
_State = dict[str, Origins]
_NOWHERE: Final[Origins] = frozenset()
_COMPUTED: Final = "*"
"""Origin of an address that a kernel computes, such as one that it has loaded."""
_READS: Final = re.compile(r"(^|_)(load|gather|global_to)(_|$)")
_WRITES: Final = re.compile(r"(^|_)(store|scatter|to_global)(_|$)")
_OPAQUE: Final = ("inline_asm_elementwise", "extern_elementwise")
_DEPTH: Final = 8


class Modes(NamedTuple):
    """What a kernel does with memory.

    Attributes:
        reads: Parameters through which it reads.
        writes: Parameters through which it writes.
        returned: Parameters that the result of a function points into.
        cast: Parameters that are cast to a pointer; one that is a number is an address.
        is_complete: Whether it uses no address but of its parameters.
    """

    reads: Origins = _NOWHERE
    writes: Origins = _NOWHERE
    returned: Origins = _NOWHERE
    cast: Origins = _NOWHERE
    is_complete: bool = True


def modes_of(source: str, scope: Mapping[str, Any], depth: int = 0) -> Modes:
    """Return the modes of a kernel or a function of one.

    Args:
        source: Text that begins with ``def``.
        scope: What its global names mean.
        depth: Calls that lead to it; beyond eight an argument counts as read and written.

    Raises:
        SyntaxError: the text is not a function's.
    """
    (function,) = (n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef))
    walk = _Walk(scope, depth)
    names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
    names += [a.arg for a in function.args.kwonlyargs]
    walk.block(function.body, {name: frozenset({name}) for name in names})
    touched = (walk.reads | walk.writes) - {_COMPUTED}
    is_complete = _COMPUTED not in walk.reads | walk.writes
    assert touched <= set(names)
    return Modes(
        frozenset(walk.reads - {_COMPUTED}),
        frozenset(walk.writes - {_COMPUTED}),
        frozenset(walk.returned),
        frozenset(walk.cast),
        is_complete,
    )


class _Walk:
    """Follows the statements of one function."""

    def __init__(self, scope: Mapping[str, Any], depth: int) -> None:
        self._scope, self._depth = scope, depth
        self.reads: set[str] = set()
        self.writes: set[str] = set()
        self.returned: set[str] = set()
        self.cast: set[str] = set()

    # --- statements -------------------------------------------------------------------------------

    def block(self, body: Sequence[ast.stmt], state: _State) -> _State:
        """Follow statements; return what names point into behind them."""
        for statement in body:
            state = self._statement(statement, state)
        return state

    def _statement(self, statement: ast.stmt, state: _State) -> _State:
        match statement:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    state = self._assign(target, value, state)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                state = self._assign(target, value, state)
            case ast.AugAssign(target=ast.Name(id=name), value=value):
                state = {**state, name: state.get(name, _NOWHERE) | self.value(value, state)}
            case ast.If(test=test, body=body, orelse=orelse):
                self.value(test, state)
                state = _both(self.block(body, state), self.block(orelse, state))
            case ast.For() | ast.While():
                state = self._loop(statement, state)
            case ast.Return(value=ast.expr() as value):
                self.returned |= self.value(value, state)
            case _:
                for child in ast.iter_child_nodes(statement):
                    if isinstance(child, ast.expr):
                        self.value(child, state)
                for part in ("body", "orelse"):
                    state = self.block(getattr(statement, part, ()), state)
        return state

    def _loop(self, loop: ast.For | ast.While, state: _State) -> _State:
        if isinstance(loop, ast.For):
            state = _bound(loop.target, self.value(loop.iter, state), state)
        before: _State | None = None
        while state != before:
            before = state
            if isinstance(loop, ast.While):
                self.value(loop.test, state)
            state = _both(state, self.block(loop.body, state))
        return self.block(loop.orelse, state)

    def _assign(self, target: ast.expr, value: ast.expr, state: _State) -> _State:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            found = [self.value(v, state) for v in value.elts]
            for part, origins in zip(target.elts, found, strict=False):
                state = _bound(part, origins, state)
            return state
        return _bound(target, self.value(value, state), state)

    # --- values -----------------------------------------------------------------------------------

    def value(self, node: ast.expr, state: _State) -> Origins:
        """Return what a value points into, and note what its calls touch."""
        match node:
            case ast.Name(id=name):
                return state.get(name, _NOWHERE)
            case ast.Call():
                return self._call(node, state)
            case (
                ast.ListComp(elt=item, generators=loops)
                | ast.GeneratorExp(elt=item, generators=loops)
            ):
                for loop in loops:
                    state = _bound(loop.target, self.value(loop.iter, state), state)
                return self.value(item, state)
            case ast.Compare() | ast.BoolOp():
                self._all(ast.iter_child_nodes(node), state)
                return _NOWHERE
        return self._all(ast.iter_child_nodes(node), state)

    def _all(self, nodes: Iterable[ast.AST], state: _State) -> Origins:
        found = [self.value(n, state) for n in nodes if isinstance(n, ast.expr)]
        return frozenset().union(*found)

    def _call(self, call: ast.Call, state: _State) -> Origins:
        func = call.func
        name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
        args = [self.value(a, state) for a in call.args]
        named = {k.arg or "": self.value(k.value, state) for k in call.keywords}
        owner = self.value(func.value, state) if isinstance(func, ast.Attribute) else _NOWHERE
        everything = owner.union(*args, *named.values())
        pointed = owner or (args[0] if args else next(iter(named.values()), _NOWHERE))
        pointed = named.get("pointer", named.get("desc", pointed))
        called = self._resolved(func)
        if called is not None:
            return self._applied(called, args, named, everything)
        pointed = everything if "global" in name else pointed  # copies to and from shared memory
        is_atomic = "atomic" in name
        if is_atomic or _READS.search(name) or _WRITES.search(name):
            self.reads |= pointed if is_atomic or _READS.search(name) else _NOWHERE
            self.writes |= pointed if is_atomic or _WRITES.search(name) else _NOWHERE
            return _NOWHERE
        if name in _OPAQUE:
            self.reads |= everything
            self.writes |= everything
            return _NOWHERE
        if name in ("to", "cast") and "pointer_type" in ast.unparse(call):
            self.cast |= pointed
            return pointed or frozenset({_COMPUTED})
        return everything

    def _resolved(self, func: ast.expr) -> Any:
        """Return the function of a kernel that is called, if it is one."""
        found = self._meant(func)
        return found if text_of(found) is not None else None

    def _meant(self, name: ast.expr) -> Any:
        """Return what a name means, with dots or without; None of anything else."""
        if isinstance(name, ast.Name):
            return self._scope.get(name.id)
        if isinstance(name, ast.Attribute):
            return getattr(self._meant(name.value), name.attr, None)
        return None

    def _applied(
        self, called: Any, args: list[Origins], named: dict[str, Origins], everything: Origins
    ) -> Origins:
        if self._depth >= _DEPTH:
            self.reads |= everything
            self.writes |= everything
            return everything
        modes = modes_of(text_of(called) or "", scope_of(called), self._depth + 1)
        given = {**dict(zip(called.arg_names, args, strict=False)), **named}

        def meant(parameters: Origins) -> Origins:
            return frozenset().union(*(given.get(p, _NOWHERE) for p in parameters))

        self.reads |= meant(modes.reads)
        self.writes |= meant(modes.writes)
        self.cast |= meant(modes.cast)
        if not modes.is_complete:
            self.writes.add(_COMPUTED)
        return meant(modes.returned)


def _both(one: _State, other: _State) -> _State:
    return {n: one.get(n, _NOWHERE) | other.get(n, _NOWHERE) for n in {*one, *other}}


def _bound(target: ast.expr, origins: Origins, state: _State) -> _State:
    names = [n.id for n in ast.walk(target) if isinstance(n, ast.Name)]
    return {**state, **dict.fromkeys(names, origins)}


# --- functions of Triton --------------------------------------------------------------------------


def text_of(function: Any) -> str | None:
    """Return the text of a function that Triton compiles or interprets; None of any other."""
    if not hasattr(function, "arg_names"):
        return None
    text = getattr(function, "src", None)
    if isinstance(text, str):
        return text
    return None if not hasattr(function, "fn") else _source(function.fn)


def _source(function: Callable[..., Any]) -> str | None:
    from inspect import getsource
    from textwrap import dedent

    try:
        text = dedent(getsource(function))
    except (OSError, TypeError):
        return None
    return text[text.index("def ") :]


def scope_of(function: Any) -> dict[str, Any]:
    """Return what the names of a function mean that are not its own."""
    plain = function.fn
    cells = zip(plain.__code__.co_freevars, plain.__closure__ or (), strict=True)
    return {**plain.__globals__, **{name: cell.cell_contents for name, cell in cells}}
