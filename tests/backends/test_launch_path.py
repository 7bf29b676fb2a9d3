"""How far a launch goes through the code from ``Stream.launch`` to the driver or the kernels.

Who changes how commands are enqueued has to read these modules, and each move costs host time.
"""

from contextlib import closing

import pytest

from ggsched.ir.builder import GraphBuilder
from ggsched_cpu.device import CpuDevice, CpuSettings
from ggsched_testing.eager import bound_nodes
from tests.backends.fake_cuda import FakeDriver, fake_device, fake_gpu, fake_program, install
from tests.support.call_path import modules_of

TIMEOUT_S = 20.0
MAX_MODULES = 4
MAX_MOVES = 6


def check_launch(stream, program):
    """A launch that is not the first of its program takes a short way."""
    stream.launch(program)
    stream.sync(TIMEOUT_S)
    way = modules_of(lambda: stream.launch(program))
    stream.sync(TIMEOUT_S)
    assert way, "the hook has seen nothing"
    assert len(set(way)) <= MAX_MODULES, way
    assert len(way) - 1 <= MAX_MOVES, way


def test_cuda(monkeypatch):
    pytest.importorskip("cuda.bindings", reason="cuda-bindings are in the extra 'nvrtc'")
    fake = install(FakeDriver(), monkeypatch)
    with closing(fake_device(fake_gpu(), "cuda:0")) as device:
        stream = device.create_stream()
        stream.fake = fake
        check_launch(stream, fake_program(stream, [("n0 add", 1e-6)]))


def test_cpu():
    g = GraphBuilder()
    x = g.input("x", (3, 8))
    graph = g.build(g.add(x, x))
    with closing(CpuDevice(0, CpuSettings(threads=1))) as device:
        buffers = {t.id: device.allocate(t.nbytes) for t in graph.tensors if not t.is_view}
        with closing(device.create_stream()) as stream:
            check_launch(stream, device.compile(bound_nodes(graph, buffers), stream))
