"""Only ``ggsched.files`` reads files: it refuses what hangs, and watches what it maps."""

import ast
import re
from collections.abc import Iterator

from tests.meta.repository import CODE, name_of, python_files

OWN = "ggsched/files/"
READERS = {
    "np": {"load", "memmap", "fromfile", "loadtxt", "genfromtxt", "open_memmap"},
    "mmap": {"mmap"},
    "io": {"open", "FileIO", "open_code"},
    "codecs": {"open"},
}
METHODS = {"read_text", "read_bytes"}
NAMES = re.compile(rf"\b(?:{'|'.join({'open', 'mmap'}.union(METHODS, *READERS.values()))})\b")
"""Modules without any of these are not parsed."""


def readers(name: str, text: str) -> Iterator[str]:
    """Yield the calls of a module that read or map a file."""
    for node in ast.walk(ast.parse(text)) if NAMES.search(text) else ():
        if isinstance(node, ast.Call) and _reads(node):
            yield f"{name}:{node.lineno}: {ast.unparse(node)[:60]}"


def _reads(call: ast.Call) -> bool:
    function = call.func
    if isinstance(function, ast.Name):
        return function.id == "open" and not _is_written(call, 1)
    if not isinstance(function, ast.Attribute):
        return False
    of, attribute = ast.unparse(function.value), function.attr
    if attribute == "mmap" and call.args and ast.unparse(call.args[0]) == "-1":
        return False  # of no file
    if attribute in METHODS or attribute in READERS.get(of.split(".")[0], ()):
        return True
    if attribute == "open" and of == "os":
        return "O_WRONLY" not in ast.unparse(call)
    is_path = not call.args or _constants(call.args[0]) <= {*"rwax", "rb", "wb", "ab", "r+b", "rt"}
    is_own = of.startswith(("self", "super"))
    return attribute == "open" and is_path and not is_own and not _is_written(call, 0)


def _is_written(call: ast.Call, place: int) -> bool:
    """Whether a mode says that the file is written, and only that."""
    modes = [k.value for k in call.keywords if k.arg == "mode"] + call.args[place : place + 1]
    found = set().union(*map(_constants, modes))
    return bool(found) and all(set(mode) & set("wax") and "+" not in mode for mode in found)


def _constants(node: ast.expr) -> set[str]:
    if isinstance(node, ast.IfExp):
        return _constants(node.body) | _constants(node.orelse)
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return {node.value} if is_text else {ast.unparse(node) + "()"}


def test_files_are_read_in_one_place():
    found = [
        call
        for path in python_files(*CODE)
        if not name_of(path).startswith(OWN)
        for call in readers(name_of(path), path.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_each_way_to_read_is_found():
    ways = (
        "open(p)", "open(p, 'rb')", "open(p, mode)", "open(p, 'r+b')", "os.open(p, os.O_RDONLY)",
        "p.read_text()", "(a / b).read_bytes()", "np.load(p)", "np.memmap(p)", "mmap.mmap(f, 0)",
        "np.lib.format.open_memmap(p)", "io.open(p)", "p.open()", "p.open('rb')", "path.open('r')",
    )  # fmt: skip
    for way in ways:
        assert len(list(readers("m.py", way))) == 1, way
    others = (
        "open(p, 'wb')", "open(p, 'a' if x else 'w')", "read_text(p)", "driver.open(x)",
        "os.open(p, os.O_WRONLY)", "p.open('wb')", "self.ports.open(n, 'name')",
    )  # fmt: skip
    for other in others:
        assert list(readers("m.py", other)) == [], other
