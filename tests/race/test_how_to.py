"""The page "Find a race in a PyTorch program": its program, what is reported, and the mend."""

import doctest
import re
import runpy

import pytest
from msgspec.structs import replace

from tests.meta.repository import ROOT

torch = pytest.importorskip("torch", reason="PyTorch is in the extra 'torch'")

from ggsched_race.watch import watch  # noqa: E402

PAGE = ROOT / "docs" / "how-to" / "find-a-race-in-a-pytorch-program.md"
BLOCKS = re.findall(r"^```(py|text)\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
(_, WRONG), (_, SHOWN), (_, MENDED) = BLOCKS
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def run(program, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prefetch.py").write_text(program, encoding="utf-8")
    with watch("prefetch.py", simulate=True, raises=False) as watched:
        runpy.run_path("prefetch.py", run_name="__main__")
    return capsys.readouterr().out, watched.report


def without_callers(report):
    """Return a report without the frames of this test."""

    def own(side):
        return replace(side, stack=tuple(f for f in side.stack if f.file == "prefetch.py"))

    findings = [replace(f, sides=tuple(map(own, f.sides))) for f in report.findings]
    return replace(report, findings=tuple(findings))


def test_wrong_program_is_reported_as_the_page_shows(tmp_path, monkeypatch, capsys):
    printed, report = run(WRONG, tmp_path, monkeypatch, capsys)
    shown = printed + without_callers(report).to_text()
    assert doctest.OutputChecker().check_output(SHOWN, shown, FLAGS), shown


def test_mended_program_is_clean(tmp_path, monkeypatch, capsys):
    mended = re.sub(r"def next_batch.*?\n\n\n", MENDED + "\n\n", WRONG, flags=re.S)
    printed, report = run(mended, tmp_path, monkeypatch, capsys)
    assert mended != WRONG
    assert printed == "6144.0\n"
    assert report.is_clean, report.to_text()
