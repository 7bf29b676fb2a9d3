"""Times of records: measured by each kind of device, and how they become a timeline."""

import re
from collections import defaultdict
from itertools import pairwise

import msgspec
import numpy as np
import pytest

from ggsched.backend.checked import checked
from ggsched.backend.timing import Part
from ggsched.config import Settings
from ggsched.errors import UsageError
from ggsched.plan.command import Copy, Download, HostSync, Launch, Record, Upload, Wait
from ggsched.scheduler import Scheduler
from ggsched.trace.export import trace_from_lines, trace_to_lines
from ggsched.trace.recorder import Recorder
from ggsched.trace.schema import Sync, Work
from ggsched.trace.stamps import Stamper
from ggsched.trace.times import spans_by_track, timeline_of
from ggsched_testing.sim import SimConfig, SimWorld
from tests.backends.cuda_devices import cuda_parts
from tests.backends.device_settings import cpu_device
from tests.backends.opencl_devices import opencl_device
from tests.run.graphs import X, chain

RUNS = 3
KINDS = {
    Upload: "upload",
    Download: "download",
    Copy: "copy",
    Launch: "launch",
    Record: "record",
    Wait: "wait",
    HostSync: "sync",
}


def two_opencl():
    return [opencl_device(), cpu_device(sync=False)]


def cuda_and_cpu():
    return [*cuda_parts(1), cpu_device(sync=False)]


def two_sim():
    return SimWorld([SimConfig(), SimConfig()]).open_all()


MACHINES = {
    "cpu": lambda: [cpu_device(sync=False, index=i) for i in range(2)],
    "cpu sync": lambda: [cpu_device(sync=True, index=i) for i in range(2)],
    "checked": lambda: checked([cpu_device(sync=False, index=i) for i in range(2)]),
    "opencl": two_opencl,
    "cuda": lambda: cuda_parts(2),
    "cuda and cpu": cuda_and_cpu,
    "sim": two_sim,
    "sim without order": lambda: SimWorld([SimConfig(copy_order="barrier")] * 2).open_all(),
    "sim without events": lambda: SimWorld([SimConfig(), SimConfig(has_events=False)]).open_all(),
}


def traced_run(devices, runs=RUNS):
    graph, pins = chain(1)
    recorder = Recorder()
    with Scheduler(devices, settings=Settings(), recorder=recorder) as scheduler:
        plan = scheduler.plan(graph, pins)
        for _ in range(runs):
            scheduler.run(graph, {"x": X}, pins)
    for device in devices:
        device.close()
    return plan, recorder.trace("t")


@pytest.fixture(params=MACHINES)
def traced_plan(request):
    return traced_run(MACHINES[request.param]())


def test_every_piece_of_work_has_times_in_order(traced_plan):
    _, trace = traced_plan
    works = [e for e in trace.entries if isinstance(e, Work) and trace.actors[e.actor].device]
    assert works
    for work in works:
        assert None not in (work.issued_s, work.start_s, work.end_s), work
        # A device's clock is matched with that of the host to some microseconds.
        assert 0 <= work.issued_s <= work.start_s + 2e-5, work
        assert work.start_s <= work.end_s, work
    for sync in (e for e in trace.entries if isinstance(e, Sync) and e.start_s is not None):
        assert sync.start_s <= sync.end_s
    assert trace.clock == ("simulated" if "sim" in trace.actors[1].device else "host")


def test_streams_do_one_thing_after_the_other(traced_plan):
    plan, trace = traced_plan
    if any(d.copy_order != "stream" for d in plan.devices):
        pytest.skip("copies and launches of its streams are not in order")
    for track, spans in spans_by_track(timeline_of(trace)):
        work = [s for s in spans if track.device and s.kind not in ("record", "wait")]
        for one, two in pairwise(work):
            assert one.end_s <= two.start_s + 2e-5, (one, two)


def test_each_command_of_each_run_is_one_span(traced_plan):
    plan, trace = traced_plan
    timeline = timeline_of(trace)
    assert len(timeline.runs) == RUNS
    for run in range(RUNS):
        spans = [s for s in timeline.spans if s.run == run and s.command >= 0]
        streams = [s for s in spans if s.kind != "host"]  # sources that are snapshot are the host's
        assert [s.command for s in streams] == [c.id for c in plan.commands]
        for span, command in zip(streams, plan.commands, strict=True):
            assert span.kind == KINDS.get(type(command), "barrier"), (span, command)
            assert bool(span.reason) == hasattr(command, "hazard")
        inside = timeline.runs[run]
        assert all(inside.start_s <= s.issued_s <= inside.end_s for s in spans)


def test_what_the_host_waited_for_had_ended(traced_plan):
    plan, trace = traced_plan
    timeline = timeline_of(trace)
    for run in range(RUNS):
        (last,) = [
            s for s in timeline.spans if s.run == run and s.command == len(plan.commands) - 1
        ]
        before = [s.end_s for s in timeline.spans if s.run == run and s.kind != "host"]
        assert last.kind == "sync"
        assert max(before) <= last.end_s + 2e-5


