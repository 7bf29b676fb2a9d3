"""``ggsched bench``: tests, forms, and what it refuses."""

import csv
import io
import json

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggsched.cli.main import main
from ggsched_commands.bench import bench as COMMAND
from ggsched_llm.speed import Speed, SpeedTest
from ggsched_llm.speed_comparison import compare_rates
from tests.models.helpers import ORACLE

MODEL = str(ORACLE / "llama-tiny-f32.gguf")


@pytest.fixture
def bench(capsys):
    def call(*arguments):
        code = main(["bench", MODEL, "--devices", "cpu:0", "-r", "2", *map(str, arguments)])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_table(bench):
    code, out, _ = bench("-p", "5,3", "-n", 2, "-d", "0,4")
    assert code == 0
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in out.splitlines()]
    assert rows[0][-2:] == ["test", "t/s"]
    assert [row[-2] for row in rows[2:]] == [
        "pp5", "pp5 @ d4", "pp3", "pp3 @ d4", "tg2", "tg2 @ d4",
    ]  # fmt: skip
    assert all(" ± " in row[-1] for row in rows[2:])
    assert len({len(line) for line in out.splitlines()}) == 1


def test_several_values_of_options(bench):
    """Each combination is measured, in a session of its own, and has a column that tells it."""
    code, out, _ = bench("-p", 4, "-n", 0, "-t", "1,2", "-ub", "2,4", "-ctk", "f16", "-o", "json")
    assert code == 0
    found = [(row["threads"], row["n_ubatch"]) for row in json.loads(out)]
    assert found == [(1, 2), (1, 4), (2, 2), (2, 4)]
    code, out, _ = bench("-p", 4, "-n", 0, "-ctk", "f16,f32", "-ctv", "f16,f32")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in out.splitlines()]
    assert rows[0][-4:-2] == ["cache_type_k", "cache_type_v"]
    assert [row[-4:-2] for row in rows[2:]] == [["f16", "f16"], ["f32", "f32"]]
    _, out, _ = bench("-p", 4, "-n", 0, "-t", 2, "-o", "csv")
    assert "threads" not in out


def test_pairs_and_values_given_again(bench):
    """As in llama-bench: each -pg is a test, and an option that is given again adds values."""
    code, out, _ = bench("-p", 2, "-p", "1-4*4", "-n", 0, "-pg", "3,2", "-pg", "0,0", "-o", "json")
    assert code == 0
    found = [(row["test"], row["n_prompt"], row["n_gen"]) for row in json.loads(out)]
    assert found == [("pp2", 2, 0), ("pp1", 1, 0), ("pp4", 4, 0), ("pp3+tg2", 3, 2)]
    code, out, _ = bench("-p", 0, "-n", 0, "-pg", "3,2", "-d", 4, "-npl", 2, "-o", "json")
    assert code == 0
    assert [row["test"] for row in json.loads(out)] == ["pp3+tg2 x 2 @ d4"]


@given(
    first=st.integers(0, 20), last=st.integers(0, 40), sign=st.sampled_from(["", "+", "*"]),
    step=st.integers(0, 5),
)  # fmt: skip
def test_ranges_are_those_of_llama_bench(first, last, sign, step):
    """``parse_int_range`` steps until the last is passed, and refuses what does not go up."""
    text = f"{first}-{last}" + (f"{sign}{step}" if sign else "")
    expected, number = [], first
    while number <= last and len(expected) < 50:
        expected.append(number)
        number = number * step if sign == "*" else number + (step if sign else 1)
    type_ = next(p.type for p in COMMAND.params if p.name == "depths")
    if len(expected) == 50 or not expected or (sign and step == 0) or (sign == "*" and step < 2):
        with pytest.raises(click.BadParameter):
            type_.convert(text, None, None)
    else:
        assert type_.convert(f"7,{text}", None, None) == (7, *expected)


def test_a_range_is_of_numbers_and_not_without_end():
    type_ = next(p.type for p in COMMAND.params if p.name == "prompts")
    for text in ("1-10000", "1-" + 18 * "9", "1-2-3", "a-b", "1-", "-1"):
        with pytest.raises(click.BadParameter):
            type_.convert(text, None, None)


def test_several_sequences(bench):
    """The context is made long enough for all, and rates count the tokens of all."""
    code, out, _ = bench("-p", 5, "-n", 3, "-d", 2, "-npl", "1,4", "-o", "json")
    assert code == 0
    found = {row["test"]: row for row in json.loads(out)}
    assert list(found) == ["pp5 @ d2", "pp5 x 4 @ d2", "tg3 @ d2", "tg3 x 4 @ d2"]
    speed = Speed(SpeedTest(0, 10, 0, 4), (2.0,))
    assert speed.rates == (20.0,)
    code, _, err = bench("-p", 8, "-n", 0, "-c", 16, "-npl", 3)
    assert code == 2
    assert "the longest test has 24" in err


