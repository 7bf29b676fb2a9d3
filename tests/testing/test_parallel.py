"""Work over processes and over the nodes of a Ray cluster: the same results in the same order."""

import pytest

from ggsched.cli.main import main
from ggsched.errors import BackendUnavailable
from ggsched.testing import parallel
from ggsched.testing.parallel import in_order
from tests.meta.repository import ROOT

CORPUS = [
    str(path)
    for path in sorted((ROOT / "tests" / "litmus").iterdir())
    if path.suffix in (".litmus", ".md")
]


def judged(capsys, *options):
    assert main(["litmus", *CORPUS, *options]) == 0
    return capsys.readouterr().out


def test_verdicts_do_not_depend_on_the_number_of_processes(capsys):
    assert judged(capsys, "--jobs", "2") == judged(capsys)


def test_results_come_in_order():
    assert list(in_order(str, range(5))) == list("01234")
    assert list(in_order(str, range(50), jobs=2)) == list(map(str, range(50)))
    assert list(in_order(str, [], jobs=2)) == []


def test_without_the_plug_in_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(parallel, "entry_points", lambda **_: ())
    with pytest.raises(BackendUnavailable, match=r"pip install 'ggsched\[ray\]'"):
        list(in_order(str, range(2), ray="auto"))
