"""Entries of docstrings say a unit, a bound or a meaning that the name lacks, or are left out."""

import ast
import re
from collections.abc import Iterator

from tests.meta.repository import CODE, name_of, python_files

FILLERS = frozenset(
    re.findall(
        r"\w+",
        "the a an of its this that it to for in on by with from at as and or which what is are be "
        "each all any one here given whose own them their they these",
    )
)
SAME = {
    "nbytes": {"bytes", "length"},
    "topology": {"machine"},
    "name": {"label"},
    "spec": {"model"},
}
"""Words that say what a name says."""
SECTION = re.compile(r"\n\n? *(?:Args|Attributes):\n((?: {4,}\S.*\n?)+)")
HEADING = re.compile(r"^ *(?:Args|Attributes):$", re.MULTILINE)
ENTRY = re.compile(r"^ *(\*{0,2}\w+)(?: \([^)]*\))?: ([A-Za-z' ]+)\.$")


def words(text: str) -> set[str]:
    """Return the words of a name or an annotation, in singular and plural."""
    apart = re.sub(r"([a-z])([A-Z])", r"\1 \2", text)
    found = {word.lower() for word in re.findall(r"[A-Za-z]+", apart)}
    return found | {w.removesuffix("s") for w in found} | {f"{w}s" for w in found}


def is_repetition(name: str, text: str, annotation: str) -> bool:
    """Whether an entry says nothing that the name and the type do not."""
    known = words(name) | words(annotation) | FILLERS
    for word in words(name):
        known |= SAME.get(word, set())
    return all(word.lower() in known for word in text.split())


def repetitions(source: str) -> Iterator[tuple[str, str]]:
    """Yield names and texts of entries that repeat names."""
    for node in ast.walk(ast.parse(source)) if HEADING.search(source) else ():
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        for section in SECTION.findall((ast.get_docstring(node) or "") + "\n"):
            for line in section.splitlines():
                found = ENTRY.match(line)
                if found and is_repetition(found[1], found[2], _annotation(node, found[1])):
                    yield found[1], found[2]


def _annotation(node: ast.stmt, name: str) -> str:
    for part in ast.walk(node):
        if isinstance(part, ast.arg) and part.arg == name.lstrip("*") and part.annotation:
            return ast.unparse(part.annotation)
        if isinstance(part, ast.AnnAssign) and getattr(part.target, "id", "") == name:
            return ast.unparse(part.annotation)
    return ""


EXAMPLE = '''
def f(plan: Plan, nbytes: int, limit: int):
    """Do it.

    Args:
        plan: The plan.
        nbytes: Length.
        limit: Bytes that are kept.
    """
'''


def test_a_repetition_is_found():
    assert [name for name, _ in repetitions(EXAMPLE)] == ["plan", "nbytes"]


def test_no_entry_repeats_its_name():
    found = [
        f"{name_of(path)}: {name}: {text}"
        for path in python_files(*CODE)
        for name, text in repetitions(path.read_text(encoding="utf-8"))
    ]
    assert found == []
