"""Pages that promise it: their Python snippets run in order, and print what the page says.

A fence ``text`` right after a fence ``python`` is what the snippet prints; ``...`` stands for
anything.
"""

import doctest
import re

import pytest

from tests.meta.repository import ROOT

PROMISE = "Every Python snippet on this page is run by the project's tests, in this order."
PAGES = [
    page
    for page in sorted((ROOT / "docs").rglob("*.md"))
    if PROMISE in page.read_text(encoding="utf-8")
]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def snippets(text):
    """Yield the code and the expected output, or None, of each snippet, and its line."""
    fences = list(FENCE.finditer(text))
    for i, fence in enumerate(fences):
        if fence[1] == "python":
            following = fences[i + 1] if i + 1 < len(fences) else None
            between = text[fence.end() : following.start()].strip() if following else "x"
            output = following[2] if following and following[1] == "text" and not between else None
            yield fence[2], output, text.count("\n", 0, fence.start()) + 1


@pytest.mark.usefixtures("registries_restored")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_snippets_run(page, capsys):
    names = {"__name__": page.stem}
    for code, wanted, line in snippets(page.read_text(encoding="utf-8")):
        padded = "\n" * line + code  # so that a traceback has the line of the page
        exec(compile(padded, str(page), "exec"), names)
        printed = capsys.readouterr().out
        if wanted is not None:
            same = doctest.OutputChecker().check_output(wanted, printed, FLAGS)
            assert same, f"line {line} printed:\n{printed}\ninstead of:\n{wanted}"


# Pages whose Python is run elsewhere, or is not a program.
OTHERS = {
    "add-an-op.md": "pieces of files, as they are changed",
    "run-a-pytorch-model.md": "test_pytorch_page.py, as it needs torch",
    "profile-a-run.md": "test_profile_a_run.py",
}


def test_every_page_with_python_is_run():
    silent = {
        page.name
        for page in (ROOT / "docs").rglob("*.md")
        if page not in PAGES and "```python" in page.read_text(encoding="utf-8")
    }
    assert silent == set(OTHERS)


def test_the_glossary_has_one_row_for_each_word():
    text = (ROOT / "docs" / "reference" / "glossary.md").read_text(encoding="utf-8")
    words = re.findall(r"^\| ([A-Z][^|]*) \|", text, re.M)
    assert len(words) > 40
    assert len(set(words)) == len(words)
