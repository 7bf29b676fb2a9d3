"""Paths through the documentation: every how-to is on one path, and code fits its box."""

import re

from tests.meta.repository import ROOT

START = ROOT / "docs" / "start"
FENCE = re.compile(r"^```\w+\n(.*?)^```", re.M | re.S)
COLUMNS = 76  # what the theme shows without scrolling
LINK = re.compile(r"\]\(\.\./(how-to/[a-z-]+\.md)\)")


def test_code_fits_its_box():
    docs = ROOT / "docs"
    for page in (docs / "index.md", docs / "gallery.md", *START.glob("*.md")):
        for fence in FENCE.findall(page.read_text("utf-8")):
            assert max(map(len, fence.splitlines())) <= COLUMNS, (page.name, fence)


def test_every_how_to_is_on_one_path():
    on_paths = [
        link for page in START.glob("*.md") for link in LINK.findall(page.read_text("utf-8"))
    ]
    wanted = {f"how-to/{page.name}" for page in (ROOT / "docs" / "how-to").glob("*.md")}
    assert wanted <= set(on_paths)
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    for page in wanted:
        assert nav.count(page) == 1
        assert page in index
