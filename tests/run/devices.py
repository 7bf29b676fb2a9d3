"""Devices for tests of whoever runs plans: a few numpy kernels, any of which may misbehave.

``add``, ``scale``, ``silu``, ``cpy`` and ``cont`` compute; ``gelu`` does what the test says.
"""

import threading

import numpy as np

from ggsched.backend.base import BaseDevice, host_facts
from ggsched_cpu.stream import WorkerStream


def _add(out, inputs, params):
    np.add(inputs[0], inputs[1], out)


def _scale(out, inputs, params):
    np.multiply(inputs[0], np.float32(params["scale"]), out)
    np.add(out, np.float32(params["bias"]), out)


def _silu(out, inputs, params):
    np.divide(inputs[0], 1 + np.exp(-inputs[0]), out)


def _copy(out, inputs, params):
    np.copyto(out, inputs[0])


KERNELS = {"add": _add, "scale": _scale, "silu": _silu, "cpy": _copy, "cont": _copy}


class TestDevice(BaseDevice):
    """A device that counts what is open, and whose ``gelu`` is the test's own.

    Attributes:
        events: Every event that was made.
        synced: Timeouts of all waits of the host for a stream.
        on_sync: Called before the host waits for a stream; it may raise.
    """

    __test__ = False

    def __init__(self, name="test:0", *, gelu=_copy, is_async=False, **facts):
        kernels = {**KERNELS, "gelu": gelu}
        ops = [f"{op}:f32" for op in kernels]
        usual = {"is_async": is_async, "snapshots_uploads": not is_async}
        described = host_facts(name.split(":")[0], ops, **{"name": name, **usual, **facts})
        super().__init__(described, kernels)
        self.event_timeout_s = 5.0
        self.on_sync = lambda: None
        self.events = []
        self.synced = []

    def make_stream(self, name):
        return SpiedWorker(self, name) if self.facts.is_async else super().make_stream(name)

    def create_event(self):
        event = super().create_event()
        self.events.append(event)
        return event

    @property
    def open_buffers(self):
        """Buffers that nobody has closed."""
        return [b for b in self._buffers if not b.is_closed]

    @property
    def open_streams(self):
        """Streams that nobody has closed."""
        return [s for s in self._streams if not s.is_closed]

    @property
    def open_events(self):
        """Events that nobody has closed."""
        return [e for e in self.events if not e._is_closed]


class SpiedWorker(WorkerStream):
    """Notes how long the host is ready to wait, and reports it to the test before it waits."""

    def sync(self, timeout_s):
        self.device.synced.append(timeout_s)
        self.device.on_sync()
        super().sync(timeout_s)


class Latch:
    """A kernel that waits until it is released."""

    def __init__(self):
        self.reached = threading.Event()
        self.free = threading.Event()

    def __call__(self, out, inputs, params):
        self.reached.set()
        assert self.free.wait(60)
        np.copyto(out, inputs[0])


def after_the_first(device, latch):
    """Let the host's waits but the first, which hands the commands over, begin at the latch."""
    return lambda: len(device.synced) > 1 and latch.reached.wait(60)


class Failing:
    """A kernel that raises a given number of times."""

    def __init__(self, error, times=1):
        self.error, self.times = error, times

    def __call__(self, out, inputs, params):
        if self.times:
            self.times -= 1
            raise self.error
        np.copyto(out, inputs[0])


def raising(error):
    """Return a function that raises."""

    def fail():
        raise error

    return fail


def assert_released(*devices):
    """Check that nothing of these devices is open."""
    for device in devices:
        assert device.open_buffers == []
        assert device.open_streams == []
        assert device.open_events == []
