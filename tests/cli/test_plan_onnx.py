"""``ggsched plan model.onnx``."""

import json

import pytest

onnx = pytest.importorskip("onnx")

from ggsched.cli.main import main  # noqa: E402
from ggsched.plan.codec import plan_from_json  # noqa: E402
from ggsched.sanitize import check_plan  # noqa: E402
from tests.cli.test_run_onnx import files, given, run  # noqa: E402, F401


def plan(files, *more):  # noqa: F811
    return main(["plan", str(files / "m.onnx"), "--devices", "cpu:0,cpu:1", *more])


@pytest.mark.parametrize("how", [("--shape", "x=4,2"), ("--dim", "n=4")])
def test_prints_the_plan(files, capsys, how):  # noqa: F811
    assert plan(files, *how, "-v") == 0
    text = capsys.readouterr().out
    assert "launch s0" in text
    assert "upload" in text


def test_json_with_its_graph_passes_the_checker(files, capsys):  # noqa: F811
    out = files / "plan.json"
    assert plan(files, "--dim", "n=4", "--json", "--with-graph", "-o", str(out)) == 0
    printed = json.loads(capsys.readouterr().out)
    made = plan_from_json(out.read_bytes())
    assert printed == json.loads(out.read_bytes())
    assert made.graph_text
    assert check_plan(made).is_clean


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ((), "on the command line: --dim NAME=N"),
        (("--shape", "y=4,2"), "no input 'y'"),
        (("--shape", "x=4,x"), "not of the form"),
        (("--shape", "x=4,3"), "x"),
        (("--dim", "n=4", "--n-tokens", "3"), "--n-tokens is for models that generate text"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(files, capsys, more, words):  # noqa: F811
    assert plan(files, *more) == 2
    assert words in capsys.readouterr().err


def test_options_for_onnx_models_are_refused_for_others(tmp_path, capsys):
    assert main(["plan", "x.gguf", "--shape", "x=1"]) == 2
    assert "--shape is for ONNX models" in capsys.readouterr().err


def test_an_input_of_another_name(files, capsys):  # noqa: F811
    _, x = given(files)
    assert run(files, "--input", x.replace("x=", "z=", 1)) == 2
    assert "no value for the input x f32[n, 2]: 'z' is not an input" in capsys.readouterr().err
