"""What is public, what the API reference has: read from sources, nothing is imported."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.meta.repository import ROOT, own_files

API = ROOT / "docs" / "reference" / "api"
DIRECTIVE = re.compile(r"^::: (ggsched[\w.]*)$", re.M)
SNIPPET = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)

Name = tuple[str, str]
"""(module, name in it)."""


def promised() -> Iterator[tuple[Name, str]]:
    """Yield each public name and where it is promised: in ``__all__``, a page or an example."""
    for path in own_files():
        place = path.relative_to(ROOT).as_posix()
        if path.name == "__init__.py" and place.startswith(("ggsched/", "apps/")):
            parts = path.relative_to(ROOT).parts[:-1]
            module = ".".join(parts[parts[0] == "apps" :])
            for name in _all_of(_tree(path)):
                yield (module, name), place
        elif path.suffix == ".md" and (place == "README.md" or place.startswith("docs/")):
            for code in SNIPPET.findall(path.read_text(encoding="utf-8")):
                yield from ((name, place) for name in _imported(code))
        elif path.suffix == ".py" and place.startswith("examples/"):
            yield from ((name, place) for name in _imported(path.read_text(encoding="utf-8")))


def documented() -> set[Name]:
    """Return all names that the pages of the reference have."""
    found: set[Name] = set()
    for page in API.glob("*.md"):
        for target in DIRECTIVE.findall(page.read_text(encoding="utf-8")):
            if source_of(target) is not None:
                found |= {(target, name) for name in own_names(target)}
            else:
                module, _, name = target.rpartition(".")
                assert name in own_names(module), f"{page.name}: {target} does not exist"
                found.add((module, name))
    return found


def home_of(name: Name) -> Name | None:
    """Return where a name is defined; None for a module or another package's."""
    module, own = name
    if source_of(f"{module}.{own}") is not None or own == "__version__":
        return None
    if own in own_names(module):
        return name
    source = source_of(module)
    assert source is not None, f"there is no module {module}"
    for node in ast.walk(_tree(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                if (alias.asname or alias.name) == own:
                    return home_of((node.module, alias.name))
    raise AssertionError(f"{module} has no {own}")


@cache
def own_names(module: str) -> frozenset[str]:
    """Return the public names that a module defines itself."""
    source = source_of(module)
    names: set[str] = set()
    for node in _tree(source).body if source else ():
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                names.add(name)
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
            case ast.Assign(targets=targets):
                names |= {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
    return frozenset(name for name in names if not name.startswith("_"))


def source_of(module: str) -> Path | None:
    """Return the file of a module of ggsched, or None if there is none."""
    parts = module.split(".")
    for path in (ROOT.joinpath(*parts), ROOT.joinpath("apps", *parts)):
        for found in (path.with_suffix(".py"), path / "__init__.py"):
            if found.is_file():
                return found
    return None


def without_docstring(module: str) -> Iterator[str]:
    """Yield public classes, functions and methods of a module that say nothing of themselves."""
    source = source_of(module)
    for node in _tree(source).body if source else ():
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            inner = node.body if isinstance(node, ast.ClassDef) else ()
            for part in (node, *inner):
                if isinstance(part, ast.ClassDef | ast.FunctionDef):
                    is_named = not part.name.startswith("_")
                    if is_named and not ast.get_docstring(part):
                        yield f"{module}.{node.name}.{part.name}"


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _all_of(tree: ast.Module) -> list[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []


def _imported(code: str) -> Iterator[Name]:
    try:
        tree = ast.parse(code)
    except SyntaxError:  # a piece of a file that is shown, with dots in it
        return
    for node in ast.walk(tree):
        module = str(getattr(node, "module", ""))
        if isinstance(node, ast.ImportFrom) and source_of(module.partition(".")[0]) is not None:
            yield from ((str(node.module), alias.name) for alias in node.names)
