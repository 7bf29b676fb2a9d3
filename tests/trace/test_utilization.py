"""Where the time went: by hand, for pipelines with known stages, and shares that add up."""

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggsched.report.text import account_text
from ggsched.trace.advice import advise
from ggsched.trace.recorder import Recorder
from ggsched.trace.timeline import NodeSpan, Span, TimedRun, Timeline, Track
from ggsched.trace.times import timeline_of
from ggsched.trace.tracing import traced
from ggsched.trace.utilization import DeviceAccount, account, ideal_bubble
from ggsched_testing.schedule_policy import EagerPolicy
from ggsched_testing.sim import Costs, SimConfig, SimWorld
from tests.testing.sims import FREE, N, program, unary
from tests.trace.timelines import copy, launch, record, sync, timeline, wait


def parts(of):
    return {d.device: (d.busy_s, d.copy_s, d.peer_s, d.host_s, d.done_s) for d in of.devices}


def test_busy_all_the_time():
    assert parts(account(timeline(launch(1, 0, 4)))) == {"gpu:0": (4, 0, 0, 0, 0)}


def test_two_streams_of_one_device_are_busy_once():
    one = timeline(launch(1, 0, 4), launch(1, 2, 6))
    assert parts(account(one)) == {"gpu:0": (6, 0, 0, 0, 0)}


def test_waiting_for_a_copy_of_its_own_stream():
    found = account(timeline(copy(1, 0, 3), launch(1, 3, 4)))
    assert parts(found) == {"gpu:0": (1, 3, 0, 0, 0)}
    assert [(p.path, p.nbytes, p.copies, p.seconds) for p in found.paths] == [
        ("gpu:0->gpu:1", 100, 1, 3)
    ]


def test_a_copy_that_has_not_begun_is_not_waited_for_as_a_copy():
    found = account(timeline(copy(1, 2, 3), launch(1, 3, 4), runs=[(0, 4)]))
    assert parts(found) == {"gpu:0": (1, 1, 0, 2, 0)}


def test_waiting_for_what_the_host_has_not_enqueued():
    found = account(timeline(launch(1, 0, 1), launch(1, 4, 5, issued=3)))
    # Until 3 it is not enqueued, until 4 it is enqueued and has not begun.
    assert parts(found) == {"gpu:0": (2, 0, 0, 3, 0)}


def test_waiting_for_another_device_and_its_copy():
    found = account(
        timeline(
            launch(1, 0, 2),
            copy(1, 2, 5),
            record(1, 5, 7),
            wait(2, 0, 6, 7),
            launch(2, 6, 8),
        )
    )
    # gpu:1 waits for the launch until 2, for the copy until 5, for the event itself until 6.
    assert parts(found)["gpu:1"] == (2, 3, 3, 0, 0)
    assert parts(found)["gpu:0"] == (2, 3, 0, 0, 3)
    assert found.bubble == pytest.approx(1 - 4 / 16)


def test_a_chain_of_waits_is_followed():
    found = account(
        timeline(
            launch(1, 0, 2),
            record(1, 2, 1),
            wait(2, 0, 2, 1),
            launch(2, 2, 3),
            record(2, 3, 2),
            wait(3, 0, 3, 2),
            launch(3, 3, 4),
        )
    )
    assert parts(found)["gpu:2"] == (1, 0, 3, 0, 0)
    assert parts(found)["gpu:1"] == (1, 0, 2, 0, 1)


def test_waiting_through_the_host():
    found = account(
        timeline(
            launch(1, 0, 2),
            copy(1, 2, 3),
            record(1, 3, 1),
            sync(0, 3, event=1),
            launch(2, 4, 5, issued=3.5),
        )
    )
    second = found.devices[1]
    assert (second.peer_s, second.copy_s, second.host_s, second.busy_s) == (2, 1, 1, 1)
    assert second.through_host_s == 3
    assert (found.host_syncs, found.host_sync_s) == (1, 3)


def test_the_window_is_that_of_the_runs():
    found = account(timeline(launch(1, 2, 3), runs=[(1, 5)]))
    assert parts(found) == {"gpu:0": (1, 0, 0, 1, 2)}
    assert found.window_s == 4


