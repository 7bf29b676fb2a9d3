"""Work over processes and over the nodes of a Ray cluster: the same results in the same order."""

import json

import pytest

from ggsched.cli.main import main
from ggsched.errors import BackendUnavailable, UsageError
from ggsched_testing import parallel
from ggsched_testing.journal import Journal
from ggsched_testing.parallel import in_order
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


def test_progress_is_reported():
    reported = []
    list(in_order(str, range(3), progress=lambda there, of: reported.append((there, of))))
    assert reported == [(1, 3), (2, 3), (3, 3)]


def journal(path, work="w"):
    return Journal(path, work=work, keys=list("abc"), type=str)


def test_work_that_was_cut_short_goes_on_where_it_was(tmp_path):
    path, asked = tmp_path / "journal", []

    def ask(item):
        asked.append(item)
        return str(item)

    some = in_order(ask, range(3), journal=journal(path))
    assert [next(some), next(some)] == ["0", "1"]
    with path.open("ab") as file:
        file.write(b'["c", "cut o')  # by the end of the process
    del asked[:]
    assert list(in_order(ask, range(3), journal=journal(path))) == ["0", "1", "2"]
    assert asked == [2]
    assert list(in_order(ask, range(3), journal=journal(path))) == ["0", "1", "2"]
    assert asked == [2]


@pytest.mark.parametrize("other", ["work", "file", "folder"])
def test_a_journal_of_something_else_is_refused(other, tmp_path):
    path = tmp_path if other == "folder" else tmp_path / "journal"
    if other == "work":
        journal(path, "other")
    elif other == "file":
        path.write_text("a letter\n")
    with pytest.raises(UsageError, match="cannot keep results there: .* \\(name another file"):
        journal(path)


def test_the_kit_gives_the_same_with_processes_and_from_a_journal(capsys, tmp_path):
    def judged_by(*options):
        assert main(["conform", "sim:0", "--rules", "EVT-1,EVT-3", "--json", *options]) == 0
        found = json.loads(capsys.readouterr().out)
        return [(c["case"], c["verdict"], c["reason"], c["seed"]) for c in found["cases"]]

    alone = judged_by()
    path = str(tmp_path / "journal")
    assert judged_by("--jobs", "2", "--journal", path) == alone
    assert judged_by("--journal", path) == alone
    assert main(["conform", "sim:0", "--rules", "EVT-1", "--seed", "1", "--journal", path]) == 2
    assert "it is of other work" in capsys.readouterr().err
