"""Measuring real and simulated devices: complete, plausible, within the time, nothing left."""

import itertools
import math
import re
import time
from types import SimpleNamespace

import numpy as np
import pytest

from ggsched.backend.base import BaseDevice, host_facts
from ggsched.backend.packed import dequantize
from ggsched.backend.registry import open_devices
from ggsched.calibrate.identity import device_identity
from ggsched.ir.dtype import FLOAT_DTYPES
from ggsched.ops.record import ELEMENTS
from ggsched.topology.cost import HOST, KernelRate, Rates
from ggsched_calibrate.device_rates import NOT_TRUSTED, measure_rates
from ggsched_calibrate.link_rates import fit_link
from ggsched_calibrate.machine import calibrate
from ggsched_calibrate.samples import samples
from ggsched_calibrate.timing import Allowance, Disturbed
from ggsched_calibrate.workload import Bench, fill, repeated
from ggsched_testing.sim import SimConfig, SimWorld
from tests.backends.device_settings import cpu_device
from tests.calibrate.undisturbed import trust_what_is_measured
from tests.run.devices import TestDevice


@pytest.fixture(autouse=True)
def undisturbed(request, monkeypatch):
    if "disturbed" not in request.fixturenames:
        trust_what_is_measured(monkeypatch)


KERNELS = {ELEMENTS, *(f"mul_mat:{d.name}" for d in FLOAT_DTYPES)}


def numbers(rates):
    for device in rates.devices:
        yield from (device.flops, device.bandwidth, device.total_bandwidth, device.event_s)
        yield from (device.node_s,)
        for kernel in device.kernels:
            yield from (kernel.flops, kernel.bandwidth)
    for link in rates.links.values():
        yield link.bandwidth


def test_the_processor():
    device, said = cpu_device(sync=False), []
    try:
        began = time.process_time()  # the time of waiting depends on the load of the machine
        found = calibrate([device], 1.0, lambda name, what: said.append((name, what)))
        assert time.process_time() - began < 10
    finally:
        device.close()
    # On a slow machine the last ones are left out, and said to be.
    assert all("no time was left" in line for line in found.missing)
    (rates,) = found.rates.devices
    measured = {k.name for k in rates.kernels}
    assert {ELEMENTS, "mul_mat:f32"} <= measured
    assert measured <= KERNELS | {name for part in samples(device.facts) for name in part}
    assert set(found.rates.links) == {(HOST, 0), (0, HOST)}
    assert all(math.isfinite(x) and x > 0 for x in numbers(found.rates))
    assert rates.parallel in (1, 2)
    assert rates.total_bandwidth >= rates.bandwidth
    assert ("cpu:0", "an event") in said
    assert ("cpu:0", "copies host -> cpu:0") in said


@pytest.mark.parametrize("config", [
    SimConfig(),
    SimConfig(has_events=False, max_streams=1),
    SimConfig(copy_order="host", copies=frozenset()),
    SimConfig(memory_nbytes=1 << 22, ops=frozenset({"add:f32", "mul_mat:f16"})),
])  # fmt: skip
def test_every_kind_of_device_and_nothing_is_left(config):
    world = SimWorld([config, config])
    devices = world.open_all()
    found = calibrate(devices, 0.4)
    assert not any(world.live().values())
    assert not world.violations
    assert len(found.rates.devices) == 2
    assert all(math.isfinite(x) and x > 0 for x in numbers(found.rates))
    has_path = config.copies is None
    assert ((0, 1) in found.rates.links) == has_path
    assert {(HOST, 0), (1, HOST)} <= set(found.rates.links)
    missing = " ".join(found.missing)
    assert ("mul_mat:f32" in missing) <= ("mul_mat:f32" in config.facts(0).ops)
    assert set(found.samples) == set(found.rates.links)


def test_a_device_without_a_single_op_keeps_its_guesses():
    device = BaseDevice(host_facts("bare", []), {})
    try:
        found = calibrate([device], 0.2)
    finally:
        device.close()
    assert any("nodes: " in line for line in found.missing)
    assert found.rates.devices[0].kernels == ()


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_weights_are_filled_with_ordinary_numbers(dtype):
    device = cpu_device(sync=True)
    try:
        bench = Bench(device)
        stream = bench.stream()
        nbytes = dtype.row_nbytes(1 << 18) + dtype.row_nbytes(256)
        buffer = device.allocate(nbytes)
        fill(stream, buffer, dtype)
        stream.sync(20)
        raw = np.frombuffer(buffer.host_view(), np.uint8)
        values = dequantize(raw, dtype, ((1 << 18) + 256,))
        assert abs(values).max() < 300
        assert abs(values[values != 0]).min() > 1e-4
        buffer.close()
        bench.close()
    finally:
        device.close()


