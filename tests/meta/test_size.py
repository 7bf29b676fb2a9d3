import ast

from tests.meta.repository import name_of, python_files

MAX_FILE = 400
MAX_FUNCTION = 60
FOLDERS = ("ggsched", "backends", "tests", "benchmarks", "examples")

# File, or file::function, and the reason. The list may only shrink.
ALLOWED: dict[str, str] = {}


def _long_functions(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > MAX_FUNCTION:
                yield f"{name_of(path)}::{node.name}", lines


def _too_long():
    found = {}
    for path in python_files(*FOLDERS):
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > MAX_FILE:
            found[name_of(path)] = lines
        found.update(_long_functions(path))
    return found


def test_nothing_is_too_long():
    over = {place: lines for place, lines in _too_long().items() if place not in ALLOWED}
    assert not over, f"split these, or add them to ALLOWED with a reason: {over}"


def test_exceptions_are_still_needed():
    idle = set(ALLOWED) - set(_too_long())
    assert not idle, f"they have become short enough, remove them from ALLOWED: {idle}"
    assert all(ALLOWED.values())
