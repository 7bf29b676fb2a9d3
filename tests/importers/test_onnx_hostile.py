"""Files that are broken or made to harm: one error, nothing executed, little memory."""

import contextlib
import os
import tracemalloc

import numpy as np
import pytest
from onnx import TensorProto, helper

import ggsched
from ggsched.errors import GgschedError, ModelError
from tests.importers.onnx_files import I64, model, node, tensor

LIMIT_NBYTES = 64 << 20


def refused(proto, words, **given):
    """Check that a model is refused with one line, within bounded memory."""
    tracemalloc.start()
    try:
        with pytest.raises(GgschedError, match=words) as caught:
            ggsched.from_onnx(proto, **given).bind()
        assert tracemalloc.get_traced_memory()[1] < LIMIT_NBYTES
    finally:
        tracemalloc.stop()
    assert caught.value.exit_code == 2
    assert "\n" not in caught.value.one_line()


def refused_or_bound(path):
    """Check that nothing but an error of ours is raised."""
    with contextlib.suppress(GgschedError):
        ggsched.from_onnx(path).bind()


def small(**more):
    return model([node("Exp", "x", "y")], [tensor("x", [2])], [tensor("y", [2])], **more)


@pytest.mark.parametrize("content", [b"", b"no model", b"\x00" * 64, b"\xff" * 64])
def test_no_model(tmp_path, content):
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError, match="not an ONNX model"):
        ggsched.from_onnx(path)


def test_each_truncation_is_refused_or_a_model(tmp_path):
    content = small(weights={"w": np.arange(8.0, dtype=np.float32)}).SerializeToString()
    path = tmp_path / "m.onnx"
    for length in range(len(content)):
        path.write_bytes(content[:length])
        refused_or_bound(path)


def test_each_flipped_byte_is_refused_or_a_model(tmp_path):
    content = small(weights={"w": np.arange(8.0, dtype=np.float32)}).SerializeToString()
    path = tmp_path / "m.onnx"
    for i in range(len(content)):
        path.write_bytes(content[:i] + bytes([content[i] ^ 0x55]) + content[i + 1 :])
        refused_or_bound(path)


def external(location, **entries):
    proto = model([node("Add", "x w", "y")], [tensor("x", [2])], [tensor("y", [2])],
                  {"w": np.zeros(2, np.float32)})  # fmt: skip
    w = proto.graph.initializer[0]
    w.ClearField("raw_data")
    w.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        w.external_data.add(key=key, value=str(value))
    return proto


@pytest.mark.parametrize(
    ("location", "entries", "words"),
    [
        ("../secret.bin", {}, "not in the folder"),
        ("sub/../../secret.bin", {}, "not in the folder"),
        ("/etc/passwd", {}, "not in the folder"),
        ("link.bin", {}, "not in the folder"),
        ("", {}, "not in the folder"),
        ("missing.bin", {}, "cannot read its file"),
        ("good.bin", {"offset": -1}, "outside the file"),
        ("good.bin", {"offset": 4}, "outside the file"),
        ("good.bin", {"offset": 1 << 70}, "outside the file"),
        ("good.bin", {"length": 4}, "4 bytes for"),
        ("good.bin", {"offset": "x"}, "not a number"),
        (".", {}, "cannot read its file"),
    ],
)
def test_data_of_other_files(tmp_path, location, entries, words):
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(bytes(64))
    (folder / "good.bin").write_bytes(bytes(8))
    os.symlink(tmp_path / "secret.bin", folder / "link.bin")
    path = folder / "m.onnx"
    path.write_bytes(external(location, **entries).SerializeToString())
    refused(path, words)
    path.write_bytes(external("good.bin").SerializeToString())
    ggsched.from_onnx(path).bind()


def test_data_of_other_files_need_a_path():
    refused(external("good.bin"), "in another file")


def test_a_graph_with_a_cycle():
    nodes = [node("Add", "x b", "a"), node("Exp", "a", "b")]
    refused(model(nodes, [tensor("x", [2])], [tensor("b", [2])]), "used before it is made")


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ([node("ConstantOfShape", "huge", "y")], "too large"),
        ([node("Expand", "x huge", "y")], "shape"),
        ([node("Tile", "x many", "y")], "shape"),
        ([node("Range", "zero big one", "y")], "too large"),
        ([node("Pad", "x pads", "y")], "shape"),
        ([node("OneHot", "ints big values", "y")], "shape"),
        ([node("Resize", "x none none wide", "y")], "too large"),
        ([node("DFT", "signal wide", "y")], "of 8589934592 elements is not supported"),
        ([node("MelWeightMatrix", "wide wide one one one", "y")], "too large"),
    ],
)
def test_constants_of_huge_shapes(nodes, words):
    weights = {
        "huge": np.array([1 << 40, 1 << 40]),
        "many": np.array([1 << 62]),
        "zero": np.array(0),
        "one": np.array(1),
        "big": np.array(1 << 60),
        "pads": np.array([1 << 60, 1 << 60]),
        "none": np.zeros(0, np.float32),
        "wide": np.array([1 << 33]),
        "signal": np.zeros((1, 4, 1), np.float32),
        "ints": np.array([0]),
        "values": np.array([0, 1], np.float32),
    }
    refused(model(nodes, [tensor("x", [2])], [tensor("y", None)], weights), words)


