"""How far a launch goes through the code from ``Stream.launch`` to the driver or the kernels.

Who changes how commands are enqueued has to read these modules, and each move costs host time.
"""

import sys
from itertools import groupby
from pathlib import Path

import pytest

from ggsched.ir.builder import GraphBuilder
from ggsched.testing.eager import bound_nodes
from ggsched_cpu.device import CpuDevice, CpuSettings
from tests.backends.fake_cuda import FakeDriver, fake_device, fake_gpu, fake_program, install

ROOT = Path(__file__).parents[2]
MAX_MODULES = 4
MAX_MOVES = 6


def modules_of(call):
    """Return the modules of ggsched whose functions a call enters, in order."""
    found = []

    def note(frame, event, _):
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(ROOT) and "tests" not in path.parts:
            found.append(path.stem)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return [module for module, _ in groupby(found)]


def check(way):
    assert way, "the hook has seen nothing"
    assert len(set(way)) <= MAX_MODULES, way
    assert len(way) - 1 <= MAX_MOVES, way


def test_cuda(monkeypatch):
    pytest.importorskip("cuda.bindings", reason="cuda-bindings are in the extra 'nvrtc'")
    fake = install(FakeDriver(), monkeypatch)
    device = fake_device(fake_gpu(), "cuda:0")
    stream = device.create_stream()
    stream.fake = fake
    program = fake_program(stream, [("n0 add", 1e-6)])
    stream.launch(program)
    check(modules_of(lambda: stream.launch(program)))
    stream.sync(10.0)
    device.close()


def test_cpu():
    device = CpuDevice(0, CpuSettings(threads=1))
    g = GraphBuilder()
    x = g.input("x", (3, 8))
    graph = g.build(g.add(x, x))
    buffers = {t.id: device.allocate(t.nbytes) for t in graph.tensors if not t.is_view}
    stream = device.create_stream()
    program = device.compile(bound_nodes(graph, buffers), stream)
    stream.launch(program)
    stream.sync(10.0)
    check(modules_of(lambda: stream.launch(program)))
    stream.sync(10.0)
    stream.close()
    device.close()
