import copy
import pickle

import pytest

from ggsched.errors import GraphError
from ggsched.ir.dtype import ALL_DTYPES, F16, F32, I32, MXFP4, Q4_0, Q8_0, dtype_by_name


@pytest.mark.parametrize(
    ("dtype", "elements", "nbytes"),
    [
        (F32, 5, 20),
        (F16, 5, 10),
        (I32, 0, 0),
        (Q8_0, 64, 68),
        (Q4_0, 32, 18),
        (MXFP4, 96, 51),
        (Q8_0, 0, 0),
    ],
)
def test_row_nbytes(dtype, elements, nbytes):
    assert dtype.row_nbytes(elements) == nbytes


def test_a_row_must_fill_whole_blocks():
    with pytest.raises(GraphError, match="whole q8_0 blocks"):
        Q8_0.row_nbytes(33)


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_a_type_stays_itself_by_name_copy_and_pickle(dtype):
    # Types are compared with `is`, so a copy that is another object would fit no op.
    assert dtype_by_name(str(dtype)) is dtype
    assert copy.deepcopy(dtype) is dtype
    assert pickle.loads(pickle.dumps(dtype)) is dtype


def test_unknown_type_names_the_known_ones():
    with pytest.raises(GraphError, match="mxfp4"):
        dtype_by_name("f8")
