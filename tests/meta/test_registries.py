"""A test that leaves something registered is noticed, and the next one does not meet it."""

import numpy as np
import pytest

from ggsched.ir.user_ops import Sample, register_op, unregister_op, user_ops
from ggsched_import.onnx.call import CONVERTERS as ONNX
from ggsched_import.torch.call import CONVERTERS as TORCH
from tests.support.registries import Registries


def register(name):
    register_op(name, version="1", operands=("x",), reference=np.square, samples=[Sample([(2,)])])


def test_nothing_differs_at_first():
    assert Registries.now().restore() == []


def test_a_new_op_is_removed():
    before = Registries.now()
    register("left_behind")
    assert before.restore() == ["op left_behind"]
    assert "left_behind" not in {op.name for op in user_ops()}


def test_an_op_that_was_replaced_or_removed_comes_back():
    register("kept")
    before = Registries.now()
    (kept,) = (op for op in user_ops() if op.name == "kept")
    unregister_op("kept")
    assert before.restore() == ["op kept"]
    unregister_op("kept")
    register("kept")
    assert before.restore() == ["op kept"]
    assert kept in user_ops()
    unregister_op("kept")


@pytest.mark.parametrize("table", [ONNX, TORCH])
def test_converters(table):
    before, whole = Registries.now(), dict(table)
    first = next(iter(table))
    table["mylib.twice"] = test_converters
    table[first] = test_converters
    del table[list(table)[1]]
    assert len(before.restore()) == 3
    assert table == whole


def test_converters_that_an_import_brings_are_kept():
    before = Registries.now()
    before.converters.clear()
    assert before.restore() == []
    assert TORCH
