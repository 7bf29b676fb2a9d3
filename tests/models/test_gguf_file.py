"""The reader of GGUF files on files that are sound, or nearly so."""

import struct

import numpy as np
import pytest

from ggsched.errors import ModelError
from ggsched.ir.dtype import F32, GGUF_DTYPES
from ggsched_llm import gguf_header
from ggsched_llm.gguf_file import GGUF_CODES, open_gguf
from tests.models.gguf_layout import entry_bytes, gguf_layout, string_bytes
from tests.models.helpers import ORACLE, Stored, write_gguf

SCALARS = [
    (0, "<B", 200),
    (1, "<b", -100),
    (2, "<H", 60000),
    (3, "<h", -30000),
    (4, "<I", 2**32 - 1),
    (5, "<i", -(2**31)),
    (6, "<f", 0.5),
    (7, "<?", True),
    (10, "<Q", 2**64 - 1),
    (11, "<q", -(2**63)),
    (12, "<d", 0.1),
]


def write(tmp_path, meta=None, tensors=None, **how):
    return write_gguf(tmp_path / "m.gguf", meta or {}, tensors or {}, **how)


def with_entries(tmp_path, *entries):
    path = write(tmp_path)
    layout = gguf_layout(path.read_bytes())
    path.write_bytes(layout.rebuilt(entries, []))
    return open_gguf(path).metadata


def test_numbers_of_types_are_those_of_the_gguf_package():
    from gguf import GGMLQuantizationType

    codes = {dtype.name.upper(): code for dtype, code in GGUF_CODES.items()}
    assert codes == {d.name.upper(): GGMLQuantizationType[d.name.upper()] for d in GGUF_DTYPES}


def test_as_the_gguf_package_reads_it():
    from gguf import GGUFReader

    path = ORACLE / "gptoss-tiny-f32.gguf"
    theirs, ours = GGUFReader(path), open_gguf(path)
    meta = {k: f.contents() for k, f in theirs.fields.items() if not k.startswith("GGUF.")}
    assert dict(ours.metadata) == meta
    assert list(ours.tensors) == [t.name for t in theirs.tensors]
    for t in theirs.tensors:
        mine = ours.tensors[t.name]
        assert (mine.offset, mine.nbytes) == (t.data_offset, t.n_bytes)
        assert mine.shape == tuple(int(n) for n in t.shape)[::-1]
        np.testing.assert_array_equal(ours.raw(t.name), t.data.reshape(-1).view(np.uint8))


@pytest.mark.parametrize(("code", "layout", "value"), SCALARS)
def test_types_of_values(tmp_path, code, layout, value):
    raw = struct.pack(layout, value)
    found = with_entries(
        tmp_path,
        entry_bytes("one", code, raw),
        entry_bytes("three", 9, struct.pack("<IQ", code, 3) + raw * 3),
        entry_bytes("none", 9, struct.pack("<IQ", code, 0)),
        entry_bytes("text", 8, string_bytes("é".encode())),
        entry_bytes("texts", 9, struct.pack("<IQ", 8, 2) + string_bytes(b"a") + string_bytes(b"")),
    )
    assert found == {
        "one": value,
        "three": (value,) * 3,
        "none": (),
        "text": "é",
        "texts": ("a", ""),
    }
    assert type(found["one"]) is type(value)


def test_version_2(tmp_path):
    data = (ORACLE / "llama-tiny-q8_0.gguf").read_bytes()
    path = tmp_path / "m.gguf"
    path.write_bytes(data[:4] + struct.pack("<I", 2) + data[8:])
    assert open_gguf(path).version == 2


def test_alignment_of_64(tmp_path):
    tensors = {n: Stored(bytes([i]) * 40, (10,)) for i, n in enumerate("abc")}
    file = open_gguf(write(tmp_path, {"general.alignment": 64}, tensors, alignment=64))
    assert [t.offset % 64 for t in file.tensors.values()] == [0, 0, 0]
    assert [bytes(file.raw(n)[:1]) for n in "abc"] == [b"\0", b"\1", b"\2"]
    assert file.tensors["a"].dtype is F32


def test_raw_is_a_view_that_cannot_be_written():
    file = open_gguf(ORACLE / "llama-tiny-f16.gguf")
    raw = file.raw("output.weight")
    assert np.shares_memory(raw, file.data)
    with pytest.raises(ValueError, match="read-only"):
        raw[0] = 1


def test_type_that_is_not_supported(tmp_path):
    for code, word in ((16, "type iq2_xxs is not supported .supported: f32, f16"), (77, "type 77")):
        path = write(tmp_path, tensors={"a": Stored(bytes(256), (256,), code)})
        with pytest.raises(ModelError, match=rf"tensor 'a': {word}"):
            open_gguf(path)


def test_row_of_half_a_block(tmp_path):
    path = write(tmp_path, tensors={"a": Stored(bytes(34), (2, 16), 8)})
    with pytest.raises(ModelError, match="a row of q8_0 must be a multiple of 32 elements"):
        open_gguf(path)


def test_hole_between_tensors(tmp_path):
    tensors = {"a": Stored(bytes(128), (16,)), "b": Stored(bytes(64), (16,))}
    with pytest.raises(ModelError, match="64 bytes before tensor 'b' belong to no tensor"):
        open_gguf(write(tmp_path, tensors=tensors))


def test_shapes_whose_size_overflows_64_bits(tmp_path):
    path = write(tmp_path, tensors={"a": Stored(bytes(64), (2**32, 2**32))})
    with pytest.raises(ModelError, match="lies outside the file"):
        open_gguf(path)


def test_limits_of_metadata(tmp_path, monkeypatch):
    monkeypatch.setattr(gguf_header, "MAX_ARRAY_ELEMENTS", 5)
    assert open_gguf(write(tmp_path, {"a": [1, 2], "b": [1, 2, 3]})).metadata["a"] == (1, 2)
    with pytest.raises(ModelError, match="'b' has 4 elements: all arrays together"):
        open_gguf(write(tmp_path, {"a": [1, 2], "b": [1, 2, 3, 4]}))
    monkeypatch.setattr(gguf_header, "MAX_STRING", 5)
    with pytest.raises(ModelError, match="the value of 'a' has 6 bytes"):
        open_gguf(write(tmp_path, {"a": "123456"}))


def test_names_are_escaped_in_messages(tmp_path):
    path = write(tmp_path, tensors={"a\n\x1b[31m": Stored(bytes(64), (16,), 12)})
    with pytest.raises(ModelError) as info:
        open_gguf(path)
    assert str(info.value).isprintable()
    assert "'a\\n\\x1b[31m'" in str(info.value)