def test_json_and_csv(bench):
    _, out, _ = bench("-p", 4, "-n", 0, "-o", "json")
    (found,) = json.loads(out)
    assert (found["test"], found["n_prompt"], found["n_gen"]) == ("pp4", 4, 0)
    assert len(found["samples_ts"]) == 2
    assert found["avg_ts"] == pytest.approx(sum(found["samples_ts"]) / 2)
    _, out, _ = bench("-p", 0, "-n", 2, "-o", "csv")
    head, row = csv.reader(io.StringIO(out))
    assert dict(zip(head, row, strict=True))["test"] == "tg2"


def ends_in(error, monkeypatch):
    def timed(session, test, tokens):
        if test.n_gen:
            raise SystemError from error
        return 0.5

    monkeypatch.setattr("ggsched_llm.speed._timed", timed)


@pytest.mark.parametrize("form", ["md", "json", "csv"])
def test_interrupted(bench, monkeypatch, form):
    """Ctrl-C leaves the tests that are done, in each form, and one line."""
    ends_in(KeyboardInterrupt(), monkeypatch)
    code, out, err = bench("-p", 4, "-n", "2,3", "-o", form)
    assert code == 130
    assert err == "ggsched: interrupted: 1 of 3 tests are done, not tg2\n"
    if form == "json":
        assert [row["test"] for row in json.loads(out)] == ["pp4"]
    else:
        assert "pp4" in out.splitlines()[-1]


def test_another_error_is_no_interruption(bench, monkeypatch):
    error = ValueError()
    error.__cause__ = error
    ends_in(error, monkeypatch)
    code, _, err = bench("-p", 4, "-n", 2)
    assert code == 3
    assert "interrupted" not in err


def test_what_cannot_be_measured(bench):
    code, _, err = bench("-p", 0, "-n", 0)
    assert code == 2
    assert "nothing to measure" in err
    code, _, err = bench("-p", 40, "-n", 0, "-c", 32)
    assert code == 2
    assert "the longest test has 40" in err


def test_rates():
    speed = Speed(SpeedTest(0, 10, 7), (1.0, 2.0))
    assert speed.rates == (10.0, 5.0)
    assert (speed.mean, speed.test.name) == (7.5, "tg10 @ d7")
    assert speed.deviation == pytest.approx(3.5355339)
    assert Speed(SpeedTest(10, 0), (1.0,)).deviation == 0.0


@pytest.fixture
def files(tmp_path):
    def write(name, **rates):
        path = tmp_path / name
        path.write_text(json.dumps([{"test": t, "samples_ts": r} for t, r in rates.items()]))
        return str(path)

    return write


def test_two_results_beside_each_other(files, capsys):
    a = files("a.json", pp4=[100, 101, 99], tg2=[10.0, 12.0, 11.0], tg9=[1])
    b = files("b.json", pp4=[200, 202, 198], tg2=[11.0, 10.0, 12.0], pp7=[5], tg9=[2])
    assert main(["bench", "--compare", a, b]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert last == f"only {b} has pp7"
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]]
    assert [row[0] for row in rows] == ["test", "----", "pp4", "tg2", "tg9"]
    assert rows[2][1] == "2.000"
    assert rows[2][3] == "differs"
    assert rows[3][1] == "1.000"
    assert rows[3][3] == "may be equal"
    assert rows[4][1:] == ["2.000", "-", "-"]


def test_intervals_are_those_of_welch():
    """By ``scipy.stats.ttest_ind`` of the logarithms, version 1.17.1; ours rounds 3.02 to 3."""
    found = compare_rates("pp4", [100.0, 110.0, 105.0], [120.0, 118.0, 126.0, 121.0])
    assert found.ratio == pytest.approx(1.155298)
    assert found.low == pytest.approx(1.047745, rel=1e-3)
    assert found.high == pytest.approx(1.273892, rel=1e-3)
    assert found.is_sure


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "[1]",
        '[{"test": "pp4"}]',
        '[{"test": "a", "samples_ts": [0]}]',
        "\0",
        "[" * 99999,
        f'[{{"test": "a", "samples_ts": [{10**400}]}}]',
    ],
)
def test_other_files_are_refused(files, tmp_path, capsys, text):
    good, bad = files("a.json", pp4=[1.0]), tmp_path / "bad.json"
    bad.write_text(text)
    assert main(["bench", "--compare", good, str(bad)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "bad.json" in err


def test_rates_far_apart(files, capsys):
    a, b = (
        files("a.json", pp4=[1e-299], tg2=[1e-30, 1e30]),
        files("b.json", pp4=[1e299], tg2=[1, 1]),
    )
    assert main(["bench", "--compare", b, a]) == 0
    assert main(["bench", "--compare", a, b]) == 0
    assert "may be equal" in capsys.readouterr().out.splitlines()[-1]


def test_a_test_that_was_measured_twice(bench, tmp_path, capsys):
    _, out, _ = bench("-p", "4,4", "-n", 0, "-o", "json")
    path = tmp_path / "twice.json"
    path.write_text(out)
    assert main(["bench", "--compare", str(path), str(path)]) == 0
    assert capsys.readouterr().out.count("| pp4") == 1


def test_nothing_in_common(files, capsys):
    assert main(["bench", "--compare", files("a", pp4=[1]), files("b", tg4=[1])]) == 2
    assert "no test in common" in capsys.readouterr().err
