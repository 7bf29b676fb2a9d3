"""Memory of a CPU that a GPU copies from or to: locked while it is used, and only then."""

import numpy as np
import pytest

from ggsched.backend.page_lock import PageLock, lock_pages, locks_pages
from ggsched.config import Settings
from ggsched.files.mapping import file_behind, map_file
from ggsched.ir.builder import GraphBuilder
from ggsched.passes.place import Constraints
from ggsched.scheduler import Scheduler
from ggsched_offload.offload import ExpertPolicy
from tests.run.devices import TestDevice

SIZE = 1 << 15
X = np.arange(SIZE, dtype=np.float32)


class Locking(TestDevice):
    """A device with memory of its own that locks pages, unless it is set to refuse."""

    def __init__(self, *, refuses=False):
        super().__init__(
            "gpu:0", is_async=True, is_host=False, kind="gpu", memory_nbytes=1 << 30
        )  # fmt: skip
        self.refuses = refuses
        self.locked, self.unlocked = [], 0

    def __page_lock__(self, memory):
        if self.refuses:
            return None
        self.locked.append(np.frombuffer(memory, np.uint8))
        return self.unlock

    def unlock(self):
        self.unlocked += 1


def on_both():
    """A graph whose weight is on the CPU, and of which a part runs there."""
    g = GraphBuilder("both")
    w = g.weight("w", (SIZE,))
    y = g.add(g.silu(g.input("x", (SIZE,))), w)
    return g.build(g.gelu(g.silu(y)))


def prepared(gpu, tmp_path, when, *, checked=False):
    """Return a scheduler, a graph and its constraints, and the weight as it is in its file."""
    X.tofile(tmp_path / "w.bin")
    mapped = map_file(str(tmp_path / "w.bin")).view(np.float32)
    cpu = TestDevice("cpu:0", is_async=True, imports_host_memory=True, kind="cpu")
    graph = on_both()
    last = graph.nodes[-1].id
    wanted = Constraints({"w": 1}, {last: 1}, offload=ExpertPolicy(when, 2))
    settings = Settings(checked=checked)
    return Scheduler([gpu, cpu], weights={"w": mapped}, settings=settings), graph, wanted, mapped


def silu(x):
    return x / (1 + np.exp(-x))


@pytest.mark.parametrize("checked", [False, True])
def test_a_weight_that_may_be_copied_is_read_into_locked_memory(tmp_path, checked):
    gpu = Locking()
    scheduler, graph, wanted, mapped = prepared(gpu, tmp_path, "on", checked=checked)
    with scheduler:
        for _ in range(2):
            (y,) = scheduler.run(graph, {"x": X}, wanted).values()
            np.testing.assert_allclose(y, silu(silu(X) + X), rtol=1e-5)
        weights = [a for a in gpu.locked if np.array_equal(a.view(np.float32), X)]
        assert len(weights) == 1
        assert not np.shares_memory(weights[0], mapped)
        assert file_behind(weights[0]) is None
        arenas = len(gpu.locked) - 1
        assert arenas == 1, "the CPU's results, which the GPU copies"
        assert gpu.unlocked == 0
    assert gpu.unlocked == len(gpu.locked)


def test_without_a_decision_the_mapping_itself_is_used(tmp_path):
    gpu = Locking()
    scheduler, graph, wanted, mapped = prepared(gpu, tmp_path, "off")
    with scheduler:
        scheduler.run(graph, {"x": X}, wanted)
        held = scheduler._store.resident("w")
        assert held is not None
        assert np.shares_memory(np.frombuffer(held.buffer.host_view(), np.uint8), mapped)


def test_what_cannot_be_locked_is_used_as_it_is(tmp_path):
    gpu = Locking(refuses=True)
    scheduler, graph, wanted, mapped = prepared(gpu, tmp_path, "on")
    with scheduler:
        (y,) = scheduler.run(graph, {"x": X}, wanted).values()
        np.testing.assert_allclose(y, silu(silu(X) + X), rtol=1e-5)
        held = scheduler._store.resident("w")
        assert held is not None
        assert np.shares_memory(np.frombuffer(held.buffer.host_view(), np.uint8), mapped)
    assert gpu.unlocked == 0


def test_a_lock_is_closed_once():
    gpu = Locking()
    lock = lock_pages(gpu, X.view(np.uint8).data)
    assert isinstance(lock, PageLock)
    lock.close()
    lock.close()
    assert gpu.unlocked == 1
    assert locks_pages(gpu)
    assert not locks_pages(TestDevice())
    assert lock_pages(TestDevice(), X.view(np.uint8).data) is None
    assert lock_pages(gpu, X.view(np.uint8).data[:100]) is None, "shares its page with others"
