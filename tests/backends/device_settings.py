"""Devices to test with, and an event of somebody else that a test releases."""

import threading

import numpy as np

from ggsched.backend.base import BaseDevice, host_facts
from ggsched.backend.program import BoundNode, Operand, full_params
from ggsched.errors import SyncTimeout
from ggsched.ir.dtype import F32
from ggsched_cpu.device import CpuDevice, CpuSettings

TIMEOUT_S = 20.0


def add(out, inputs, params):
    np.add(inputs[0], inputs[1], out)


def fail(out, inputs, params):
    raise ValueError("this kernel always fails")


KERNELS = {"add": add, "silu": fail}


def base_device(name="base:0", **facts):
    ops = [f"{op}:f32" for op in KERNELS]
    return BaseDevice(host_facts("base", ops, name=name, **facts), KERNELS)


class FarDevice(BaseDevice):
    """A device whose memory is not host memory."""

    def acquire_memory(self, nbytes):
        return bytearray(nbytes)

    def read_memory(self, memory, offset, target):
        target[:] = memory[offset : offset + target.nbytes]

    def write_memory(self, memory, offset, source):
        memory[offset : offset + source.nbytes] = source


def far_device():
    ops = [f"{op}:f32" for op in KERNELS]
    return FarDevice(host_facts("far", ops, is_host=False), KERNELS)


def cpu_device(*, sync, timeout_s=TIMEOUT_S, index=0):
    return CpuDevice(index, CpuSettings(sync=sync, timeout_s=timeout_s))


KINDS = {
    "base": base_device,
    "far": far_device,
    "cpu-sync": lambda: cpu_device(sync=True),
    "cpu": lambda: cpu_device(sync=False),
}


class Latch:
    """An event of a device of another backend; it is done when the test opens it."""

    def __init__(self):
        self.device = BaseDevice(host_facts("elsewhere", []), {})
        self.is_recorded = True
        self.entered = threading.Event()
        self._open = threading.Event()
        self._error = None

    @property
    def is_done(self):
        return self._open.is_set()

    def sync(self, timeout_s):
        self.entered.set()
        if not self._open.wait(timeout_s):
            raise SyncTimeout("the latch stayed closed")
        if self._error is not None:
            raise self._error

    def open(self, error=None):
        self._error = error
        self._open.set()

    def close(self):
        pass


def upload(stream, buffer, array):
    stream.upload(memoryview(np.ascontiguousarray(array)).cast("B"), buffer, 0)


def download(stream, buffer, count, *, timeout_s=TIMEOUT_S):
    out = np.full(count, np.nan, np.float32)
    stream.download(buffer, 0, memoryview(out).cast("B"))
    stream.sync(timeout_s)
    return out


def vector(buffer, count, offset=0):
    return Operand(buffer, offset, 4 * count, F32, (count,), (4,))


def node(op, inputs, output, number=0, **params):
    return BoundNode(number, op, tuple(inputs), output, full_params(op, params), f"n{number} {op}")


def ids_of(device, stream, values):
    """Return an i32 operand that holds values."""
    from ggsched.ir.dtype import I32

    array = np.array(values, np.int32)
    buffer = device.allocate(array.nbytes)
    upload(stream, buffer, array)
    return Operand(buffer, 0, array.nbytes, I32, array.shape, array.strides)
