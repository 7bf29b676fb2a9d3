"""Arithmetic on quantised numbers is exact, whatever type its sums are made in."""

import numpy as np
import pytest
from onnx import TensorProto

import ggsched
from ggsched.errors import ModelError
from tests.importers.onnx_files import F, model, node, tensor

U8, I8, I32 = TensorProto.UINT8, TensorProto.INT8, TensorProto.INT32
RNG = np.random.default_rng(0)


def run(proto, **inputs):
    made = ggsched.from_onnx(proto)
    with ggsched.Scheduler(["cpu:0"], weights=made.weight) as scheduler:
        found = made.run(scheduler, inputs)["y"]
    return found, [n.op for n in made.bind(shapes={k: v.shape for k, v in inputs.items()})
                   .graph.nodes]  # fmt: skip


@pytest.mark.parametrize(
    ("terms", "largest", "in_f32"), [(200, 127, True), (1000, 20, True), (1000, 127, False)]
)
def test_products_with_weights(terms, largest, in_f32):
    """Sums that f32 may not hold are made in f64: here nearly all terms have one sign."""
    w = RNG.integers(largest // 2, largest + 1, (terms, 5)).astype(np.int8)
    x = RNG.integers(200, 256, (3, terms)).astype(np.uint8)
    zeros = {"xz": np.array(3, np.uint8), "wz": np.full(5, -1, np.int8)}
    proto = model([node("MatMulInteger", "x w xz wz", "y")], [tensor("x", [3, terms], U8)],
                  [tensor("y", None, I32)], {"w": w, **zeros})  # fmt: skip
    found, ops = run(proto, x=x)
    np.testing.assert_array_equal(found, (x.astype(np.int32) - 3) @ (w.astype(np.int32) + 1))
    assert ("mul_mat" in ops) == in_f32


def test_products_of_inputs():
    a = RNG.integers(0, 256, (2, 4, 700)).astype(np.uint8)
    b = RNG.integers(-128, 128, (2, 700, 3)).astype(np.int8)
    zeros = {"az": np.array([9, 8, 7, 6], np.uint8)}
    inputs = [tensor("a", a.shape, U8), tensor("b", b.shape, I8)]
    proto = model([node("MatMulInteger", "a b az", "y")], inputs, [tensor("y", None, I32)], zeros)
    found, _ = run(proto, a=a, b=b)
    wide = a.astype(np.int32) - np.array([9, 8, 7, 6])[:, None]
    np.testing.assert_array_equal(found, wide @ b.astype(np.int32))


def test_convolutions_with_scales_of_channels():
    """Around x are zero points; results are rounded, shifted and saturated."""
    x = RNG.integers(0, 256, (1, 2, 5, 5)).astype(np.uint8)
    w = RNG.integers(-128, 128, (3, 2, 3, 3)).astype(np.int8)
    bias = np.array([100, -2000, 0], np.int32)
    scales = np.array([0.01, 0.02, 0.5], np.float32)
    weights = {"xs": np.float32(0.5), "xz": np.uint8(10), "w": w, "ws": scales,
               "wz": np.zeros(3, np.int8), "ys": np.float32(2), "yz": np.uint8(128),
               "b": bias}  # fmt: skip
    proto = model([node("QLinearConv", "x xs xz w ws wz ys yz b", "y", pads=[1, 1, 1, 1])],
                  [tensor("x", x.shape, U8)], [tensor("y", None, U8)],
                  {n: np.asarray(v) for n, v in weights.items()})  # fmt: skip
    padded = np.pad(x.astype(np.int64) - 10, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded[0], (3, 3), axis=(1, 2))
    sums = np.einsum("chwij,mcij->mhw", windows, w.astype(np.int64)) + bias[:, None, None]
    factor = (np.float32(0.5) * scales / np.float32(2))[:, None, None]
    wanted = np.clip(np.round(sums.astype(np.float32) * factor) + 128, 0, 255)
    found, _ = run(proto, x=x)
    np.testing.assert_array_equal(found[0], wanted)
    assert {0, 255} <= set(found.reshape(-1).tolist())


def test_blocks_whose_last_one_is_short():
    x = RNG.integers(-128, 128, (2, 7)).astype(np.int8)
    scales = RNG.random((2, 3)).astype(np.float32)
    nodes = [node("DequantizeLinear", "x s", "y", axis=1, block_size=3)]
    proto = model(nodes, [tensor("x", x.shape, I8)], [tensor("y", None, F)], {"s": scales},
                  opset=21)  # fmt: skip
    found, _ = run(proto, x=x)
    np.testing.assert_array_equal(found, x * np.repeat(scales, 3, axis=1)[:, :7])
    bad = model(nodes, [tensor("x", x.shape, I8)], [tensor("y", None, F)], {"s": scales[:, :2]},
                opset=21)  # fmt: skip
    with pytest.raises(ModelError, match="for blocks of 3 along axis 1"):
        ggsched.from_onnx(bad).bind()


def test_integers_that_become_floats_again_are_floats_all_the_time():
    """Pairs of QuantizeLinear and DequantizeLinear, as between the layers of quantised models."""
    weights = {"s": np.float32(0.25), "z": np.array(100, np.uint8)}
    nodes = [node("QuantizeLinear", "x s z", "q"), node("DequantizeLinear", "q s z", "y")]
    proto = model(nodes, [tensor("x", [600])], [tensor("y", None)],
                  {n: np.asarray(v) for n, v in weights.items()})  # fmt: skip
    x = np.concatenate([np.arange(-256, 256) / 8, RNG.normal(0, 30, 88)]).astype(np.float32)
    found, ops = run(proto, x=x)
    whole = np.clip(np.round(x / np.float32(0.25)) + 100, 0, 255)
    np.testing.assert_array_equal(found, (whole - 100) * np.float32(0.25))
    assert {"nd.round", "clamp"} <= set(ops)
    assert not {"nd.round_to", "nd.cast"} & set(ops)
    both = model(nodes, [tensor("x", [600])], [tensor("y", None), tensor("q", None, U8)],
                 {n: np.asarray(v) for n, v in weights.items()})  # fmt: skip
    made = ggsched.from_onnx(both)
    with ggsched.Scheduler(["cpu:0"], weights=made.weight) as scheduler:
        np.testing.assert_array_equal(made.run(scheduler, {"x": x})["q"], whole.astype(np.uint8))