def test_simulated_times_are_those_of_the_world():
    world = SimWorld([SimConfig(), SimConfig()])
    _, trace = traced_run(world.open_all())
    known = {
        (s.device, int(re.match(r"c(\d+) ", s.command)[1])): (s.start_s, s.end_s)
        for s in world.timeline()
        if s.kind not in ("record", "notice")
    }
    timeline = timeline_of(trace)
    timed = defaultdict(list)
    for span in timeline.spans:
        device = timeline.tracks[span.track].device
        if device and span.kind != "record":
            timed[device].append(span)
    for device, spans in timed.items():
        # Commands of a device are numbered as they are enqueued: run by run.
        spans.sort(key=lambda s: (s.run, s.command))
        assert [(s.start_s, s.end_s) for s in spans] == [
            pytest.approx(known[key], rel=0, abs=2e-9) for key in sorted(known) if key[0] == device
        ]
    assert sum(map(len, timed.values())) == len(known)


def test_simulated_and_real_devices_keep_the_times_of_the_first():
    graph, pins = chain(0)
    world = SimWorld([SimConfig()])
    recorder = Recorder()
    devices = [*world.open_all(), cpu_device(sync=False)]
    with Scheduler(devices, settings=Settings(), recorder=recorder) as scheduler:
        scheduler.run(graph, {"x": X}, pins)
    devices[1].close()
    trace = recorder.trace("t")
    assert trace.clock == "simulated"
    assert all(e.start_s is not None for e in trace.entries if isinstance(e, Work))


def test_plans_runs_and_times_survive_the_file(traced_plan):
    plan, trace = traced_plan
    back = trace_from_lines(trace_to_lines(trace))
    assert back == trace
    assert back.plans[0].plan == plan


def test_work_that_nobody_measured_lies_between_call_and_sync(traced_plan):
    _, trace = traced_plan
    blind = tuple(
        msgspec.structs.replace(e, start_s=None, end_s=None)
        if not isinstance(e, Sync) and getattr(e, "start_s", None) is not None and e.by >= 0
        else e
        for e in trace.entries
    )
    timeline = timeline_of(msgspec.structs.replace(trace, entries=blind))
    by_id = timeline_of(trace)
    works = [s for s in timeline.spans if s.kind in ("launch", "copy", "upload", "download")]
    assert works
    for span in works:
        assert span.is_estimated
        assert span.issued_s <= span.start_s <= span.end_s <= by_id.end_s + 1e-9
    for run, timed in enumerate(timeline.runs):
        ends = [s.end_s for s in works if s.run == run]
        assert max(ends) <= timed.end_s


class Told:
    def __init__(self, *parts):
        self._parts = parts

    def parts(self):
        return self._parts


def test_nodes_without_a_step_of_their_own_take_no_time():
    stamp = (0.5, 0.0, Told(Part("n1", 1.0, 2.0), Part("n3", 2.5, 4.0)))
    stamper = Stamper(0.5)
    for _ in range(2):
        works = [stamper.stamped(Work(1, f"n{i}"), stamp) for i in range(5)]
        times = [(w.issued_s, w.start_s, w.end_s) for w in works]
        assert times == [(0, 0.5, 0.5), (0, 0.5, 1.5), (0, 1.5, 1.5), (0, 2, 3.5), (0, 3.5, 3.5)]
        assert stamper.stamped(Work(1, "n0"), (1.0, 0.0, Told())).start_s is None


def test_without_times_only_the_host_has_some():
    graph, pins = chain(1)
    devices = MACHINES["cpu"]()
    recorder = Recorder(times=False)
    with Scheduler(devices, settings=Settings(), recorder=recorder) as scheduler:
        scheduler.run(graph, {"x": X}, pins)
    for device in devices:
        device.close()
    trace = recorder.trace("t")
    works = [e for e in trace.entries if isinstance(e, Work) and trace.actors[e.actor].device]
    assert all(w.start_s is None and w.issued_s is not None for w in works)
    assert any(s.is_estimated for s in timeline_of(trace).spans)


def test_a_trace_without_times_is_refused():
    _, trace = traced_run(MACHINES["cpu sync"](), 1)
    entries = tuple(
        msgspec.structs.replace(e, issued_s=None) if hasattr(e, "issued_s") else e
        for e in trace.entries
    )
    with pytest.raises(UsageError, match="no record of the trace has a time"):
        timeline_of(msgspec.structs.replace(trace, entries=entries))


def test_without_a_recorder_no_times_are_taken():
    device = cpu_device(sync=False)
    stream = device.create_stream()
    buffer = device.allocate(64)
    stream.upload(memoryview(np.zeros(64, np.uint8)), buffer, 0)
    stream.sync(5)
    assert stream._taken is None
    assert stream.__take_times__()() is None
    device.close()
