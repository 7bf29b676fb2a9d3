"""``ggsched run model.onnx``."""

import json

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from ggsched.cli.main import main  # noqa: E402


@pytest.fixture
def files(tmp_path):
    from tests.importers.onnx_files import I64, model, node, tensor

    w = np.arange(6, dtype=np.float32).reshape(2, 3)
    nodes = [node("MatMul", "x w", "a"), node("Softmax", "a", "p"), node("ArgMax", "a", "i")]
    outputs = [tensor("p", None), tensor("i", None, I64)]
    proto = model(nodes, [tensor("x", ["n", 2])], outputs, {"w": w})
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    np.save(tmp_path / "x.npy", np.array([[1, -1]], np.float32))
    return tmp_path


def run(files, *more):
    return main(["run", str(files / "m.onnx"), "--devices", "cpu:0", *more])


def given(files):
    return ("--input", f"x={files / 'x.npy'}")


def test_outputs_are_written_and_described(files, capsys):
    assert run(files, *given(files), "--output", str(files / "out.npz")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("p float32[1, 3] min 0.333333 mean 0.333333 max 0.333333")
    assert lines[1].startswith("i int64[1, 3]")
    with np.load(files / "out.npz") as found:
        np.testing.assert_allclose(found["p"], np.full((1, 3), 1 / 3), rtol=1e-6)
        np.testing.assert_array_equal(found["i"], [[0, 0, 0]])


def test_json_and_two_devices(files, capsys):
    assert run(files, *given(files), "--devices", "cpu:0,cpu:1", "--json") == 0
    found = json.loads(capsys.readouterr().out)["outputs"]
    assert found["i"] == {"dtype": "int64", "shape": [1, 3], "min": 0, "mean": 0, "max": 0}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ((), "no value for the input x f32[n, 2] (--input x=FILE.npy)"),
        (("--input", "x=none.npy"), "none.npy: cannot be read"),
        (("--input", "x"), "NAME=FILE.npy"),
        (("--input", "z={x}"), "no value for the input x"),
        (("--input", "x={x}", "--input", "z={x}"), "no input 'z'"),
        (("--input", "x={bad}"), "not an array that numpy wrote"),
        (("--input", "x={huge}"), "not an array that numpy wrote"),
        (("--input", "x={pickle}"), "not an array that numpy wrote"),
        (("--input", "x={f64}"), "float64[1, 2] given for float32[1, 2]"),
        (("--input", "x={x}", "--dim", "n=2"), "shape [1, 2] for x f32[n, 2]"),
        (("--input", "x={x}", "--dim", "n"), "NAME=EXTENT"),
        (("--constant", "x=one"), "neither a number nor a file"),
        (("--input", "x={x}", "-p", "text"), "--prompt is for models that generate text"),
        (("--input", "x={x}", "--draft-max", "2"), "--draft-max is for models that generate text"),
        (("--input", "x={x}", "--output", "{x}/out.npz"), "out.npz"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(files, capsys, more, words):
    (files / "bad.npy").write_bytes(b"no array")
    header = (files / "x.npy").read_bytes().replace(b"(1, 2), ", b"(1<<9,)", 1)
    (files / "huge.npy").write_bytes(header)
    np.save(files / "pickle.npy", np.array([{}], object), allow_pickle=True)
    np.save(files / "f64.npy", np.zeros((1, 2)))
    paths = {n: files / f"{n}.npy" for n in ("x", "bad", "huge", "pickle", "f64")}
    assert run(files, *(m.format(**paths) for m in more)) == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert words in err


def test_a_truncated_file_is_refused_in_one_line(files, capsys):
    content = (files / "m.onnx").read_bytes()
    (files / "m.onnx").write_bytes(content[: len(content) // 2])
    assert run(files, *given(files)) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_options_for_onnx_models_are_refused_for_others(files, capsys):
    assert main(["run", str(files / "x.gguf"), "--input", "x=y"]) == 2
    assert "--input is for ONNX models" in capsys.readouterr().err


@pytest.fixture
def hostile(tmp_path):
    """Files by what is wrong with them."""
    from tests.importers.onnx_files import I64, model, node, tensor

    def made(nodes, weights=None, shape=(2,), outputs="y"):
        return model(nodes, [tensor("x", shape)], [tensor(outputs, None)], weights)

    far = made([node("Add", "x w", "y")], {"w": np.zeros(2, np.float32)})
    (w,) = far.graph.initializer
    w.ClearField("raw_data")
    w.data_location = onnx.TensorProto.EXTERNAL
    w.external_data.add(key="location", value="../../secret")
    protos = {
        "far": far,
        "cycle": made([node("Add", "x b", "a"), node("Exp", "a", "b")], outputs="b"),
        "huge": made([node("ConstantOfShape", "n", "y")], {"n": np.array([1 << 40, 1 << 40])}),
        "extent": made([node("Exp", "x", "y")], shape=(1 << 40, 1 << 20)),
        "types": made([node("Add", "x w", "y")], {"w": np.zeros(2, np.int64)}),
        "op": made([node("Frobnicate", "x", "y")]),
        "strings": model([node("Identity", "x", "y")], [tensor("x", [2], 8)],
                         [tensor("y", None, 8)]),
        "output": model([node("Exp", "x", "z")], [tensor("x", [2])], [tensor("y", None, I64)]),
    }  # fmt: skip
    for name, proto in protos.items():
        (tmp_path / f"{name}.onnx").write_bytes(proto.SerializeToString())
    np.save(tmp_path / "x.npy", np.ones(2, np.float32))
    return tmp_path


@pytest.mark.parametrize("command", ["run", "plan"])
@pytest.mark.parametrize(
    "name", ["far", "cycle", "huge", "extent", "types", "op", "strings", "output"]
)
def test_bad_models_are_refused_in_one_line(hostile, capsys, command, name):
    given = ["--input", f"x={hostile / 'x.npy'}"] if command == "run" else []
    assert main([command, str(hostile / f"{name}.onnx"), "--devices", "cpu:0", *given]) == 2
    out, err = capsys.readouterr()
    assert len(err.splitlines()) == 1
    assert not out