def test_links_are_fitted_through_all_sizes():
    exact = [(n, 1e-5 + n / 4e9) for n in (1 << 10, 1 << 14, 1 << 18, 1 << 22)]
    link = fit_link(exact)
    assert link.latency_s == pytest.approx(1e-5)
    assert link.bandwidth == pytest.approx(4e9)
    assert fit_link([(1024, 1e-6)]).bandwidth == pytest.approx(1024e6)
    backwards = fit_link([(1024, 2e-6), (4096, 1e-6)])
    assert backwards.latency_s >= 0
    assert backwards.bandwidth > 0


def test_identity_is_what_a_device_can_do_and_not_its_name():
    a, b = (SimConfig().facts(i) for i in (0, 1))
    assert device_identity(a) == device_identity(b)
    assert device_identity(a) != device_identity(SimConfig(memory_nbytes=1 << 30).facts(0))
    devices = open_devices(["cpu:0", "cpu:3"])
    assert len({device_identity(d.facts) for d in devices}) == 1
    for device in devices:
        device.close()


# --- disturbance -------------------------------------------------------------------------------


@pytest.fixture
def disturbed():
    """Return a bench of a device whose launches take 15, 10 and 0.012 ms, and the clock for it."""
    now, jumps = [0.0], itertools.cycle([15e-3, 10e-3, 0.012e-3])
    device = TestDevice()
    made = device.create_stream

    def create_stream():
        stream = made()
        launch = stream.launch

        def slow(program):
            now[0] += next(jumps) * (1 + now[0])  # none comes again
            launch(program)

        stream.launch = slow
        return stream

    device.create_stream = create_stream
    bench = Bench(device)
    yield bench, lambda: now[0]
    bench.close()
    device.close()


OLDER = Rates(1e9, 2e9, 3e9, 1, 1e-6, 2e-6, 3e-6, (KernelRate("functions", 4e9, 5e9),))


@pytest.mark.parametrize("older", [None, OLDER])
def test_a_device_whose_times_jump_keeps_what_was_known(disturbed, older):
    bench, clock = disturbed
    streams = [bench.stream()]
    allowance = Allowance(3.0, clock, is_strict=True)
    found, missing = measure_rates(bench, streams, allowance, lambda what: None, older)
    assert found == older
    assert any(re.match(rf"nodes: {NOT_TRUSTED}, the fastest repetitions", m) for m in missing)


def test_what_is_measured_once_more_as_the_time_ends_is_trusted():
    said = []

    class UntilTheSecondAttempt(Allowance):
        is_spent = property(lambda self: "a node" in said)

        def time(self, repeat, measurements):
            if said == ["a launch"]:
                raise Disturbed("a process that ends soon")
            return 1e-3

    device = TestDevice()
    bench = Bench(device)
    allowance = UntilTheSecondAttempt(1.0)
    found, missing = measure_rates(bench, [bench.stream()], allowance, said.append, None, ({}, {}))
    bench.close()
    device.close()
    assert said.count("a launch") == 2
    assert not any(line.startswith("nodes: ") for line in missing)
    assert found is not None


class Captures:
    """A stream, its device and a graph of it in one."""

    facts = SimpleNamespace(is_host=False)

    def __init__(self):
        self.device, self.replays = self, 0

    def begin_capture(self, streams):
        return SimpleNamespace(end=lambda: self)

    def replay(self, graph):
        self.replays += 1

    def sync(self, timeout_s):
        pass

    def close(self):
        pass


@pytest.mark.parametrize("may_capture", [True, False])
def test_commands_are_measured_as_plans_run_them(may_capture):
    """Devices whose plans are captured replay a graph; one by one the host takes longer."""
    stream, calls = Captures(), []
    with repeated(stream, lambda: calls.append(1), 3, may_capture=may_capture) as repeat:
        repeat(4)
    assert (len(calls), stream.replays) == ((3, 4) if may_capture else (12, 0))
