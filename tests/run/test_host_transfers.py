"""Inputs and outputs that stay where a device in host memory has them."""

from types import SimpleNamespace

import numpy as np
import pytest

from ggsched.backend.base_buffer import BaseBuffer
from ggsched.config import Settings
from ggsched.ir.builder import GraphBuilder
from ggsched.passes.place import Constraints
from ggsched.plan.command import Download, Upload
from ggsched.run.capture import MEASURED_RUNS
from ggsched.run.executor import _nothing
from ggsched.run.host_transfers import needless_transfers
from ggsched.scheduler import Scheduler
from ggsched.trace.recorder import Recorder
from ggsched_testing.plan_builder import PlanWriter, fake_device
from tests.run.devices import TestDevice
from tests.run.graphs import N, W, X, chain, counter, plus_weight

RUNS = MEASURED_RUNS + 2
"""Calls that are not captured have a clock in the first ones."""
LAST = RUNS - 1


def device(name="test:0", **facts):
    return TestDevice(name, is_async=True, copy_order="stream", **facts)


def run(graph, *devices, settings=None, recorder=None, wanted=None, runs=RUNS, **inputs):
    """Run a graph a few times; return the outputs of the last run, and transfers left out."""
    with Scheduler(
        [*devices] or [device()], weights={"w": W}, settings=settings or Settings(),
        recorder=recorder,
    ) as scheduler:  # fmt: skip
        for k in range(runs):
            given = {name: array + k for name, array in inputs.items()}
            found = scheduler.run(graph, given, wanted)
            for array in given.values():
                array[...] = np.nan  # they are the caller's again
        executor = scheduler._order.last
        return dict(found), executor._calls.count(_nothing), executor


def test_of_a_step():
    graph = plus_weight()
    found, left_out, executor = run(graph, x=X)
    (found,) = found.values()
    np.testing.assert_allclose(found, (X + LAST + W) * 2, 1e-6)
    assert left_out == 2
    commands = executor.plan.commands
    needless = needless_transfers(executor.plan, executor._resources)
    assert [type(commands[n]) for n in needless] == [Upload, Download]


def test_views_are_of_the_memory_of_the_device():
    """They hold until the plan runs again, as views of host slots do."""
    graph = plus_weight()
    with Scheduler([device()], weights={"w": W}, settings=Settings()) as scheduler:
        (view,) = scheduler.run(graph, {"x": X}, copy=False).values()
        before = view.copy()
        assert not view.flags.writeable
        scheduler.run(counter(), {})  # another plan
        np.testing.assert_array_equal(view, before)
        scheduler.run(graph, {"x": X + 1})
        np.testing.assert_allclose(view, before + 2, 1e-6)


def test_an_output_in_a_state_is_copied():
    """Other runs change it."""
    graph = counter()
    with Scheduler([device()], settings=Settings()) as scheduler:
        (first,) = scheduler.run(graph, {}, copy=False).values()
        assert scheduler._order.last._calls.count(_nothing) == 0
        scheduler.clear_states()
        assert (first == 1).all()


def test_an_input_that_is_an_output():
    """Its slot is both, so what is computed in place must not be in it."""
    g = GraphBuilder("both")
    x = g.input("x", (N,))
    graph = g.build(x, g.scale(x, 2.0))
    found, left_out, _ = run(graph, x=X)
    np.testing.assert_array_equal([*found.values()], [X + LAST, 2 * (X + LAST)])
    assert left_out <= 1


def test_what_is_computed_in_place_of_an_input():
    g = GraphBuilder("in place")
    x, y = g.input("x", (N,)), g.input("y", (N,))
    z = g.add(g.silu(g.add(x, y)), x)
    graph = g.build(g.scale(z, 2.0), g.scale(z, 3.0))
    found, left_out, _ = run(graph, x=X, y=X)
    wanted = 2 * (X + LAST) / (1 + np.exp(-2 * (X + LAST))) + X + LAST
    np.testing.assert_allclose([*found.values()], [2 * wanted, 3 * wanted], 1e-5)
    assert left_out >= 2


def test_an_output_whose_memory_is_used_again():
    """It was downloaded before that; the host must not read it where it was."""
    g = GraphBuilder("reused")
    x = g.input("x", (N,))
    y = g.silu(x)
    z = y
    for _ in range(6):
        z = g.silu(g.scale(z, 0.5, 1.0))
    graph = g.build(y, z)
    found, _, executor = run(graph, x=X)
    wanted = X + LAST
    rows = []
    for k in range(7):
        wanted = wanted / (1 + np.exp(-wanted)) if k == 0 else _next(wanted)
        rows.append(wanted)
    np.testing.assert_allclose(found[y.id], rows[0], 1e-5)
    np.testing.assert_allclose(found[z.id], rows[-1], 1e-5)
    assert executor.plan.commands


