"""A driver and a GPU that only count time, for the backend ``cuda`` where there is no GPU.

Each thing that a stream is given takes a given time, one after the other; nothing is
computed. The GPU has a clock of its own, which is apart from the host's and drifts.
"""

from collections import Counter
from time import perf_counter

import numpy as np

CALL_S = 1e-6  # of the host, for a call of the driver
LATENCY_S = 2e-6  # until the GPU begins with what it is given
TRANSFER_S = 5e-6
LOST = 700
NO_DRIVER = 999


class ManualClock:
    """Time that passes only when somebody looks, or says so."""

    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        self.now_s += CALL_S / 2
        return self.now_s

    def wait(self, seconds):
        self.now_s += seconds


class FakeDriver:
    """What ``ggsched_cuda.driver`` offers, as far as streams need it."""

    def __init__(self, clock=perf_counter, *, ahead_s=7.0, drift=0.0):
        self.clock, self.ahead_s, self.drift = clock, ahead_s, drift
        self.ends = {}  # of streams, by the GPU's clock
        self.events = {}  # when they are done, by the GPU's clock
        self.timed = set()
        self.recorded = Counter()  # timed events, by stream
        self.captured = set()
        self.is_lost = False
        self.answers = True
        self.latency = lambda: LATENCY_S
        self.ran = []  # (stream, when it began, when it had ended), by the host's clock
        self._handles = iter(range(1, 1 << 30))
        self._memory = []

    # --- time ----------------------------------------------------------------------------------

    def gpu_s(self):
        return self.ahead_s + self.clock() * (1 + self.drift)

    def host_s(self, gpu_s):
        return (gpu_s - self.ahead_s) / (1 + self.drift)

    def give(self, stream, seconds):
        """Let a stream do something."""
        if self.is_lost:
            return (LOST,)
        if stream not in self.captured:
            start = max(self.ends[stream], self.gpu_s() + self.latency())
            self.ends[stream] = start + seconds
            self.ran.append((stream, self.host_s(start), self.host_s(start + seconds)))
        return (0,)

    def _check(self, result):
        from ggsched_cuda.driver import CudaError

        if result[0]:
            raise CudaError("fake", result[0], "lost")

    # --- what is put in place of the driver's --------------------------------------------------

    def enter(self, context):
        pass

    def context_of(self, ordinal):
        return "context"

    def trim_pool(self, pool):
        pass

    def make_pool(self, ordinal, peers):
        return "pool"

    def take_memory(self, pool, nbytes, stream):
        return next(self._handles) << 32

    def give_memory(self, address, stream):
        pass

    def take_pinned(self, nbytes):
        self._memory.append(np.zeros(nbytes + 64, np.uint8))
        address = self._memory[-1].__array_interface__["data"][0]
        return -(-address // 64) * 64

    def lock_pages(self, address, nbytes):
        return True

    def unlock_pages(self, address):
        pass

    def make_stream(self):
        stream = next(self._handles)
        self.ends[stream] = 0.0
        return stream

    def close_stream(self, stream):
        pass

    def make_event(self):
        return next(self._handles)

    def make_timed_event(self):
        self._check((LOST if self.is_lost else 0,))
        event = next(self._handles)
        self.timed.add(event)
        return event

    def record_event(self, event, stream):
        if self.is_lost:
            return (LOST,)
        assert event not in self.timed or stream not in self.captured
        if stream not in self.captured:
            self.ends[stream] = max(self.ends[stream], self.gpu_s() + self.latency())
            self.events[event] = self.ends[stream] if self.answers else float("inf")
            self.recorded[stream] += event in self.timed
        return (0,)

    def query_event(self, event):
        from ggsched_cuda.driver import NOT_READY

        if self.is_lost:
            return (LOST,)
        return (0 if self.events[event] <= self.gpu_s() else NOT_READY,)

    def query_stream(self, stream):
        from ggsched_cuda.driver import NOT_READY

        if self.is_lost:
            return (LOST,)
        return (0 if self.ends[stream] <= self.gpu_s() else NOT_READY,)

    def seconds_between(self, earlier, later):
        assert {earlier, later} <= self.timed
        self._check(self.query_event(earlier))
        self._check(self.query_event(later))
        milliseconds = np.float32((self.events[later] - self.events[earlier]) * 1e3)
        return float(milliseconds) / 1e3

    def enqueue_wait(self, stream, event):
        if stream not in self.captured:
            self.ends[stream] = max(self.ends[stream], self.events[event])

    def enqueue_upload(self, address, source, nbytes, stream):
        self._check(self.give(stream, TRANSFER_S))

    def enqueue_download(self, target, address, nbytes, stream):
        self._check(self.give(stream, TRANSFER_S))

    def enqueue_copy(self, to, address, nbytes, stream):
        self._check(self.give(stream, TRANSFER_S))

    def enqueue_fill(self, address, nbytes, pattern, stream):
        self._check(self.give(stream, TRANSFER_S))

    def enqueue_host_call(self, stream, function, argument):
        self._check(self.give(stream, TRANSFER_S))

    def begin_capture(self, stream):
        self.captured.add(stream)

    def end_capture(self, stream):
        self.captured.discard(stream)
        return "graph"

    def make_executable(self, graph):
        return "executable", 1

    def close_graph(self, graph):
        pass

    def close_executable(self, graph):
        pass

    def launch_graph(self, graph, stream):
        return self.give(stream, 3 * TRANSFER_S)

    def launch_kernel(self, function, *arguments):
        return self.give(arguments[7], TRANSFER_S)


def install(fake, monkeypatch):
    """Put a driver in the place of the real one."""
    from ggsched_cuda import cuda_contexts, driver, programs
    from ggsched_cuda.capture import driver as capturing

    for name in dir(type(fake)):
        for module in (driver, capturing):
            if not name.startswith("_") and hasattr(module, name):
                monkeypatch.setattr(module, name, getattr(fake, name))
    monkeypatch.setattr(cuda_contexts, "CUDA_CONTEXTS", cuda_contexts.CudaContexts())
    monkeypatch.setattr(programs.ProgramCache, "function", lambda *args, **kwargs: 1)
    monkeypatch.setattr(programs.ProgramCache, "prepare", lambda *args, **kwargs: None)
    return fake


def fake_gpu():
    """Return a GPU of the fake driver."""
    from ggsched_cuda.cuda_context import CudaContext, EnqueuedWork
    from ggsched_cuda.driver import DeviceInfo
    from ggsched_cuda.pinned import PinnedMemory

    found = DeviceInfo(0, "fake", 90, 80 << 30, 13000, 132, 232448)
    return CudaContext(found, (), PinnedMemory(), EnqueuedWork())


def fake_program(stream, kernels):
    """Return a program of kernels that take a time: pairs of a node's label and seconds."""
    from ggsched_cuda.program import CudaProgram

    program = object.__new__(CudaProgram)
    program.stream, program.is_closed, program.checks_ids = stream, False, False
    program._owned, program._params, program.sending = [], [], None
    program.in_turn, program.rendezvous, program.pushed = None, None, None
    program.labels = [label for label, _ in kernels]
    give = stream.fake.give
    program.steps = [(give, (stream.handle, seconds)) for _, seconds in kernels]
    return program


def fake_device(gpu, name):
    """Return one of four logical devices of a GPU; it is to be closed before the driver goes."""
    from ggsched_cuda.device import CudaDevice

    return CudaDevice(gpu, name, 4, timeout_s=5.0)


def held_events(gpu):
    """Return how many timed events are in use, but for that of the base."""
    from ggsched_cuda import driver

    return len(driver.make_timed_event.__self__.timed) - len(gpu.clock._events) - 1
