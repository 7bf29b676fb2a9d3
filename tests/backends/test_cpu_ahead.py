"""Products say where the weights of their parts lie, so that waiting members can fetch them."""

import numpy as np
import pytest

from ggsched.ir.builder import GraphBuilder
from ggsched_cpu.compiled.products import vectors_task
from ggsched_cpu.device import CpuDevice, CpuSettings
from ggsched_cpu.native import Kernels, kernels_for, library
from ggsched_cpu_kernels import ahead, walk
from tests.backends import against_oracle
from tests.backends.against_oracle import tame

pytestmark = pytest.mark.skipif(library() is None, reason="no compiled kernels here")


@pytest.mark.parametrize("threads", [2, 3, 16])
@pytest.mark.parametrize("rows", [100, 1024, 2816])
def test_parts_lie_behind_each_other(threads, rows):
    kernels = kernels_for(threads, "f32", "auto")
    assert isinstance(kernels, Kernels)
    w, x, out = (np.zeros(shape, np.float32) for shape in ((rows, 512), (1, 512), (1, rows)))
    task = vectors_task(w, x, out, kernels)
    start, nbytes = task.weights
    assert start == w.ctypes.data
    assert (task.parts - 1) * nbytes < w.nbytes <= task.parts * nbytes


def test_what_one_thread_does_says_nothing():
    kernels = kernels_for(4, "f32", "auto")
    assert isinstance(kernels, Kernels)
    w, x, out = (np.zeros(shape, np.float32) for shape in ((8, 64), (1, 64), (1, 8)))
    assert vectors_task(w, x, out, kernels).weights == (0, 0)


def test_an_entry_is_a_line():
    assert ahead.ENTRY_NBYTES == 8 * walk.ENTRY_SLOTS == 64


@pytest.mark.parametrize("threads", [2, 5])
def test_tables_longer_than_the_notes(threads):
    """Products of which each needs the one before, more of them than a member notes."""
    g = GraphBuilder()
    x = g.input("x", (1, 128))
    for i in range(ahead.NOTES + 8):
        x = g.scale(g.mul_mat(g.weight(f"w{i}", (128, 128)), x), 0.1)
    graph = g.build(x)
    device = CpuDevice(0, CpuSettings(threads=threads, activations="f32"))
    against_oracle.check(device, graph, tame(graph, 0), runs=4)
    device.close()
