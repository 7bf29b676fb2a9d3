"""The checked layer and constants: written while a launch may read them, or the reverse (LCH-7)."""

from dataclasses import replace

import numpy as np
import pytest

from ggsched.backend.checked import checked
from ggsched.backend.checked_parts import MANY
from ggsched.backend.program import BoundNode, Operand, full_params
from ggsched.errors import UsageError
from ggsched.ir.dtype import F32
from ggsched_cpu.device import CpuDevice, CpuSettings
from ggsched_testing.conformance import Harness, run_conformance
from tests.backend.conftest import TIMEOUT_S
from tests.support.errors import refused

NBYTES = 32


def data(value=1.0):
    return np.full(NBYTES // 4, value, np.float32).view(np.uint8).data


def vector(buffer, offset=0, *, is_constant=False):
    return Operand(buffer, offset, NBYTES, F32, (NBYTES // 4,), (4,), is_constant=is_constant)


def node(operand, result):
    return BoundNode(0, "silu", (operand,), result, full_params("silu", {}), "n0 silu")


@pytest.fixture
def work(device, stream):
    """Return a buffer of two halves, and a program for which the first one is constant."""
    buffer, out = device.allocate(2 * NBYTES), device.allocate(NBYTES)
    stream.upload(data(), buffer, 0)
    stream.sync(TIMEOUT_S)
    return buffer, device.compile([node(vector(buffer, is_constant=True), vector(out))], stream)


def test_written_behind_a_launch(device, stream, work):
    buffer, program = work
    stream.launch(program)
    with pytest.raises(UsageError, match=r"while a launch may read them.*LCH-7") as caught:
        stream.upload(data(), buffer, 0)
    assert "launch" in str(caught.value)
    with pytest.raises(UsageError, match=r"while a launch may read them.*LCH-7"):
        stream.fill(buffer, 0, NBYTES, bytes(1))
    stream.upload(data(), buffer, NBYTES)  # the other half
    stream.fill(buffer, NBYTES, NBYTES, bytes(1))
    stream.sync(TIMEOUT_S)
    stream.upload(data(2.0), buffer, 0)
    with pytest.raises(UsageError, match=r"launched while they may be written.*LCH-7"):
        stream.launch(program)
    stream.sync(TIMEOUT_S)
    stream.launch(program)
    stream.sync(TIMEOUT_S)


def test_no_event_orders_them(device, stream, work):
    buffer, program = work
    other, event = device.create_stream(), device.create_event()
    stream.launch(program)
    stream.record(event)
    other.wait(event)
    with refused("LCH-7"):
        other.copy(buffer, NBYTES, buffer, 0, NBYTES)
    event.sync(TIMEOUT_S)
    other.copy(buffer, NBYTES, buffer, 0, NBYTES)
    other.sync(TIMEOUT_S)


def test_written_by_a_launch(device, stream, work):
    buffer, program = work
    writer = device.compile([node(vector(buffer, NBYTES), vector(buffer))], stream)
    stream.launch(program)
    with refused("LCH-7"):
        stream.launch(writer)
    stream.sync(TIMEOUT_S)
    stream.launch(writer)
    with refused("LCH-7"):
        stream.launch(program)
    stream.sync(TIMEOUT_S)


def test_a_closed_program_reads_on(stream, work):
    buffer, program = work
    stream.launch(program)
    program.close()
    with refused("LCH-7"):
        stream.upload(data(), buffer, 0)
    stream.sync(TIMEOUT_S)
    stream.upload(data(), buffer, 0)
    stream.sync(TIMEOUT_S)


def test_a_program_that_writes_its_own_constants(device, stream):
    buffer = device.allocate(2 * NBYTES)
    constant = vector(buffer, is_constant=True)
    with refused("LCH-7"):
        device.compile([node(constant, replace(constant, is_constant=False))], stream)
    device.compile([node(constant, vector(buffer, NBYTES))], stream)


def test_reading_is_free(device, stream, work):
    buffer, program = work
    out = np.zeros(NBYTES, np.uint8)
    stream.launch(program)
    stream.launch(program)
    stream.download(buffer, 0, out.data)
    stream.copy(buffer, 0, buffer, NBYTES, NBYTES)
    stream.sync(TIMEOUT_S)
    assert bytes(out) == bytes(data())


def test_what_is_complete_is_forgotten(stream, work):
    buffer, program = work
    for i in range(2 * MANY):
        stream.upload(data()[: i % NBYTES + 1], buffer, NBYTES)
        stream.upload(data()[:1], buffer, NBYTES + i % NBYTES)
        stream.sync(TIMEOUT_S)
    assert len(buffer.writes._last) <= MANY + 1
    stream.launch(program)
    stream.sync(TIMEOUT_S)


def test_the_kit_keeps_the_callers_part():
    def opened(count, seed):
        return checked([CpuDevice(i, CpuSettings(timeout_s=TIMEOUT_S)) for i in range(count)])

    report = run_conformance(Harness("checked", opened), rules="LCH-*", seed=7, max_examples=3)
    report.raise_if_findings()
