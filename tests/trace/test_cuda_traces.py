"""Traces with the times of a GPU that only counts time, and what the GPU's own check finds."""

from itertools import pairwise

import msgspec
import numpy as np
import pytest

from tests.backends.fake_cuda import (
    FakeDriver,
    fake_device,
    fake_gpu,
    fake_program,
    held_events,
    install,
)

EXACT_S = 1e-6


@pytest.fixture
def traced(monkeypatch):
    """Return a trace of some runs of a graph on two logical devices, on several streams."""
    pytest.importorskip("cuda.bindings", reason="cuda-bindings are in the extra 'nvrtc'")
    from ggsched.config import Settings
    from ggsched.ir.builder import GraphBuilder
    from ggsched.passes.place import Constraints
    from ggsched.scheduler import Scheduler
    from ggsched.trace.recorder import Recorder
    from ggsched_cuda.device import CudaDevice

    fake = install(FakeDriver(drift=1e-5), monkeypatch)

    def compiled(self, nodes, stream):
        stream.fake = fake
        return fake_program(stream, [(node.label, 3e-5) for node in nodes for _ in range(2)])

    monkeypatch.setattr(CudaDevice, "compile", compiled)
    gpu = fake_gpu()
    devices = [fake_device(gpu, f"cuda:0/{i}") for i in range(2)]
    g = GraphBuilder("wide")
    x = g.input("x", (16,))
    a, b, c = g.silu(x), g.gelu(x), g.scale(x, 2.0)
    d, e = g.silu(g.add(a, b)), g.gelu(g.add(b, c))
    graph = g.build(g.add(d, e))
    pins = Constraints(pins={i: i % 2 for i in range(len(graph.nodes))})
    recorder = Recorder()
    settings = Settings(streams=3, fuse=False)
    with Scheduler(devices, settings=settings, recorder=recorder) as scheduler:
        for _ in range(4):
            scheduler.run(graph, {"x": np.zeros(16, np.float32)}, pins)
    for device in devices:
        device.close()
    trace = recorder.trace("t")
    assert held_events(gpu) == 0
    return trace


def test_a_trace_has_device_times_throughout(traced):
    from benchmarks.gpu.times import _pairs, findings_of
    from ggsched.trace.schema import Work
    from ggsched.trace.times import spans_by_track, timeline_of

    assert findings_of(traced) == []
    assert len(list(_pairs(traced))) > 4
    works = [e for e in traced.entries if isinstance(e, Work) and "n" in e.label]
    assert len({work.actor for work in works if work.end_s is not None}) >= 3
    timeline = timeline_of(traced)
    on_devices = [s for s in timeline.spans if timeline.tracks[s.track].device]
    assert not any(span.is_estimated for span in on_devices)
    for track, spans in spans_by_track(timeline):
        if track.device:
            for one, two in pairwise(spans):
                assert one.end_s <= two.start_s + EXACT_S


def changed(trace, which, **fields):
    """Return a trace with other times of one piece of work on a device, in the last run."""
    from ggsched.trace.schema import Work

    entries = list(trace.entries)
    run = trace.runs[-1]
    places = [
        i for i in range(run.first, run.end)
        if isinstance(entries[i], Work) and trace.actors[entries[i].actor].device
    ]  # fmt: skip
    entry = entries[places[which]]
    values = {k: f(entry) for k, f in fields.items()}
    entries[places[which]] = msgspec.structs.replace(entry, **values)
    return msgspec.structs.replace(trace, entries=tuple(entries))


def test_the_check_of_the_gpu_finds_what_is_wrong(traced):
    from benchmarks.gpu.times import findings_of

    def found(which, **fields):
        return " ".join(findings_of(changed(traced, which, **fields)))

    assert "has no times" in found(0, start_s=lambda e: None, end_s=lambda e: None)
    assert "behind its end" in found(1, end_s=lambda e: e.start_s - 1e-5)
    assert "before it was enqueued" in found(1, start_s=lambda e: e.issued_s - 3e-5)
    assert "before the end of" in found(1, end_s=lambda e: e.end_s + 1e-2)
    assert "after the host has the outputs" in found(-1, end_s=lambda e: e.end_s + 1.0)
    assert "is busy for" in found(-1, start_s=lambda e: e.start_s - 10.0)
