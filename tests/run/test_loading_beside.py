"""Weights are on their way to a device while the caller does something else."""

import sys
import threading
import weakref

import numpy as np
import pytest

from ggsched.config import Settings
from ggsched.errors import DeviceFault
from ggsched.files.mapping import map_file
from ggsched.ir.builder import GraphBuilder
from ggsched.run import loading
from ggsched.run.loading import INTERVAL_S, Loader, quick_switching
from ggsched.scheduler import Scheduler
from tests.run.devices import TestDevice

PIECE = 4096
LENGTH = 3 << 20
"""Of a weight, in f32: two pieces."""


def far_device(**facts):
    return TestDevice(**{"is_async": True, "is_host": False, "alignment": 64, **facts})


def sums(names):
    g = GraphBuilder("sums")
    y = g.input("x", (LENGTH,))
    for name in names:
        y = g.add(y, g.weight(name, (LENGTH,)))
    return g.build(y=y)


def two_sums():
    return sums("ab")


@pytest.fixture
def weights(tmp_path):
    """Two that lie in mapped files: zeros and ones."""
    for i, name in enumerate("ab"):
        np.full(LENGTH, i, np.float32).tofile(tmp_path / name)
    return {name: map_file(str(tmp_path / name)).view(np.float32) for name in "ab"}


def held_back(device, writes):
    """Let uploads of whole pieces wait for an event; note the threads that compile and allocate."""
    write = device.write_memory

    def late(memory, offset, source):
        if source.nbytes == loading.PIECE_NBYTES:
            assert writes.wait(10)
        write(memory, offset, source)

    device.write_memory = late


def test_programs_are_compiled_while_weights_are_uploaded(weights):
    """No upload of a whole piece is done before programs are compiled, on the caller's thread."""
    device, compiled, threads = far_device(), threading.Event(), []
    held_back(device, compiled)
    compile_ = device.compile

    def noted(nodes, stream):
        threads.append(threading.current_thread())
        made = compile_(nodes, stream)
        compiled.set()
        return made

    device.compile = noted
    with Scheduler([device], weights=weights, settings=Settings(checked=True)) as scheduler:
        out = scheduler.run(two_sums(), {"x": np.ones(LENGTH, np.float32)})
        assert (out["y"] == 2).all()
        assert threads == [threading.current_thread()]
        assert len(device.open_streams) == 1, "the loader's own stream is closed"


def test_nothing_runs_before_all_weights_are_there(weights):
    """The last upload is late; the run waits for it."""
    device, late = far_device(), threading.Event()
    held_back(device, late)
    threading.Timer(0.05, late.set).start()
    with Scheduler([device], weights=weights) as scheduler:
        out = scheduler.run(two_sums(), {"x": np.ones(LENGTH, np.float32)})
        assert (out["y"] == 2).all()


def test_progress_is_reported_on_the_callers_thread(weights):
    reported = []

    def progress(name, nbytes):
        reported.append((name, nbytes, threading.current_thread()))

    with Scheduler([far_device()], weights=weights, progress=progress) as scheduler:
        scheduler.prepare(two_sums())
        here = threading.current_thread()
        assert reported == [("a", 4 * LENGTH, here), ("b", 4 * LENGTH, here)]


def test_an_upload_that_fails_ends_the_run_and_leaves_nothing(weights):
    device = far_device()

    def bad(memory, offset, source):
        raise OSError("bus error")

    device.write_memory = bad
    with Scheduler([device], weights=weights) as scheduler:
        with pytest.raises(DeviceFault, match="bus error"):
            scheduler.prepare(two_sums())
        assert device.open_buffers == []
        assert scheduler.resident_nbytes("weight") == {}


def test_what_is_not_on_its_way_is_left_out_when_compiling_fails(weights, monkeypatch):
    """Uploads are held until compiling has failed, so no more is read than a ring takes."""
    device, failed, read = far_device(), threading.Event(), []
    held_back(device, failed)
    monkeypatch.setattr(loading, "RING", 2)
    original = loading.read_bytes

    def noted(source, target):
        read.append(source.nbytes)
        original(source, target)

    monkeypatch.setattr(loading, "read_bytes", noted)

    def compile_(nodes, stream):
        raise DeviceFault("no compiler")

    device.compile = compile_
    cancel = Loader.cancel

    def cancelled(self):
        cancel(self)
        failed.set()

    monkeypatch.setattr(Loader, "cancel", cancelled)
    with Scheduler([device], weights=weights) as scheduler:
        with pytest.raises(DeviceFault, match="no compiler"):
            scheduler.prepare(two_sums())
        assert len(read) <= 3
        assert device.open_buffers == []
        assert scheduler.resident_nbytes("weight") == {}


def test_uploads_begin_when_all_memory_is_there(weights, monkeypatch):
    """Calls of the driver by the caller would wait for the interpreter beside them."""
    device, order = far_device(), []
    allocate, begin = device.allocate, Loader.begin

    def noted(nbytes):
        order.append("allocate")
        return allocate(nbytes)

    def began(self):
        order.append("begin")
        begin(self)

    device.allocate = noted
    monkeypatch.setattr(Loader, "begin", began)
    with Scheduler([device], weights=weights) as scheduler:
        scheduler.prepare(two_sums())
    assert order == ["allocate"] * (len(order) - 1) + ["begin"]


def test_weights_that_are_made_when_asked_for_do_not_pile_up():
    """Sources that convert give fresh memory: each is read before the next one is requested."""
    alive, most = [], []

    def source(name):
        made = np.full(LENGTH, 1, np.float32)
        alive.append(name)
        weakref.finalize(made, alive.remove, name)
        most.append(len(alive))
        return made

    with Scheduler([far_device()], weights=source) as scheduler:
        out = scheduler.run(sums("abcdef"), {"x": np.ones(LENGTH, np.float32)})
        assert (out["y"] == 7).all()
    assert max(most) <= 3


def test_without_a_stream_left_the_caller_uploads(weights):
    device = far_device(max_streams=1)
    with Scheduler([device], weights=weights) as scheduler:
        out = scheduler.run(two_sums(), {"x": np.ones(LENGTH, np.float32)})
        assert (out["y"] == 2).all()


def test_threads_switch_sooner_only_while_weights_are_uploaded(weights):
    device, before, seen = far_device(), sys.getswitchinterval(), []
    compile_ = device.compile

    def noted(nodes, stream):
        seen.append(sys.getswitchinterval())
        return compile_(nodes, stream)

    device.compile = noted
    with Scheduler([device], weights=weights) as scheduler:
        scheduler.prepare(two_sums())
    assert seen == [pytest.approx(INTERVAL_S)]
    assert sys.getswitchinterval() == before


def test_blocks_of_quick_switching_may_overlap():
    before = sys.getswitchinterval()
    first, second = quick_switching(), quick_switching()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert sys.getswitchinterval() == pytest.approx(INTERVAL_S)
    second.__exit__(None, None, None)
    assert sys.getswitchinterval() == pytest.approx(before)


def test_what_somebody_else_sets_meanwhile_stays():
    before = sys.getswitchinterval()
    try:
        with quick_switching():
            sys.setswitchinterval(2e-3)
        assert sys.getswitchinterval() == pytest.approx(2e-3)
    finally:
        sys.setswitchinterval(before)
