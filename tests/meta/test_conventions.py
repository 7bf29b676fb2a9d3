"""Conventions that old code does not keep yet: the number of offenders may shrink, never grow."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.meta.repository import CODE, name_of, python_files

HEIRS = 23
MUTABLE = 9
"""Offenders today. Whoever removes some lowers the number."""

OPEN = {"Protocol", "Generic", "ABC", "Struct", "NamedTuple", "TypedDict", "Enum", "StrEnum"}
"""Classes of others that are made to be inherited from."""
MUTATORS = {
    "add", "append", "clear", "discard", "extend", "insert", "pop", "popitem", "remove",
    "setdefault", "update",
}  # fmt: skip
CONTAINERS = {"dict", "list", "set", "defaultdict", "deque", "Counter", "WeakSet"}
MAY_CHANGE = re.compile(r"^ +global |^\w+(: .*)? = ([{\[]|\w*\.?\w+\(\)|defaultdict)", re.MULTILINE)
BASES = "ggsched/backend/base"


def last_name(node: ast.expr) -> str:
    """Return ``C`` of ``C``, ``m.C`` and ``C[T]``."""
    if isinstance(node, ast.Subscript):
        return last_name(node.value)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def is_abstract(member: ast.stmt) -> bool:
    decorators = getattr(member, "decorator_list", ())
    return any(last_name(decorator) == "abstractmethod" for decorator in decorators)


def heirs(sources: dict[str, str]) -> Iterator[str]:
    """Yield the classes that inherit from a concrete class of the sources.

    Exceptions, protocols and the bases for backends are made to be inherited from, and so is what
    has an abstract method.
    """
    classes = {
        (name, node.name): node
        for name, text in sources.items()
        for node in (ast.parse(text).body if "class " in text else ())
        if isinstance(node, ast.ClassDef)
    }
    concrete = {
        node.name
        for (name, _), node in classes.items()
        if not name.startswith(BASES)
        and not {last_name(base) for base in node.bases} & OPEN
        and not any(last_name(base).endswith(("Error", "Exception")) for base in node.bases)
        and not any(is_abstract(member) for member in node.body)
    }
    for (name, own), node in classes.items():
        for base in node.bases:
            is_foreign = isinstance(base, ast.Attribute)  # such as click.Group
            if last_name(base) in concrete and not is_foreign:
                yield f"{name}: {own} inherits from {last_name(base)}"


def mutable(sources: dict[str, str]) -> Iterator[str]:
    """Yield the names of modules that functions of the same module change."""
    for name, text in sources.items():
        if not MAY_CHANGE.search(text):
            continue
        tree = ast.parse(text)
        kept = set(_containers(tree))
        changed = set()
        for function in (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)):
            for node in ast.walk(function):
                if isinstance(node, ast.Global):
                    changed |= set(node.names)
                changed |= kept & set(_changes(node))
        yield from (f"{name}: {variable}" for variable in sorted(changed))


def _containers(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        target = node.target if isinstance(node, ast.AnnAssign) else None
        if isinstance(node, ast.Assign):
            (target, *_) = node.targets
        if not isinstance(target, ast.Name):
            continue
        value = node.value
        is_call = isinstance(value, ast.Call) and last_name(value.func) in CONTAINERS
        if is_call or isinstance(value, ast.Dict | ast.List | ast.Set):
            yield target.id


def _changes(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
        yield last_name(node.value)
    elif (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in MUTATORS
    ):
        yield last_name(node.func.value)


def own_sources() -> dict[str, str]:
    return {name_of(path): path.read_text(encoding="utf-8") for path in python_files(*CODE)}


@pytest.mark.parametrize(("find", "most"), [(heirs, HEIRS), (mutable, MUTABLE)])
def test_no_more_than_there_were(find, most):
    found = sorted(find(own_sources()))
    assert len(found) <= most, "\n".join(found)


HEIR = """
class A: pass
class Fails(Exception): pass
class P(Protocol): pass
class B(A): pass
class C(Fails): pass
class D(P): pass
"""
STATE = """
SEEN = set()
TABLE: Final = {"a": 1}
COUNT = 0
def f(x):
    global COUNT
    SEEN.add(x)
    return TABLE["a"]
"""


def test_offenders_are_found():
    assert list(heirs({"m.py": HEIR})) == ["m.py: B inherits from A"]
    assert list(heirs({f"{BASES}.py": HEIR})) == []
    assert list(mutable({"m.py": STATE})) == ["m.py: COUNT", "m.py: SEEN"]
