"""Into how many parts work is cut: no more than threads, or as many for each of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggsched_cpu.lowering.products import vectors_task
from ggsched_cpu.lowering.tasks import (
    PART_NBYTES,
    PARTS_PER_THREAD,
    SERIAL_NBYTES,
    SHARED_NBYTES,
    parts_for,
)
from ggsched_cpu.native import Kernels, kernels_for, library

THREADS = st.integers(2, 64)


@given(nbytes=st.integers(0, 1 << 28), threads=THREADS)
def test_shares_come_out_even(nbytes, threads):
    parts = parts_for(nbytes, 1 << 40, threads)
    assert 1 <= parts <= PARTS_PER_THREAD * threads
    assert parts <= threads or (parts % threads == 0 and nbytes // parts >= SHARED_NBYTES)
    assert parts == 1 or nbytes // parts >= PART_NBYTES
    if nbytes >= SERIAL_NBYTES:
        assert parts >= min(threads, nbytes // PART_NBYTES)


@given(nbytes=st.integers(0, 1 << 28), most=st.integers(1, 100), threads=THREADS)
def test_there_are_no_more_parts_than_rows(nbytes, most, threads):
    assert parts_for(nbytes, most, threads) <= most


@pytest.mark.skipif(library() is None, reason="no compiled kernels here")
@pytest.mark.parametrize("threads", [2, 6, 16])
@pytest.mark.parametrize("rows", [64, 512, 1024, 2816, 4096])
def test_few_threads_have_nothing_to_do_in_the_last_turn(threads, rows):
    kernels = kernels_for(threads, "f32", "auto")
    assert isinstance(kernels, Kernels)
    w, x, out = (np.zeros(shape, np.float32) for shape in ((rows, 256), (1, 256), (1, rows)))
    task = vectors_task(w, x, out, kernels)
    turns = -(-task.parts // threads)
    assert task.parts <= threads or turns * threads <= 1.25 * task.parts
