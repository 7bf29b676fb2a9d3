"""An exception at any line of a call leaves a scheduler that runs again, and that closes.

It is raised by a trace function, at the first and the last time that each line is reached.
"""

import os
import signal
import sys
from contextlib import suppress
from functools import partial

import numpy as np
import pytest

import ggsched
from ggsched.backend.interrupts import is_interrupt
from ggsched.config import Settings
from ggsched.errors import BackendBroken, UsageError
from ggsched.ir.builder import GraphBuilder
from ggsched.run.capture import MEASURED_RUNS
from ggsched.scheduler import Scheduler
from tests.run.devices import TestDevice, assert_released

ROOT = os.path.dirname(ggsched.__file__)
SHAPE = (2, 8)
X = {"x": np.ones(SHAPE, np.float32)}


class Interrupt(KeyboardInterrupt):
    """Raised by the tests alone."""


def lines(call, at=-1):
    """Make a call, and return the lines that it reached; raise instead of reaching one of them.

    Lines of the scheduler and of ``ggsched.run`` count.
    """
    reached = []

    def step(frame, event, arg):
        if event == "line":
            if len(reached) == at:
                sys.settrace(None)
                raise Interrupt
            reached.append((frame.f_code.co_filename, frame.f_lineno))
        return step

    def enter(frame, event, arg):
        name = frame.f_code.co_filename
        is_ours = name.startswith((f"{ROOT}/run/", f"{ROOT}/scheduler.py"))
        return step if is_ours else None

    outer = sys.gettrace()
    sys.settrace(enter)
    try:
        call()
    finally:
        sys.settrace(outer)
    return reached


def sums():
    g = GraphBuilder("sums")
    total = g.state("total", SHAPE)
    return g.build(y=g.cpy(g.add(total, g.input("x", SHAPE)), total))


def reader():
    g = GraphBuilder("reader")
    return g.build(y=g.scale(g.silu(g.state("total", SHAPE)), 1.0))


SUMS, READER = sums(), reader()


class Bench:
    """A scheduler of one device whose runs are captured, and what was started on it."""

    def __init__(self, warm, prepare):
        self.device = TestDevice(is_host=False, snapshots_uploads=False)
        self.scheduler = Scheduler([self.device], settings=Settings(rates="off"))
        self.started = []
        for _ in range(warm):
            self.run()
        prepare(self)
        self.made = warm + len(self.started)

    def run(self):
        return float(self.scheduler.run(SUMS, X)["y"][0, 0])

    def start(self):
        self.started.append(self.scheduler.start(SUMS, X))

    def read(self):
        self.scheduler.run(READER, {})

    def check(self):
        """Check that all goes on: the interrupted run has taken effect, or it has not."""
        for run in self.started:
            with suppress(UsageError):  # its wait was interrupted
                run.outputs()
        assert self.run() in (1, *range(self.made, self.made + 3))
        self.scheduler.clear_states()
        assert [self.run(), self.run()] == [1, 2]
        runs = [self.scheduler.start(SUMS, X) for _ in range(2)]
        assert [run.outputs()["y"][0, 0] for run in runs] == [3, 4]

    def close(self):
        self.scheduler.close()
        assert_released(self.device)


def nothing(bench):
    """Prepare nothing."""


def two_started(bench):
    bench.start()
    bench.start()


def another_ran(bench):
    bench.read()
    bench.read()


CASES = {
    "the first run": (0, nothing, Bench.run),
    "a run that is captured": (1, nothing, Bench.run),
    "a run behind which clocks are removed": (MEASURED_RUNS - 1, nothing, Bench.run),
    "a run": (MEASURED_RUNS + 1, nothing, Bench.run),
    "a run behind another plan": (2, another_ran, Bench.run),
    "a start": (2, nothing, Bench.start),
    "a start beside a run": (2, lambda bench: bench.start(), Bench.start),
    "outputs of the first": (2, two_started, lambda bench: bench.started[0].outputs()),
    "outputs of the second": (2, two_started, lambda bench: bench.started[1].outputs()),
    "a run that evicts a plan": (2, lambda bench: bench.scheduler.keep_plans(1), Bench.read),
    "clear_states": (1, two_started, lambda bench: bench.scheduler.clear_states()),
    "close": (1, two_started, lambda bench: bench.scheduler.close()),
}
STEPS = {
    "the first run": 12, "a run": 4, "a run behind another plan": 2, "a start beside a run": 12,
    "clear_states": 3, "close": 2,
}  # fmt: skip
"""One in so many lines is tried, where most are reached in another case or bind a plan."""

