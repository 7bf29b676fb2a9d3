"""The page's tables are the sanitizer's clocks, and both checkers agree with its programs."""

from tests.docs.three_ways import PAIR, filled
from tests.meta.repository import ROOT, name_of

PAGE = ROOT / "docs" / "explanation" / "order.md"


def test_the_tables_are_computed():
    text = PAGE.read_text(encoding="utf-8")
    assert text == filled(text), f"run: python -m tests.docs.three_ways {name_of(PAGE)}"


def test_there_are_eight_situations():
    text = PAGE.read_text(encoding="utf-8")
    assert len(PAIR.findall(text)) == text.count("```litmus ") == 8
