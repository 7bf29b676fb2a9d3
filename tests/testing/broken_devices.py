"""Devices with one defect each, to see what the kit makes of them."""

import threading
from dataclasses import replace

from ggsched.backend.base import BaseBackend, BaseDevice, host_facts
from ggsched.backend.base_stream import BaseStream
from ggsched_cpu.device import CpuDevice, CpuSettings
from ggsched_cpu.stream import WorkerStream
from ggsched_testing.conformance import Harness
from ggsched_testing.sim.harness import sim_harness


class DeafStream(WorkerStream):
    """Waits for nobody of its own backend."""

    def wait(self, event):
        if hasattr(event, "mark"):
            self._require_usable()
        else:
            super().wait(event)


class HangingStream(BaseStream):
    """Its sync never ends, until the test is over."""

    over = threading.Event()

    def sync(self, timeout_s):
        self.over.wait()


class SlowStream(BaseStream):
    """Is right, and takes its time."""

    def _submit(self, command, work):
        threading.Event().wait(0.02)
        super()._submit(command, work)


class RudeStream(BaseStream):
    """Raises what no contract names."""

    def copy(self, src, src_offset, dst, dst_offset, nbytes):
        raise KeyError("dst")


def cpu_with(stream):
    class Device(CpuDevice):
        def make_stream(self, name):
            return stream(self, name)

    settings = CpuSettings(timeout_s=5.0)
    return Harness("broken", lambda count, seed: [Device(i, settings) for i in range(count)])


def deaf_simulator():
    """Return the harness of a simulator whose streams wait for nobody."""
    good = sim_harness()

    def open_deaf_devices(count, seed):
        devices = good.open(count, seed)
        for device in devices:
            device.create_stream = lambda make=device.create_stream: deafened(make())
        return devices

    def deafened(stream):
        stream.wait = lambda event: None
        return stream

    return replace(good, name="broken", open=open_deaf_devices)


def base_with(stream):
    def open_device(index):
        device = BaseDevice(host_facts("broken", [], name=f"broken:{index}"), {})
        device.make_stream = lambda name: stream(device, name)
        return device

    return Harness("broken", lambda count, seed: [open_device(i) for i in range(count)])


class Deaf(CpuDevice):
    """A device of its own backend, for entry points."""

    def __init__(self, index):
        super().__init__(index, CpuSettings(timeout_s=5.0))
        self.facts = replace(self.facts, name=f"deaf:{index}", backend="deaf")

    def make_stream(self, name):
        return DeafStream(self, name)


conformance_harness = {"waivers": [("EVT-4", "not yet")], "grace_s": 0.02}


def open_deaf():
    return BaseBackend("deaf", Deaf, limit=4)
