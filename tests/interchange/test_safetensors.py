"""safetensors files: as the library wrote them, mapped, or refused on one line."""

import json
import os
import struct
import sys

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save, save_file

from ggsched.errors import ModelError, UsageError
from ggsched.files.mapping import file_behind
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import BF16, F32
from ggsched.scheduler import Scheduler
from ggsched_llm.safetensors_file import open_safetensors

TENSORS = {
    "w": np.arange(6, dtype=np.float32).reshape(2, 3),
    "half": np.ones((3,), np.float16),
    "brain": np.array([[1.0, -2.5]], ml_dtypes.bfloat16),
    "ids": np.arange(4, dtype=np.int32),
    "none": np.zeros((0, 3), np.float32),
    "point": np.array(3.0, np.float32),
    "long": np.arange(2, dtype=np.int64),
}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    found = tmp_path_factory.mktemp("files") / "model.safetensors"
    save_file(TENSORS, found, metadata={"format": "np"})
    return found


def test_round_trip(path):
    file = open_safetensors(path)
    assert set(file) == set(TENSORS)
    assert len(file) == len(TENSORS)
    assert file.metadata == {"format": "np"}
    for name in set(TENSORS) - {"long", "brain"}:
        assert file[name].dtype == TENSORS[name].dtype
        np.testing.assert_array_equal(file[name], TENSORS[name])
    assert (file.dtype("brain"), file.dtype("w")) == (BF16, F32)
    np.testing.assert_array_equal(file["brain"].view(ml_dtypes.bfloat16), TENSORS["brain"])


def test_tensors_are_mapped_and_read_only(path):
    w = open_safetensors(path)["w"]
    assert not w.flags.writeable
    file, _ = file_behind(w)
    assert file.path == str(path)


def test_types_without_a_counterpart_are_refused_when_asked_for(path):
    file = open_safetensors(path)
    with pytest.raises(ModelError, match=r"tensor 'long': type I64 is not supported"):
        file["long"]
    with pytest.raises(KeyError):
        file["nothing"]


def test_weights_of_a_scheduler(path):
    g = GraphBuilder("linear")
    graph = g.build(g.mul_mat(g.weight("w", (2, 3)), g.input("x", (1, 3))))
    with Scheduler(["cpu:0"], weights=open_safetensors(path)) as scheduler:
        out = scheduler.run(graph, {"x": np.ones((1, 3), np.float32)})
    assert out[graph.outputs[0]].tolist() == [[3.0, 12.0]]


def test_weights_of_another_shape_are_refused(path):
    g = GraphBuilder("linear")
    graph = g.build(g.mul_mat(g.weight("w", (3, 2)), g.input("x", (1, 2))))
    scheduler = Scheduler(["cpu:0"], weights=open_safetensors(path))
    with scheduler, pytest.raises(UsageError, match=r"^w: float32\[2, 3\] given"):
        scheduler.prepare(graph)


GOOD = save({"w": TENSORS["w"], "ids": TENSORS["ids"]})
HEADER = json.loads(GOOD[8 : 8 + struct.unpack("<Q", GOOD[:8])[0]])


def with_header(header, data=GOOD[-40:]):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def changed(**entry):
    return with_header({**HEADER, "w": {**HEADER["w"], **entry}})


BAD = {
    "short": b"\x01",
    "no header": struct.pack("<Q", 100),
    "a huge header": struct.pack("<Q", 2**63) + b"{}",
    "cut off": GOOD[:-1],
    "too long": GOOD + b"\0",
    "no JSON": struct.pack("<Q", 2) + b"}{",
    "a list": struct.pack("<Q", 2) + b"[]",
    "deep": with_header({})[:0] + struct.pack("<Q", 100_000) + b"[" * 100_000,
    "a GGUF file": b"GGUF" + bytes(100),
    "outside": changed(data_offsets=[0, 2**40]),
    "backwards": changed(data_offsets=[24, 0]),
    "negative": changed(data_offsets=[-24, 0]),
    "another length": changed(shape=[3, 3]),
    "negative shape": changed(shape=[-2, -3]),
    "overflowing shape": changed(shape=[2**62, 2**62]),
    "unknown type": changed(dtype="F31"),
    "overlapping": changed(data_offsets=HEADER["ids"]["data_offsets"]),
    "no offsets": with_header({**HEADER, "w": {"dtype": "F32", "shape": [2, 3]}}),
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD)
def test_damaged_files_give_one_line(tmp_path, data):
    path = tmp_path / "broken.safetensors"
    path.write_bytes(data)
    with pytest.raises(
        ModelError, match=r"broken\.safetensors: not a safetensors file: "
    ) as caught:
        open_safetensors(path)
    assert_one_line(str(caught.value))
    assert str(path) in str(caught.value)
    assert caught.value.exit_code == 2


@settings(max_examples=200)
@given(position=st.integers(0, len(GOOD) - 1), byte=st.integers(0, 255))
def test_any_byte_may_be_wrong(tmp_path_factory, position, byte):
    path = tmp_path_factory.getbasetemp() / "changed.safetensors"
    path.write_bytes(GOOD[:position] + bytes([byte]) + GOOD[position + 1 :])
    try:
        file = open_safetensors(path)
        for name in file:
            assert file[name].nbytes <= len(GOOD)
    except ModelError as error:
        message = str(error)
        path.unlink()
        assert_one_line(message)


def assert_one_line(message):
    assert "\n" not in message


def test_places_that_are_no_files(tmp_path):
    with pytest.raises(ModelError, match="No such file"):
        open_safetensors(tmp_path / "none")
    (tmp_path / "empty").touch()
    with pytest.raises(ModelError, match="cannot read the file: the file is empty"):
        open_safetensors(tmp_path / "empty")
    with pytest.raises(ModelError, match="it is a directory"):
        open_safetensors(tmp_path)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ModelError, match="not a regular file"):
        open_safetensors(pipe)


def test_without_the_library(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ModelError, match=r"pip install 'ggsched\[safetensors\]'"):
        open_safetensors(path)
