"""Models in several files: all parts of one model, or one clear message."""

import numpy as np
import pytest

from ggsched.errors import ModelError
from ggsched_llm.gguf_split import open_model_file
from ggsched_llm.load import load_model
from tests.models.helpers import Runner, stored, tiny_arrays, tiny_gguf, tiny_meta, write_gguf

COUNT = 3


def part_path(folder, i):
    return folder / f"m-{i + 1:05}-of-{COUNT:05}.gguf"


def write_parts(folder, changes=None):
    """Write a tiny llama in parts; ``changes`` are keys of split.* for all of them."""
    arrays = list(tiny_arrays("llama").items())
    for i in range(COUNT):
        split = {"split.no": i, "split.count": COUNT, "split.tensors.count": len(arrays)}
        split |= {f"split.{key}": value for key, value in (changes or {}).items()}
        meta = {**tiny_meta("llama"), **split} if i == 0 else split
        tensors = {name: stored(array) for name, array in arrays[i::COUNT]}
        write_gguf(part_path(folder, i), meta, tensors)


@pytest.mark.parametrize("first", range(COUNT))
def test_parts_are_one_model(tmp_path, first):
    write_parts(tmp_path)
    whole = Runner(load_model(tiny_gguf(tmp_path / "whole.gguf"))).feed([1, 2, 3])
    model = load_model(part_path(tmp_path, first))
    assert {t.part for t in model.file.tensors.values()} == set(range(COUNT))
    np.testing.assert_array_equal(Runner(model).feed([1, 2, 3]), whole)


def refused(path):
    with pytest.raises(ModelError) as info:
        open_model_file(path)
    return str(info.value)


def test_missing_part(tmp_path):
    write_parts(tmp_path)
    part_path(tmp_path, 1).unlink()
    text = refused(part_path(tmp_path, 0))
    assert "1 of 3 parts are missing" in text
    assert "m-00002-of-00003.gguf" in text


def test_other_name(tmp_path):
    write_parts(tmp_path)
    path = part_path(tmp_path, 0).rename(tmp_path / "model.gguf")
    assert "must end in -00001-of-00003.gguf" in refused(path)


def test_foreign_parts(tmp_path):
    write_parts(tmp_path)
    part_path(tmp_path, 1).write_bytes(part_path(tmp_path, 2).read_bytes())
    assert "key split.no is 2 where it should be 1" in refused(part_path(tmp_path, 0))


def test_part_of_a_model_that_is_not_split(tmp_path):
    write_parts(tmp_path)
    tiny_gguf(part_path(tmp_path, 1))
    assert "key split.no is -1 where it should be 1" in refused(part_path(tmp_path, 0))


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"tensors.count": 40}, "the parts have 12 tensors, the model has 40"),
        ({"count": 2**31}, "key split.count is 2147483648"),
        ({"count": "3"}, "key split.count is '3'"),
        ({"no": 1.0}, "key split.no is 1.0"),
    ],
)
def test_damaged_keys(tmp_path, changes, word):
    write_parts(tmp_path, changes)
    assert word in refused(part_path(tmp_path, 0))


def test_tensors_in_two_parts(tmp_path):
    write_parts(tmp_path)
    split = {"split.no": 1, "split.count": COUNT, "split.tensors.count": 12}
    name, array = next(iter(tiny_arrays("llama").items()))
    write_gguf(part_path(tmp_path, 1), split, {name: stored(array)})
    assert "is in an earlier part too" in refused(part_path(tmp_path, 0))


def test_overrides(tmp_path):
    path = tiny_gguf(tmp_path / "m.gguf")
    model = load_model(path, overrides={"llama.rope.freq_base": 5e5, "general.name": "other"})
    assert model.hparams.rope.base == 5e5
    assert model.hparams.name == "other"
    with pytest.raises(ModelError, match=r"llama.block_count: is 0"):
        load_model(path, overrides={"llama.block_count": 0})
