"""``ggsched bench``: tests, forms, and what it refuses."""

import csv
import io
import json

import pytest

from ggsched.cli.main import main
from ggsched.models.speed import Speed, SpeedTest
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


def test_json_and_csv(bench):
    _, out, _ = bench("-p", 4, "-n", 0, "-o", "json")
    (found,) = json.loads(out)
    assert (found["test"], found["n_prompt"], found["n_gen"]) == ("pp4", 4, 0)
    assert len(found["samples_ts"]) == 2
    assert found["avg_ts"] == pytest.approx(sum(found["samples_ts"]) / 2)
    _, out, _ = bench("-p", 0, "-n", 2, "-o", "csv")
    head, row = csv.reader(io.StringIO(out))
    assert dict(zip(head, row, strict=True))["test"] == "tg2"


def test_what_cannot_be_measured(bench):
    code, _, err = bench("-p", 0, "-n", 0)
    assert code == 2
    assert "nothing to measure" in err
    code, _, err = bench("-p", 40, "-n", 0, "-c", 32)
    assert code == 2
    assert "the longest test has 40" in err


def test_rates():
    speed = Speed(SpeedTest("tg", 10, 7), (1.0, 2.0))
    assert speed.rates == (10.0, 5.0)
    assert (speed.mean, speed.test.name) == (7.5, "tg10 @ d7")
    assert speed.deviation == pytest.approx(3.5355339)
    assert Speed(SpeedTest("pp", 10), (1.0,)).deviation == 0.0
