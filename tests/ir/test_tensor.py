from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggsched.errors import GraphError
from ggsched.ir.dtype import F16, F32, I32, Q4_0, Q8_0
from ggsched.ir.tensor import Role, Tensor, contiguous_strides, span_nbytes, verify_window


def window(shape, strides=None, *, dtype=F32, offset=0, storage=0, number=1, nbytes=None):
    strides = contiguous_strides(dtype, shape) if strides is None else strides
    size = span_nbytes(dtype, shape, strides) if nbytes is None else nbytes
    return Tensor(number, "t", dtype, shape, strides, storage, offset, size, Role.TEMP)


def root(shape, dtype=F32):
    return window(shape, dtype=dtype, number=0)


@pytest.mark.parametrize(
    ("dtype", "shape", "strides", "nbytes"),
    [
        (F32, (), (), 4),
        (F32, (3,), (4,), 12),
        (F32, (2, 3), (12, 4), 24),
        (F16, (2, 3, 4), (24, 8, 2), 48),
        (Q8_0, (64,), (34,), 68),
        (Q4_0, (3, 64), (36, 18), 108),
        (F32, (0, 3), (12, 4), 0),
        (I32, (3, 0), (0, 4), 0),
    ],
)
def test_contiguous(dtype, shape, strides, nbytes):
    assert contiguous_strides(dtype, shape) == strides
    assert span_nbytes(dtype, shape, strides) == nbytes
    assert window(shape, dtype=dtype).is_contiguous


@pytest.mark.parametrize(
    ("shape", "strides", "nbytes"),
    [((2, 3), (16, 4), 28), ((3, 2), (4, 12), 24), ((2, 2), (0, 4), 8), ((4,), (8,), 28)],
)
def test_span_of_strided_windows(shape, strides, nbytes):
    assert span_nbytes(F32, shape, strides) == nbytes


@pytest.mark.parametrize(
    ("shape", "strides"),
    [((2,), ()), ((1,) * 9, (4,) * 9), ((-1,), (4,)), ((2,), (-4,))],
)
def test_span_refuses(shape, strides):
    with pytest.raises(GraphError):
        span_nbytes(F32, shape, strides)


def test_views_and_ends():
    r = root((4, 2))
    v = window((2, 2), offset=8)
    assert not r.is_view
    assert v.is_view
    assert (v.offset, v.end, v.size) == (8, 24, 4)


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=4),
    st.lists(st.integers(0, 9), min_size=4, max_size=4),
)
def test_self_overlap_is_never_missed(shape, steps):
    strides = tuple(4 * s for s in steps[: len(shape)])
    t = window(tuple(shape), strides)
    cells = np.zeros(t.nbytes // 4, int)
    for index in np.ndindex(*shape):
        cells[sum(i * s for i, s in zip(index, strides, strict=True)) // 4] += 1
    if (cells > 1).any():
        assert t.may_overlap_itself


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_permuted_windows_do_not_overlap_themselves(order):
    strides = contiguous_strides(F32, (2, 3, 4))
    t = window(tuple((2, 3, 4)[a] for a in order), tuple(strides[a] for a in order))
    assert not t.may_overlap_itself


@pytest.mark.parametrize(
    ("bad", "of", "words"),
    [
        (window((2,), dtype=F16), root((2,)), "a window of f16"),
        (window((2,), offset=4), root((2,)), "outside the storage"),
        (window((1,), offset=-4), root((2,)), "outside the storage"),
        (window((1,), offset=2), root((2,)), "not aligned"),
        (window((2,), (6,)), root((4,)), "not aligned"),
        (window((2,), nbytes=4), root((2,)), "not those of the strides"),
        (window((64,), (68,), dtype=Q8_0), root((128,), Q8_0), "adjacent"),
        (window((2, 2), (4, 8), number=0), root((2, 2)), "contiguous from its first byte"),
    ],
)
def test_unsound_windows_are_refused(bad, of, words):
    with pytest.raises(GraphError, match=words):
        verify_window(bad, of)


@pytest.mark.parametrize("changed", [{"shape": [2]}, {"strides": [4]}])
def test_what_is_no_tuple_is_refused(changed):
    with pytest.raises(GraphError, match="must be tuples"):
        verify_window(replace(window((2,)), **changed), root((2,)))