def test_what_lies_between_runs_is_told_apart():
    gap = timeline(launch(1, 0, 1), launch(1, 5, 6, issued=4.5), runs=[(0, 2), (4, 6)])
    (found,) = account(gap).devices
    # Nothing is enqueued from 1 to 4.5, of which 2 to 4 is between the runs.
    assert (found.busy_s, found.host_s, found.between_s) == (2, 4, 2)
    assert [a.rule for a in advise(account(gap))] == ["between", "host"]
    assert account(timeline(launch(1, 0, 1), launch(1, 5, 6, issued=4))).devices[0].between_s == 0


def test_nothing_happened():
    assert account(timeline()).devices == ()
    assert advise(account(timeline())) == ()


# --- pipelines ---------------------------------------------------------------------------------

COSTS = replace(FREE, launch_s=1)


def pipeline(stages, batches, seconds=None):
    """Return the account of micro-batches that go through stages on simulated devices."""
    seconds = seconds or [1.0] * stages
    configs = [
        SimConfig(costs=Costs(**{f: getattr(COSTS, f) for f in COSTS.__slots__} | {"launch_s": s}))
        for s in seconds
    ]
    recorder = Recorder()
    devices = traced(SimWorld(configs, policy=EagerPolicy()).open_all(), recorder)
    streams = [d.create_stream() for d in devices]
    buffers = [[d.allocate(4 * N) for _ in range(2)] for d in devices]
    nodes = [program(q, unary("silu", *pair)) for q, pair in zip(streams, buffers, strict=True)]
    for _ in range(batches):
        before = None
        for i, stream in enumerate(streams):
            if before is not None:
                stream.wait(before)
                stream.copy(buffers[i - 1][1], 0, buffers[i][0], 0, 4 * N)
            stream.launch(nodes[i])
            before = devices[i].create_event()
            stream.record(before)
    streams[-1].sync(60)
    return account(timeline_of(recorder.trace("pipeline")))


@pytest.mark.parametrize("stages", [1, 2, 4, 8])
@pytest.mark.parametrize("batches", [1, 2, 7, 32])
def test_the_bubble_of_equal_stages_is_the_closed_form(stages, batches):
    found = pipeline(stages, batches)
    assert found.bubble == pytest.approx(ideal_bubble(stages, [batches]), abs=1e-6)
    assert found.window_s == pytest.approx(batches + stages - 1)
    for i, device in enumerate(found.devices):
        # Filling is waiting for the stages before, draining is having nothing left to do.
        assert device.busy_s == pytest.approx(batches)
        assert device.peer_s == pytest.approx(i)
        assert device.done_s == pytest.approx(stages - 1 - i)
        assert device.host_s == pytest.approx(0)


@given(st.lists(st.integers(1, 5), min_size=2, max_size=4), st.integers(1, 6))
def test_stages_behind_the_slowest_wait_for_it(seconds, batches):
    found = pipeline(len(seconds), batches, [float(s) for s in seconds])
    assert found.window_s == pytest.approx(sum(seconds) + (batches - 1) * max(seconds))
    for device, each in zip(found.devices, seconds, strict=True):
        assert device.busy_s == pytest.approx(batches * each)
        idle = device.peer_s + device.done_s
        assert idle == pytest.approx(found.window_s - device.busy_s)


def test_advice_names_the_slow_stage():
    found = pipeline(2, 8, [3.0, 1.0])
    known = msgspec.structs.replace(found, batches=(8,))
    assert next(a.rule for a in advise(known)) == "balance"
    assert "sim:0" in advise(known)[0].why


def test_advice_asks_for_more_micro_batches():
    found = msgspec.structs.replace(pipeline(4, 4), batches=(4,))
    (advice,) = [a for a in advise(found) if a.rule == "batches"]
    wins = ideal_bubble(4, [4]) - ideal_bubble(4, [8])
    assert advice.saves_s == pytest.approx(wins * found.window_s)
    assert f"{ideal_bubble(4, [4]):.0%}" in advice.why


# --- shares ------------------------------------------------------------------------------------


