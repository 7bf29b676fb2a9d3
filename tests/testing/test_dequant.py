import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize as gguf_dequantize
from hypothesis import given
from hypothesis import strategies as st

from ggsched.backend.arrays import numpy_shape
from ggsched.backend.packed import dequantize
from ggsched.errors import GraphError, UsageError
from ggsched.ir.dtype import BF16, F32, FLOAT_DTYPES, I32, MXFP4, Q4_0, Q8_0

PACKED = [t for t in FLOAT_DTYPES if t is not F32]


@pytest.mark.parametrize("dtype", PACKED, ids=str)
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 3), blocks=st.integers(1, 3))
def test_any_bytes_decode_as_the_gguf_package_does(dtype, seed, rows, blocks):
    shape = (rows, max(32, dtype.block) * blocks)
    rng = np.random.default_rng(seed)
    raw = rng.integers(0, 256, (rows, dtype.row_nbytes(shape[-1])), dtype=np.uint8)
    with np.errstate(all="ignore"):
        theirs = gguf_dequantize(raw, GGMLQuantizationType[str(dtype).upper()])
    ours = dequantize(raw, dtype, shape)
    np.testing.assert_array_equal(ours, theirs.astype(np.float32))
    assert ours.dtype == np.float32


def test_q8_0_by_hand():
    raw = np.zeros(34, np.uint8)
    raw[:2] = np.array([0.5], np.float16).view(np.uint8)
    raw[2:5] = np.array([1, -2, 127], np.int8).view(np.uint8)
    assert dequantize(raw, Q8_0, (32,))[:4].tolist() == [0.5, -1.0, 63.5, 0.0]


def test_q4_0_by_hand():
    raw = np.full(18, 0x88, np.uint8)
    raw[:2] = np.array([2.0], np.float16).view(np.uint8)
    raw[2] = 0xF0  # element 0 is 0 - 8, element 16 is 15 - 8
    out = dequantize(raw, Q4_0, (32,))
    assert (out[0], out[16], out[1]) == (-16.0, 14.0, 0.0)


def test_mxfp4_by_hand():
    raw = np.zeros(17, np.uint8)
    raw[0] = 128  # times two
    raw[1] = 0x97  # element 0 is 6, element 16 is -0.5
    out = dequantize(raw, MXFP4, (32,))
    assert (out[0], out[16], out[1]) == (12.0, -1.0, 0.0)


def test_bf16_by_hand():
    raw = np.array([0x3F80, 0xC000], "<u2").view(np.uint8)
    assert dequantize(raw, BF16, (2,)).tolist() == [1.0, -2.0]


@pytest.mark.parametrize(
    ("dtype", "shape", "host"),
    [(F32, (2, 3), (2, 3)), (Q8_0, (2, 64), (2, 68)), (BF16, (), ()), (Q4_0, (32,), (18,))],
)
def test_numpy_shape(dtype, shape, host):
    assert numpy_shape(dtype, shape) == host


@pytest.mark.parametrize(
    ("raw", "dtype", "shape", "error"),
    [
        (np.zeros(33, np.uint8), Q8_0, (32,), UsageError),
        (np.zeros(34, np.int8), Q8_0, (32,), UsageError),
        (np.zeros(4, np.uint8), I32, (1,), UsageError),
        (np.zeros(34, np.uint8), Q8_0, (33,), GraphError),
    ],
)
def test_refusals(raw, dtype, shape, error):
    with pytest.raises(error):
        dequantize(raw, dtype, shape)
