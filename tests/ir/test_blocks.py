"""Layouts of blocks: their bits are all there, and their numbers are those of the gguf package."""

import itertools

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf import quants as gguf_quants
from hypothesis import given
from hypothesis import strategies as st

from ggsched.backend.packed import decode_layout, encoder_of, quantize
from ggsched.errors import UsageError
from ggsched.ir.dtype import F32, Q4_K, QUANTIZED_DTYPES
from ggsched.ir.layouts import LAYOUTS

ENCODED = [t for t in QUANTIZED_DTYPES if encoder_of(t)]
SEEDS = st.integers(0, 2**32 - 1)


def gguf_type(name):
    names = {t.name.lower(): t for t in GGMLQuantizationType}
    return names[name]


def random_bytes(layout, seed, rows=3, blocks=2):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (rows, blocks * layout.nbytes), dtype=np.uint8)


def theirs(name, raw):
    with np.errstate(all="ignore"):
        return gguf_quants.dequantize(raw, gguf_type(name)).astype(np.float32)


@pytest.mark.parametrize("name", LAYOUTS)
def test_each_bit_of_a_block_is_used_once(name):
    layout = LAYOUTS[name]
    assert (layout.elements, layout.nbytes) == GGML_QUANT_SIZES[gguf_type(name)]
    bits = list(layout.bits())
    assert len(set(bits)) == len(bits)
    assert set(bits) == set(itertools.product(range(layout.nbytes), range(8)))


@pytest.mark.parametrize("name", LAYOUTS)
@given(seed=SEEDS)
def test_any_bytes_mean_what_they_mean_to_the_gguf_package(name, seed):
    layout = LAYOUTS[name]
    raw = random_bytes(layout, seed)
    with np.errstate(all="ignore"):
        ours = decode_layout(raw.reshape(3, 2, -1), layout).astype(np.float32)
    np.testing.assert_array_equal(ours.reshape(3, -1), theirs(name, raw))


@pytest.mark.parametrize("dtype", ENCODED, ids=str)
@given(seed=SEEDS, zero=st.booleans(), power=st.integers(-9, 9))
def test_floats_become_the_bytes_of_the_gguf_package(dtype, seed, zero, power):
    rng = np.random.default_rng(seed)
    rows = (rng.standard_normal((3, 64)) * 2.0**power).astype(np.float32)
    rows[0, :32] *= not zero
    np.testing.assert_array_equal(
        quantize(rows, dtype), gguf_quants.quantize(rows, gguf_type(dtype.name))
    )


@pytest.mark.parametrize("dtype", [F32, Q4_K], ids=str)
def test_there_is_no_encoder_for_some(dtype):
    with pytest.raises(UsageError, match=f"no encoder for {dtype}"):
        quantize(np.zeros((1, 256), np.float32), dtype)


@pytest.mark.parametrize("name", LAYOUTS)
def test_samples_are_numbers_of_ordinary_size(name):
    raw = np.frombuffer(LAYOUTS[name].sample(), np.uint8)
    values = decode_layout(raw[None], LAYOUTS[name])
    assert np.isfinite(values).all()
    assert 0.01 < np.abs(values).max() < 3000
    assert len(set(values.ravel())) > 2
