"""Products that do not depend on each other have no barrier between them; all others have one."""

import numpy as np
import pytest

from ggsched.ir.builder import GraphBuilder
from ggsched_cpu.device import CpuDevice, CpuSettings
from ggsched_cpu.kernels.walk import COUNTER_SHIFT, COUNTERS, NO_BARRIER, SERIAL
from ggsched_cpu.lowering.barriers import flags_of
from ggsched_cpu.lowering.tasks import Task, extent
from ggsched_cpu.native import library
from tests.backends import against_oracle
from tests.backends.against_oracle import tame

pytestmark = pytest.mark.skipif(library() is None, reason="no compiled kernels here")

MEMORY = np.zeros(64, np.float32)


def part(i):
    return MEMORY[8 * i : 8 * i + 8]


def product(out, *reads, serial=False, says=True):
    """Return a task that reads and writes parts of the memory."""
    keeps = (*map(part, reads), part(out))
    return Task(0, (), 4, serial, 0, keeps, keeps[-1] if says else None)


def shape_of(tasks):
    """Return for each task its counter, and whether a barrier follows it."""
    return [(f >> COUNTER_SHIFT, not f & NO_BARRIER) for f in flags_of(tasks)]


class TestFlags:
    def test_products_of_one_row_are_joined(self):
        tasks = [product(1, 0), product(2, 0), product(3, 0)]
        assert shape_of(tasks) == [(0, False), (1, False), (2, True)]

    def test_as_many_as_there_are_counters(self):
        tasks = [product(1 + i, 0) for i in range(COUNTERS + 2)]
        assert shape_of(tasks) == [
            *((i, i == COUNTERS - 1) for i in range(COUNTERS)),
            (0, False),
            (1, True),
        ]

    @pytest.mark.parametrize(
        "second",
        [product(2, 1), product(0, 3), product(1, 3), product(2, 3, says=False)],
        ids=["reads what is written", "writes what is read", "writes the same", "does not say"],
    )
    def test_barriers_stay(self, second):
        assert shape_of([product(1, 0), second]) == [(0, True), (0, True)]

    def test_all_before_it_count(self):
        """The third touches nothing of the second and reads the first."""
        tasks = [product(1, 0), product(2, 0), product(3, 1)]
        assert shape_of(tasks) == [(0, False), (1, True), (0, True)]

    def test_tasks_of_one_thread(self):
        tasks = [product(1, 0), product(2, 1, serial=True), product(3, 2, serial=True)]
        tasks += [product(4, 3), product(5, 3)]
        assert shape_of(tasks) == [(0, True), (0, False), (0, True), (0, False), (1, True)]
        assert [bool(f & SERIAL) for f in flags_of(tasks)] == [False, True, True, False, False]


@pytest.mark.parametrize("view", [MEMORY[4:12], MEMORY[4:12][::-1], MEMORY[4:12].reshape(2, 4).T])
def test_extent(view):
    start = MEMORY.ctypes.data
    assert extent(view) == (start + 16, start + 48)


@pytest.mark.parametrize("threads", [2, 3, 5])
@pytest.mark.parametrize("m", [1, 4, 40])
def test_products_beside_and_behind_each_other(monkeypatch, threads, m):
    """Six weights of one row, and products of their results, cut into as many parts as can be."""
    monkeypatch.setattr("ggsched_cpu.lowering.tasks.PART_NBYTES", 64)
    monkeypatch.setattr("ggsched_cpu.lowering.tasks.SHARED_NBYTES", 64)
    monkeypatch.setattr("ggsched_cpu.lowering.tasks.SERIAL_NBYTES", 0)
    monkeypatch.setattr("ggsched_cpu.lowering.products.SERIAL_NBYTES", 0)
    g = GraphBuilder()
    x, v = g.input("x", (m, 64)), g.weight("v", (64, 64))
    beside = [g.mul_mat(g.weight(f"w{i}", (64, 64)), x) for i in range(6)]
    behind = [g.mul_mat(v, y) for y in beside]
    total = behind[0]
    for y in behind[1:]:
        total = g.add(total, y)
    graph = g.build(total, *beside[:2])
    device = CpuDevice(0, CpuSettings(threads=threads, activations="f32"))
    against_oracle.check(device, graph, tame(graph, m), runs=5)
    device.close()
