"""Paths through the documentation: the first results run, and every how-to is on one path."""

import io
import re
import shlex
from itertools import chain

import pytest

from ggsched.backend.registry import offered
from ggsched.cli.main import main
from tests.meta.repository import ROOT

START = ROOT / "docs" / "start"
SHELL = re.compile(r"^```sh\n(.*?)^```", re.M | re.S)
FENCE = re.compile(r"^```\w+\n(.*?)^```", re.M | re.S)
COLUMNS = 76  # what the theme shows without scrolling
LINK = re.compile(r"\]\(\.\./(how-to/[a-z-]+\.md)\)")
# A package is installed, or a device is measured for seconds: tests of their own run them.
ELSEWHERE = {"new-backend", "conform", "calibrate", "litmus"}


def commands_of(page):
    """Yield the calls of ggsched on a page, as words, with variables replaced."""
    values = {}
    for line in chain.from_iterable(f.splitlines() for f in SHELL.findall(page.read_text("utf-8"))):
        words = [
            re.sub(r"^\$(\w+)$", lambda m: values[m[1]], word)
            for word in shlex.split(line, comments=True)
        ]
        if words and (found := re.fullmatch(r"(\w+)=(.*)", words[0])):
            values[found[1]] = found[2]
        elif words[:1] == ["ggsched"]:
            yield words[1:]


@pytest.mark.parametrize("page", sorted(START.glob("*.md")), ids=lambda page: page.stem)
def test_first_results_run(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO("417+385\n"))  # of a conversation
    for name in ("tests", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    calls = list(commands_of(page))
    assert calls or page.stem == "own-graphs"  # whose program another test runs
    for words in calls:
        if words[0] in ELSEWHERE or ("opencl:0,cpu:0" in words and "opencl" not in offered()):
            continue
        assert main(words) == 0, (words, capsys.readouterr().err)


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