def _next(value):
    value = 0.5 * value + 1
    return value / (1 + np.exp(-value))


@pytest.mark.parametrize(
    "how",
    [
        {"recorder": Recorder()},
        {"settings": Settings(checked=True)},
        {"devices": [device(is_host=False)]},
        {"devices": [device(f"test:{i}") for i in range(2)], "pins": 1},
    ],
    ids=["recorded", "checked", "memory of its own", "two devices"],
)
def test_where_they_are_made(how):
    graph, wanted = chain(how.pop("pins", 0))
    found, left_out, _ = run(graph, *how.pop("devices", ()), wanted=wanted, x=X, **how)
    assert left_out == 0
    assert len(found) == 1


def test_a_run_that_is_started():
    """The second run has memory of its own, so its inputs do not reach the first."""
    graph = plus_weight()
    with Scheduler(["cpu:0"], weights={"w": W}, settings=Settings()) as scheduler:
        runs = [scheduler.start(graph, {"x": X + k}, Constraints()) for k in range(4)]
        for k, started in enumerate(runs):
            (found,) = started.outputs().values()
            np.testing.assert_allclose(found, (X + k + W) * 2, 1e-6)


class Written:
    """A plan of one stream, written by hand: x is uploaded, y computed from it and downloaded."""

    def __init__(self):
        self.w = PlanWriter(fake_device())
        self.q = self.w.stream()
        self.arena = self.w.arena("compute", 0, 256)
        self.x, self.y = self.w.host_input("x", 64), self.w.host_output("y", 64)
        self.own_x, self.own_y = (self.w.value(self.arena, at, 64) for at in (0, 64))

    def upload(self):
        return self.w.transfer(self.q, self.x, self.own_x)

    def download(self):
        return self.w.transfer(self.q, self.own_y, self.y)

    def launch(self, src, dst):
        return self.w.launch(self.q, self.w.node("rw", src, dst))

    def end(self):
        self.w.sync(self.q, self.w.record(self.q))

    @property
    def needless(self):
        plan = self.w.plan()
        buffer = BaseBuffer(device(), 256, None)
        return [*needless_transfers(plan, SimpleNamespace(plan=plan, buffers={self.arena: buffer}))]


def test_plan_as_it_should_be():
    p = Written()
    wanted = [p.upload()]
    p.launch(p.own_x, p.own_y)
    wanted.append(p.download())
    p.end()
    assert p.needless == wanted


def test_memory_that_is_in_use_before_an_upload():
    p = Written()
    other = p.w.value(p.arena, 32, 64)  # the second half of x's
    p.launch(p.own_y, other)
    p.upload()
    p.launch(p.own_x, p.own_y)
    wanted = [p.download()]
    p.end()
    assert p.needless == wanted


def test_memory_that_is_written_after_a_download():
    p = Written()
    wanted = [p.upload()]
    p.launch(p.own_x, p.own_y)
    p.download()
    p.launch(p.own_x, p.own_y)
    p.end()
    assert p.needless == wanted


def test_memory_that_is_read_after_a_download():
    p = Written()
    wanted = [p.upload()]
    p.launch(p.own_x, p.own_y)
    wanted.append(p.download())
    p.launch(p.own_y, p.own_x)
    p.end()
    assert p.needless == wanted


def test_slots_that_are_used_twice():
    p = Written()
    p.upload()
    p.w.transfer(p.q, p.x, p.w.value(p.arena, 128, 64))
    p.launch(p.own_x, p.own_y)
    p.download()
    p.w.transfer(p.q, p.w.value(p.arena, 192, 64), p.y)
    p.end()
    assert p.needless == []


def test_what_the_host_does_not_wait_for():
    """Commands behind the last event, or a run without a wait."""
    for ends in (False, True):
        p = Written()
        p.upload()
        if ends:
            p.end()
        p.launch(p.own_x, p.own_y)
        p.download()
        assert p.needless == []


def test_a_wait_for_the_whole_stream():
    p = Written()
    wanted = [p.upload()]
    p.launch(p.own_x, p.own_y)
    wanted.append(p.download())
    p.w.sync(p.q)
    assert p.needless == wanted