SHARE = 3
"""Of those one in so many is tried, another one in each case; all of them among slow tests."""

FILES = {"a run that evicts a plan": ("/cache.py", "/executor.py")}
"""Files whose lines are tried, where not all are."""


@pytest.mark.parametrize("share", [SHARE, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CASES)
def test_an_interrupt_at_any_line(name, share):
    warm, prepare, act = CASES[name]
    bench = Bench(warm, prepare)
    reached = lines(lambda: act(bench))
    bench.scheduler.close()
    first, last = {}, {}
    for at, line in enumerate(reached):
        first.setdefault(line, at)
        last[line] = at
    points = sorted({*first.values(), *last.values()})[:: STEPS.get(name, 1)]
    points = [at for at in points if reached[at][0].endswith(FILES.get(name, ".py"))]
    assert len(points) > 30
    for at in points[list(CASES).index(name) % share :: share]:
        bench = Bench(warm, prepare)
        with pytest.raises(Interrupt):
            lines(lambda bench=bench: act(bench), at)
        where = f"{reached[at][0]}:{reached[at][1]}"
        try:
            if name != "close":
                bench.check()
            bench.close()
        except BaseException as error:
            error.add_note(f"after an interrupt at {where}")
            raise


class Alarm(Exception):
    """Raised by a handler of a signal."""


def alarm(*_):
    raise Alarm("too late")


class Handler:
    def method(self, *_):
        raise Alarm("too late")

    __call__ = method


HANDLERS = {
    "function": alarm,
    "partial": partial(alarm, 1),
    "method": Handler().method,
    "object": Handler(),
}


@pytest.fixture(params=HANDLERS.values(), ids=HANDLERS)
def handled(request):
    """Let a signal raise."""
    before = signal.signal(signal.SIGUSR1, request.param)
    yield
    signal.signal(signal.SIGUSR1, before)


class Interrupted(TestDevice):
    """A device during whose calls a signal comes, once for each name that is given."""

    def __init__(self, *names):
        super().__init__(is_async=True)
        self._names = list(names)
        self.on_sync = lambda: self.comes("sync")

    def comes(self, name):
        if name in self._names:
            self._names.remove(name)
            signal.raise_signal(signal.SIGUSR1)

    def allocate(self, nbytes):
        self.comes("allocate")
        return super().allocate(nbytes)

    def create_event(self):
        self.comes("event")
        return super().create_event()


@pytest.mark.parametrize("name", ["allocate", "event", "sync"])
def test_exceptions_of_signal_handlers_are_not_the_plugins(name, handled):
    device = Interrupted(name)
    with Scheduler([device], settings=Settings(rates="off")) as scheduler:
        with pytest.raises(Alarm, match="too late"):
            _ = scheduler.run(SUMS, X), scheduler.clear_states()
        scheduler.clear_states()
        assert scheduler.run(SUMS, X)["y"][0, 0] == 1
    assert_released(device)


def test_exceptions_of_the_plugin_are_the_plugins(handled):
    device = TestDevice()
    device.create_event = lambda: {}["no such event"]
    with (
        Scheduler([device], settings=Settings(rates="off")) as scheduler,
        pytest.raises(BackendBroken, match="raised KeyError"),
    ):
        scheduler.run(SUMS, X)


def test_an_error_without_a_traceback_is_no_interrupt():
    assert not is_interrupt(ValueError("new"))
    assert is_interrupt(KeyboardInterrupt())
