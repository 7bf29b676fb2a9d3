"""Times of streams on CUDA, with a driver that only counts time; ``make gpu`` has the GPU's."""

import threading
import time
from itertools import cycle, pairwise

import pytest

from tests.backends.fake_cuda import (
    TRANSFER_S,
    FakeDriver,
    ManualClock,
    fake_device,
    fake_gpu,
    fake_program,
    held_events,
    install,
)

CLOSE_S = 1e-5  # of a time of the host: a base is known to some calls
EXACT_S = 1e-6  # of a distance


@pytest.fixture
def fake(monkeypatch):
    pytest.importorskip("cuda.bindings", reason="cuda-bindings are in the extra 'nvrtc'")
    from ggsched_cuda import times

    clock = ManualClock()
    monkeypatch.setattr(times, "perf_counter", clock)
    return install(FakeDriver(clock), monkeypatch)


@pytest.fixture
def gpu(fake):
    return fake_gpu()


@pytest.fixture
def devices(fake, gpu):
    """Return two logical devices of a GPU; they are closed when all that they do is done."""
    made = [fake_device(gpu, f"cuda:0/{i}") for i in range(2)]
    yield made
    fake.is_lost = False
    fake.clock.wait(1e3)
    for device in made:
        device.close()


@pytest.fixture
def device(devices):
    return devices[0]


def stream_of(device, fake, *, is_timed=True):
    stream = device.create_stream()
    stream.fake = fake
    return (stream, stream.__take_times__()) if is_timed else stream


def done(fake, taken):
    """Return the times of a command once it is done."""
    for _ in range(1000):
        parts = taken.parts()
        if parts is not None:
            return parts
        fake.clock.wait(1e-3)
    raise AssertionError("never done")


def read_into(taken, read):
    read.append(taken.parts())


# --- what is measured -------------------------------------------------------------------------


def test_each_command_has_its_own_times(fake, device):
    stream, latest = stream_of(device, fake)
    pinned, plain = device.allocate_host(64), memoryview(bytearray(64))
    buffer, other = device.allocate(64), device.allocate(64)
    nodes = fake_program(stream, [("a", 1e-4), ("b", 2e-4), ("b", 1e-4), ("c", 3e-4)])
    commands = [
        (lambda: stream.upload(pinned, buffer, 0), [("", 1)]),
        (lambda: stream.upload(plain, buffer, 0), [("", 2)]),
        (lambda: stream.launch(nodes), [("a", 1), ("b", 2), ("c", 1)]),
        (lambda: stream.copy(buffer, 0, other, 0, 64), [("", 1)]),
        (lambda: stream.download(buffer, 0, pinned), [("", 1)]),
        (lambda: stream.download(buffer, 0, plain), [("", 2)]),
        (lambda: stream.launch(fake_program(stream, [])), [("", 0)]),
    ]
    taken = []
    for command, _ in commands:
        command()
        taken.append(latest())
        assert latest() is None, "it was asked before"
    ran = iter(fake.ran)
    ends = [0.0]
    for (_, expected), times in zip(commands, taken, strict=True):
        parts = done(fake, times)
        assert [part.label for part in parts] == [label for label, _ in expected]
        for part, (_, count) in zip(parts, expected, strict=True):
            assert ends[-1] <= part.start_s + EXACT_S
            assert part.start_s <= part.end_s
            ends.append(part.end_s)
            pieces = [next(ran) for _ in range(count)]
            if pieces:
                assert part.start_s <= pieces[0][1] + CLOSE_S
                assert part.end_s == pytest.approx(pieces[-1][2], abs=CLOSE_S)
                lasted = pieces[-1][2] - pieces[0][1]
                assert lasted - EXACT_S <= part.end_s - part.start_s <= lasted + CLOSE_S
    assert next(ran, None) is None


def test_what_is_not_done_has_no_time_and_nobody_waits(fake, device):
    stream, latest = stream_of(device, fake)
    stream.launch(fake_program(stream, [("long", 1.0)]))
    taken = latest()
    before = fake.clock.now_s
    assert taken.parts() is None
    assert fake.clock.now_s - before < CLOSE_S
    fake.clock.wait(1.1)
    (part,) = taken.parts()
    assert part.end_s - part.start_s == pytest.approx(1.0, abs=CLOSE_S)
    assert taken.parts() == [part]


def test_waits_and_records_have_none(fake, device):
    (one, latest), (two, of_two) = (stream_of(device, fake) for _ in range(2))
    event = device.create_event()
    one.launch(fake_program(one, [("a", 1e-3)]))
    latest()
    one.record(event)
    two.wait(event)
    assert latest() is None
    assert of_two() is None