@st.composite
def timelines(draw):
    """Draw streams whose commands are in order, with waits for what was recorded before."""
    rows, events, host = [], [], 0.0
    last = {1: 0.0, 2: 0.0, 3: 0.0}
    for _ in range(draw(st.integers(1, 14))):
        track = draw(st.integers(1, 3))
        host += draw(st.sampled_from((0.0, 0.5, 1.0)))
        begin = max(last[track], host) + draw(st.sampled_from((0.0, 0.25)))
        end = begin + draw(st.sampled_from((0.0, 1.0, 2.0)))
        match draw(st.sampled_from(("launch", "copy", "record", "wait", "sync"))):
            case "launch":
                rows.append(launch(track, begin, end, host))
            case "copy":
                rows.append(copy(track, begin, end, host))
            case "record":
                events.append((len(rows), last[track]))
                rows.append((track, "record", host, begin, begin, {"event": len(rows)}))
                end = begin
            case "wait" if events:
                event, done = draw(st.sampled_from(events))
                end = max(begin, done)
                rows.append(wait(track, begin, end, event, host))
            case "sync" if events:
                event, done = draw(st.sampled_from(events))
                begin_host, host = host, max(host, done)
                rows.append(sync(begin_host, host, event=event))
                end = last[track]
            case _:
                end = last[track]
        last[track] = max(last[track], end)
    return timeline(*rows)


@given(timelines())
def test_shares_add_up_to_one_for_each_device(drawn):
    found = account(drawn)
    for device in found.devices:
        assert all(v >= -1e-12 for v in device.shares().values()), device
        assert device.window_s == pytest.approx(found.window_s)
        if found.window_s:
            assert sum(device.shares().values()) == pytest.approx(1.0)
        assert 0 <= device.between_s <= device.host_s + 1e-9
        assert device.through_host_s <= device.copy_s + device.peer_s + device.host_s + 1e-9
    assert sum(p.copies for p in found.paths) == sum(s.kind == "copy" for s in drawn.spans)
    for advice in advise(found):
        assert advice.saves_s <= found.window_s + 1e-9


@given(st.lists(st.floats(0, 10), min_size=5, max_size=5))
def test_shares_of_a_device(values):
    device = DeviceAccount("x", *values)
    assert sum(device.shares().values()) == pytest.approx(1.0 if any(values) else 0.0)


@pytest.mark.parametrize(
    ("stages", "batches", "share"),
    [
        (1, [1], 0),
        (2, [1], 1 / 2),
        (4, [1], 3 / 4),
        (8, [57], 7 / 64),
        (2, [8, 1, 1, 1], 4 / 15),  # a prompt, and three steps of decoding
        (2, [], 0),
    ],
)
def test_closed_form(stages, batches, share):
    assert ideal_bubble(stages, batches) == share


# --- batches and ops ---------------------------------------------------------------------------


def with_runs(*runs, spans=()):
    track = Track(0, "cpu:0 q0", "cpu:0")
    host = Span(0, 0, "launch", "launch", 0.0, 0.0, 9.0, run=0)
    made = tuple(TimedRun(0, start, end) for start, end in runs)
    return Timeline("t", (track,), spans or (host,), made)


@pytest.mark.parametrize(
    ("runs", "batches"),
    [
        ([(0, 2), (1, 3), (2, 4)], (3,)),
        ([(0, 2), (2, 3), (3, 4)], (1, 1, 1)),
        ([(0, 2), (1, 5), (2, 4), (6, 7)], (3, 1)),
        ([], (1,)),
    ],
)
def test_runs_that_wait_for_the_outputs_before_are_batches_of_their_own(runs, batches):
    found = account(with_runs(*runs))
    assert found.batches == batches
    assert found.micro_batches == max(batches)


def test_time_by_op():
    nodes = (NodeSpan("n0 mul_mat 'a'", 0, 3), NodeSpan("n1 add", 3, 4), NodeSpan("n2 add", 4, 5))
    span = Span(0, 0, "launch", "launch", 0.0, 0.0, 5.0, run=0, nodes=nodes)
    found = account(with_runs((0, 5), spans=(span,)))
    assert [(o.op, o.device, o.nodes, o.seconds) for o in found.ops] == [
        ("mul_mat", "cpu:0", 1, 3.0),
        ("add", "cpu:0", 2, 2.0),
    ]
    text = account_text(found)
    assert "mul_mat                      cpu:0                1       3 s             60.0%" in text
    assert max(map(len, text.splitlines())) <= 80
