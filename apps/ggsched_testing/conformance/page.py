"""Writes the names of cases and mutants into ``docs/reference/contract.md``.

    python -m ggsched_testing.conformance.page docs/reference/contract.md

A place ``<!-- cases EVT-2 -->`` is followed by two lines, which are replaced. Mutants come from
the table ``MUTANTS`` of ``tests.mutants.table``: anything with ``name`` and ``rule``.
"""

import importlib
import importlib.util
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ggsched.files.reading import read_text
from ggsched_testing.conformance.rules import RULES
from ggsched_testing.conformance.suite import all_cases

MUTANTS_MODULE: Final = "tests.mutants.table"
_PLACE: Final = re.compile(
    r"<!-- cases (?P<rule>[A-Z]{3}-\d) -->\n(?:\n\*Cases:\*[^\n]*\n)?(?:\n\*Mutants:\*[^\n]*\n)?"
)


def cases_by_rule() -> dict[str, list[str]]:
    """Return the names of all cases of each rule."""
    found: dict[str, list[str]] = {rule: [] for rule in RULES}
    for case in all_cases():
        found[case.rule].append(case.name)
    return found


def mutants_by_rule() -> dict[str, list[str]] | None:
    """Return the names of all mutants of each rule, or None where there is no table of them."""
    try:
        if importlib.util.find_spec(MUTANTS_MODULE) is None:
            return None
    except ModuleNotFoundError:  # its package
        return None
    table: Any = importlib.import_module(MUTANTS_MODULE).MUTANTS
    mutants: Iterable[Any] = table.values() if isinstance(table, Mapping) else table
    found: dict[str, list[str]] = {rule: [] for rule in RULES}
    for mutant in mutants:
        found[mutant.rule].append(mutant.name)
    return found


def filled(text: str) -> str:
    """Return the page with the names of cases and mutants as they are now."""
    cases, mutants = cases_by_rule(), mutants_by_rule() or {}

    def fill(match: re.Match[str]) -> str:
        rule = match["rule"]
        named = _line("Cases", cases[rule]), _line("Mutants", mutants.get(rule, ()))
        return "\n\n".join((f"<!-- cases {rule} -->", *named)) + "\n"

    return _PLACE.sub(fill, text)


def rules_of(text: str) -> list[str]:
    """Return the rules that have a section and a place for cases, in the page's order."""
    sections = re.findall(r"^### ([A-Z]{3}-\d)$", text, re.MULTILINE)
    places = [match["rule"] for match in _PLACE.finditer(text)]
    return sections if sections == places else []


def _line(what: str, names: Sequence[str]) -> str:
    listed = ", ".join(f"`{name}`" for name in names)
    return f"*{what}:* {listed or 'none yet'}."


def main(arguments: Sequence[str]) -> int:
    """Rewrite the page that is named."""
    if len(arguments) != 1:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    path = Path(arguments[0])
    path.write_text(filled(read_text(path)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