def test_logical_devices_of_a_gpu_have_one_clock(fake, devices):
    (one, latest), (two, of_two) = (stream_of(device, fake) for device in devices)
    event = devices[0].create_event()
    one.launch(fake_program(one, [("a", 5e-3)]))
    one.record(event)
    two.wait(event)
    two.launch(fake_program(two, [("b", 1e-3)]))
    (first,), (second,) = done(fake, latest()), done(fake, of_two())
    assert first.end_s <= second.start_s + EXACT_S
    assert second.end_s - first.start_s == pytest.approx(6e-3, abs=CLOSE_S)
    assert devices[0].__clock__() is devices[1].__clock__()


@pytest.mark.parametrize("drift", [5e-5, 0.0, -5e-5])
def test_for_minutes_times_keep_up_with_the_host(fake, device, drift):
    fake.drift = drift
    stream, latest = stream_of(device, fake)
    ends = [0.0]
    for step in range(3000):
        stream.launch(fake_program(stream, [("a", 1e-3), ("b", 1e-3)]))
        taken = latest()
        fake.clock.wait(0.1 if step % 500 else 20.0)
        one, two = taken.parts()
        assert ends[-1] <= one.start_s < one.end_s == two.start_s
        ends.append(two.end_s)
        if step % 500 > 20:  # after a pause it takes a second
            assert two.end_s - two.start_s == pytest.approx(1e-3, abs=EXACT_S)
            assert two.end_s == pytest.approx(fake.ran[-1][2], abs=1e-4)


@pytest.mark.parametrize("drift", [5e-5, -5e-5])
def test_a_stream_that_is_never_idle_has_no_gaps(fake, device, drift):
    fake.drift = drift
    stream, latest = stream_of(device, fake)
    taken = []
    for _ in range(50):
        stream.launch(fake_program(stream, [("a", 0.12)]))
        taken.append(latest())
        fake.clock.wait(0.1)
    parts = [part for command in taken for part in done(fake, command)]
    for one, two in pairwise(parts):
        assert two.start_s == pytest.approx(one.end_s, abs=EXACT_S)
        assert two.end_s - two.start_s == pytest.approx(0.12, abs=2e-5)


def test_a_time_of_the_gpu_is_told_by_the_anchor_before_it(gpu):
    from ggsched_cuda.times import ClockAnchor

    gpu.clock._anchors = [
        ClockAnchor(0.0, 100.0, 0.0),
        ClockAnchor(1.0, 101.0, 0.01),
        ClockAnchor(2.0, 102.01, -0.01),
    ]
    wanted = {-0.1: 99.9, 0.5: 100.5, 1.0: 101.0, 1.5: 101.505, 2.5: 102.505, 4.0: 104.0}
    found = {gpu_s: gpu.clock.host_of(gpu_s) for gpu_s in wanted}
    assert found == pytest.approx(wanted)


def test_of_slow_answers_the_quickest_counts(fake, gpu, devices):
    delays = cycle([9e-5, 3e-5, 8e-5, 7e-5])
    fake.latency = lambda: next(delays)
    stream, _ = stream_of(devices[0], fake)
    base = gpu.clock.base()
    before = fake.clock()
    event = gpu.clock.take_event()
    fake.record_event(event, stream.handle)
    fake.clock.wait(1.0)
    passed = fake.host_s(fake.events[event]) - before
    found = gpu.clock.host_of(base.gpu_time_of(event))
    assert found - before == pytest.approx(passed, abs=2e-5)
    gpu.clock.give_event(event)
    assert held_events(gpu) == 0


# --- what it costs ----------------------------------------------------------------------------


def test_who_does_not_ask_pays_nothing(fake, device):
    stream = stream_of(device, fake, is_timed=False)
    buffer = device.allocate(64)
    stream.upload(device.allocate_host(64), buffer, 0)
    stream.launch(fake_program(stream, [("a", 1e-3)] * 3))
    stream.download(buffer, 0, device.allocate_host(64))
    fake.clock.wait(1.0)
    stream.sync(5.0)
    assert not fake.timed
    assert len(fake.ran) == 5


def test_other_streams_of_the_device_pay_nothing(fake, device):
    stream_of(device, fake)
    stream = stream_of(device, fake, is_timed=False)
    stream.launch(fake_program(stream, [("a", 1e-3)] * 3))
    assert not fake.recorded[stream.handle]


def test_events_are_used_again(fake, gpu, device):
    stream, latest = stream_of(device, fake)
    program = fake_program(stream, [("a", 1e-5), ("b", 1e-5)])
    for _ in range(500):
        stream.launch(program)
        done(fake, latest())
    assert held_events(gpu) == 0
    assert len(fake.timed) < 10