def test_constants_that_are_large_are_not_computed():
    nodes = [node("Expand", "w shape", "z"), node("ReduceSum", "z", "y")]
    weights = {"w": np.ones(1, np.float32), "shape": np.array([1 << 36])}
    made = ggsched.from_onnx(model(nodes, [tensor("x", [2])], [tensor("y", None)], weights))
    assert [n.op for n in made.graph.nodes] == ["nd.expand", "sum_rows"]
    with (
        ggsched.Scheduler(["cpu:0"], weights=made.weight) as scheduler,
        pytest.raises(GgschedError) as caught,
    ):
        made.run(scheduler, {"x": np.zeros(2, np.float32)})
    assert caught.value.exit_code == 2
    mask = model([node("Dropout", "x", "z mask")], [tensor("x", [1 << 36])], [tensor("mask", None)])
    assert [n.op for n in ggsched.from_onnx(mask).graph.nodes] == ["nd.expand"]


def test_tensors_whose_elements_are_missing():
    proto = small(weights={"w": np.zeros(2, np.float32)})
    proto.graph.initializer[0].dims[:] = [1 << 40]
    refused(proto, "8 bytes for")
    proto.graph.initializer[0].ClearField("raw_data")
    refused(proto, "do not fit its shape|bytes for")
    proto.graph.initializer[0].dims[:] = [-1]
    refused(proto, "shape")


@pytest.mark.parametrize(
    "bad",
    [
        node("Conv", "x w", "y", strides=[0, 0]),
        node("Conv", "x w", "y", strides="one"),
        node("Conv", "x w", "y", group=0),
        node("Conv", "x w", "y", pads=[1]),
        node("Conv", "x", "y"),
        node("Conv", "x w", "y", kernel_shape=[5, 5]),
        node("MaxPool", "x", "y", kernel_shape=[0, 1]),
        node("MaxPool", "x", "y"),
        node("Concat", "x x", "y", axis=9),
        node("Concat", "x x", "y"),
        node("Transpose", "x", "y", perm=[0, 0, 1, 1]),
        node("Softmax", "x", "y", axis=1.5),
        node("Split", "x n", "y z"),
        node("Gather", "x f", "y"),
        node("If", "x", "y"),
        node("Loop", "n _ x", "y", body="text"),
        node("Cast", "x", "y", to=99),
        node("Constant", "", "y"),
        node("Einsum", "x x", "y", equation="abcd"),
        node("LSTM", "x w w", "y"),
        node("DFT", "x", "y"),
        node("DFT", "f", "y"),
        node("STFT", "w n", "y"),
        node("MelWeightMatrix", "n n f f", "y"),
        node("Add", "x n", "y"),
    ],
)
def test_attributes_and_types_that_make_no_sense(bad):
    weights = {"w": np.zeros((2, 3, 2, 2), np.float32), "n": np.array([7, 7]),
               "f": np.zeros(2, np.float32)}  # fmt: skip
    refused(model([bad], [tensor("x", [1, 3, 4, 4])], [tensor("y", None)], weights), ".")


def test_functions_that_multiply_without_end(monkeypatch):
    monkeypatch.setattr("ggsched_import.common.emit.MAX_CALLS", 10_000)
    functions = []
    for i in range(24):
        body = [
            helper.make_node(f"f{i + 1}" if i < 23 else "Exp", ["a"], [n],
                             domain="own" if i < 23 else "")
            for n in ("b", "c")
        ]  # fmt: skip
        imports = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
        functions.append(helper.make_function("own", f"f{i}", ["a"], ["c"], body, imports))
    call = helper.make_node("f0", ["x"], ["y"], domain="own")
    proto = model([call], [tensor("x", [2])], [tensor("y", None)], functions=functions,
                  domains=["own"])  # fmt: skip
    refused(proto, "calls of ops")


def test_a_function_that_calls_itself():
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    body = [helper.make_node("f", ["a"], ["b"], domain="own")]
    f = helper.make_function("own", "f", ["a"], ["b"], body, imports)
    call = helper.make_node("f", ["x"], ["y"], domain="own")
    refused(
        model([call], [tensor("x", [2])], [tensor("y", None)], functions=[f], domains=["own"]),
        "inside each other",
    )


def test_loops_without_end():
    inner = [node("Identity", "go", "again"), node("Identity", "v", "w")]
    body = helper.make_graph(
        inner,
        "body",
        [tensor("i", [], I64), tensor("go", [], TensorProto.BOOL), tensor("v", [2])],
        [tensor("again", [], TensorProto.BOOL), tensor("w", [2])],
    )
    proto = model([node("Loop", "_ true x", "y", body=body)], [tensor("x", [2])],
                  [tensor("y", None)], {"true": np.array(True)})  # fmt: skip
    refused(proto, "more than 10,000 steps")


@pytest.mark.parametrize("kind", [TensorProto.STRING, TensorProto.BFLOAT16, 77])
def test_types_that_are_not_supported(kind):
    proto = small()
    proto.graph.input[0].type.tensor_type.elem_type = kind
    refused(proto, "are not supported")


@pytest.mark.parametrize("old", [b"test", b"x", b"y", b"w"])
def test_names_that_are_not_text(tmp_path, old):
    content = small(weights={"w": np.zeros(2, np.float32)}).SerializeToString()
    path = tmp_path / "m.onnx"
    path.write_bytes(content.replace(old, b"\xff" * len(old)))
    with pytest.raises(ModelError, match="not valid UTF-8"):
        ggsched.from_onnx(path).bind()
