"""The page "Where is what" names files and folders that are there."""

import re

from tests.meta.repository import ROOT

PAGE = ROOT / "docs" / "reference" / "where-is-what.md"


def test_each_place_is_there():
    places = re.findall(r"`([\w.-]+/[\w./-]*)`", PAGE.read_text(encoding="utf-8"))
    assert len(places) > 50
    assert [place for place in places if not (ROOT / place).exists()] == []