def test_events_of_times_that_nobody_reads_are_used_again(fake, gpu, device):
    stream, latest = stream_of(device, fake)
    program = fake_program(stream, [("a", 1e-5), ("b", 1e-5)])
    for step in range(100):
        stream.launch(program)
        if step % 2:
            latest()
    latest()
    assert held_events(gpu) == 0
    assert len(fake.timed) < 20


def test_threads_that_read_the_same_times_give_events_back_once(fake, gpu, device, monkeypatch):
    from ggsched_cuda import driver

    def slowly(earlier, later):
        time.sleep(1e-4)  # so that the threads meet
        return fake.seconds_between(earlier, later)

    monkeypatch.setattr(driver, "seconds_between", slowly)
    stream, latest = stream_of(device, fake)
    for _ in range(5):
        stream.launch(fake_program(stream, [(str(i), 1e-6) for i in range(10)]))
        taken = latest()
        fake.clock.wait(1.0)
        read = []
        threads = [threading.Thread(target=read_into, args=(taken, read)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [len(parts) for parts in (*read, taken.parts())] == [10] * 5
        assert held_events(gpu) == 0
        assert len(set(gpu.clock._events)) == len(gpu.clock._events)


# --- captures, faults, ends -------------------------------------------------------------------


def test_a_capture_has_no_times_and_its_replay_has_one(fake, gpu, device):
    stream, latest = stream_of(device, fake)
    pinned, buffer = device.allocate_host(64), device.allocate(64)
    stream.launch(fake_program(stream, [("before", 1e-3)]))
    capture = device.begin_capture([stream])
    before = fake.recorded[stream.handle]
    stream.upload(pinned, buffer, 0)
    assert latest() is None
    stream.launch(fake_program(stream, [("a", 1e-3)]))
    assert latest() is None
    graph = capture.end()
    assert fake.recorded[stream.handle] == before
    stream.replay(graph)
    (part,) = done(fake, latest())
    assert part.label == ""
    assert part.end_s - part.start_s >= 3 * TRANSFER_S - EXACT_S
    assert held_events(gpu) == 0


def test_times_outlive_the_stream(fake, gpu, device):
    from ggsched.errors import UsageError

    stream, latest = stream_of(device, fake)
    stream.launch(fake_program(stream, [("a", 1e-3)]))
    taken = latest()
    stream.launch(fake_program(stream, [("b", 1e-3)]))
    stream.close()
    (part,) = done(fake, taken)
    assert part.label == "a"
    (part,) = done(fake, latest())
    assert part.label == "b"
    with pytest.raises(UsageError, match="closed"):
        stream.__take_times__()
    device.close()
    assert held_events(gpu) == 0


def test_a_launch_that_breaks_off_has_the_times_of_what_ran(fake, device):
    from ggsched.errors import DeviceFault

    stream, latest = stream_of(device, fake)
    program = fake_program(stream, [("a", 1e-3), ("b", 1e-3), ("c", 1e-3)])
    program.steps[2] = (lambda: (1,), ())
    stream.launch(program)
    assert [part.label for part in done(fake, latest())][:2] == ["a", "b"]
    with pytest.raises(DeviceFault, match="c failed"):
        stream.sync(5.0)


def test_a_lost_gpu_has_no_times_and_says_so_as_without_them(fake, gpu, device):
    from ggsched.errors import DeviceFault

    stream, latest = stream_of(device, fake)
    buffer, pinned = device.allocate(64), device.allocate_host(64)
    stream.launch(fake_program(stream, [("a", 1e-3)]))
    taken = latest()
    fake.is_lost = True
    fake.clock.wait(2.0)
    with pytest.raises(DeviceFault, match="upload failed"):
        stream.upload(pinned, buffer, 0)
    assert latest() is None
    assert taken.parts() == []
    assert held_events(gpu) == 0
    stream.close()


def test_a_refused_command_leaves_no_times_behind(fake, gpu, device):
    from ggsched.errors import UsageError

    stream, latest = stream_of(device, fake)
    buffer = device.allocate(64)
    with pytest.raises(UsageError):
        stream.upload(device.allocate_host(128), buffer, 0)
    assert latest() is None
    assert held_events(gpu) == 0


def test_a_gpu_that_does_not_answer_at_once_is_asked_again(fake, gpu, device):
    fake.answers = False
    stream, latest = stream_of(device, fake)
    before = fake.clock.now_s
    stream.launch(fake_program(stream, [("a", 1e-3)]))
    assert latest() is None
    assert fake.clock.now_s - before < 1e-3
    fake.answers = True
    fake.clock.wait(0.02)
    stream.launch(fake_program(stream, [("a", 1e-3)]))
    assert done(fake, latest())
    assert held_events(gpu) == 0
