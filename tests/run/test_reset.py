"""After a fault in the middle of a pipelined run a scheduler can be reset and used again.

Tried for every command of a small pipeline, and for every allocation.
"""

import gc

import numpy as np
import pytest

from ggsched.config import Settings
from ggsched.errors import DeviceFault, GgschedError, OutOfDeviceMemory, SyncTimeout, UsageError
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.join import join_graphs
from ggsched.passes import Constraints
from ggsched.passes.memory.rings import Slots
from ggsched.scheduler import Scheduler
from ggsched_testing.oracle.interpreter import run_oracle
from ggsched_testing.sim import InjectedFaults, SimConfig, SimWorld

N, STAGES, PARTS = 8, 2, 3
SETTINGS = Settings(timeout_s=5)
W = np.arange(N, dtype=np.float32)


def stages():
    """Each stage adds its input to its state; what comes out is a sum of sums."""
    g = GraphBuilder("stages")
    x, w = g.input("x", (N,)), g.weight("w", (N,))
    for k in range(STAGES):
        s = g.state(f"s{k}", (N,))
        x = g.add(x, w)
        x = g.add(x, s)
        g.op("cpy", x, s)
    return g.build(x)


JOINED = join_graphs([stages()] * PARTS, name="pipeline")
PINS = {n.id: n.id // 3 % STAGES for n in JOINED.graph.nodes}
WANTED = Constraints(pins=PINS, slots=Slots(2, JOINED.firsts))


def inputs(run):
    return {f"x@{k}": np.full(N, run + k / 4, np.float32) for k in range(PARTS)}


def expected(runs):
    """Outputs of consecutive runs from zeroed states."""
    states = {}
    return [run_oracle(JOINED.graph, {**inputs(r), "w": W}, states=states) for r in range(runs)]


def assert_right(scheduler):
    for run, wanted in enumerate(expected(2)):
        got = scheduler.run(JOINED.graph, inputs(run), WANTED)
        for tid, array in wanted.items():
            np.testing.assert_allclose(got[tid], array, rtol=1e-6)


def run_on(scheduler):
    """Run on and on: nobody may ask at once what became of the last commands of a run."""
    for run in range(1, 4):
        scheduler.run(JOINED.graph, inputs(run), WANTED)


def world(faults=None, seed=0):
    configs = [SimConfig(), SimConfig(snapshots_uploads=True)]
    return SimWorld(configs, faults=faults or InjectedFaults(), seed=seed)


def commands_of_a_run():
    """Numbers of the commands of the second run, when weights and states are resident."""
    w = world()
    with Scheduler(w.open_all(), weights={"w": W}, settings=SETTINGS) as scheduler:
        scheduler.run(JOINED.graph, inputs(0), WANTED)
        first = w.enqueued
        scheduler.run(JOINED.graph, inputs(1), WANTED)
        return first, w.enqueued, w.allocated


FIRST, END, ALLOCATIONS = commands_of_a_run()


@pytest.mark.parametrize("number", range(FIRST, END))
@pytest.mark.parametrize("kind", ["refuse", "fail", "lose"])
def test_a_fault_at_every_command(kind, number):
    w = world(InjectedFaults(**{kind: frozenset({number})}))
    devices = w.open_all()
    free = [d.free_nbytes for d in devices]
    scheduler = Scheduler(devices, weights={"w": W}, settings=SETTINGS)
    scheduler.run(JOINED.graph, inputs(0), WANTED)
    with pytest.raises((DeviceFault, UsageError)) as info:
        run_on(scheduler)
    assert f"c{number} " in str(info.value) or "is lost" in str(info.value)
    w.faults = InjectedFaults()
    new = w.open_all() if kind == "lose" else None
    scheduler.reset(new)
    assert_right(scheduler)
    scheduler.close()
    gc.collect()
    for d, before in zip(new or devices, free, strict=True):
        assert d.free_nbytes == before


@pytest.mark.parametrize("number", range(FIRST, END))
def test_a_command_that_hangs(number):
    w = world(InjectedFaults(hang=frozenset({number})))
    scheduler = Scheduler(w.open_all(), weights={"w": W}, settings=Settings(timeout_s=0.05))
    scheduler.run(JOINED.graph, inputs(0), WANTED)
    with pytest.raises(GgschedError) as info:
        run_on(scheduler)
    assert isinstance(info.value, SyncTimeout | DeviceFault)
    w.faults = InjectedFaults()
    scheduler.reset(w.open_all())
    assert_right(scheduler)
    scheduler.close()


@pytest.mark.parametrize("number", range(ALLOCATIONS))
def test_no_memory_at_every_allocation(number):
    w = world(InjectedFaults(no_memory=frozenset({number})))
    devices = w.open_all()
    free = [d.free_nbytes for d in devices]
    with Scheduler(devices, weights={"w": W}, settings=SETTINGS) as scheduler:
        try:
            assert_right(scheduler)
        except OutOfDeviceMemory:
            w.faults = InjectedFaults()
            scheduler.reset()
            assert_right(scheduler)
    assert [d.free_nbytes for d in devices] == free


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("kind", ["refuse", "fail", "lose"])
def test_buffers_that_could_not_be_filled_are_not_in_use_when_they_are_released(kind, number, seed):
    """Those of the other device are not either (BUF-2)."""
    g = GraphBuilder("two tensors on each device")
    y = g.input("x", (N,))
    for k in range(2):
        y = g.add(g.add(y, g.weight(f"w{k}", (N,))), g.state(f"s{k}", (N,)))
    w = world(InjectedFaults(**{kind: frozenset({number})}), seed)
    weights = {"w0": W, "w1": W}
    homes = Constraints({name: int(name[1]) for name in ("w0", "w1", "s0", "s1")})
    with Scheduler(w.open_all(), weights=weights, settings=SETTINGS) as scheduler:
        with pytest.raises((DeviceFault, UsageError)):
            scheduler.prepare(g.build(y), homes)
        assert w.live()["buffers"] == 0
    assert w.violations == []


def test_devices_by_name():
    with Scheduler(["cpu:0", "cpu:1"], weights={"w": W}, settings=SETTINGS) as scheduler:
        assert_right(scheduler)
        scheduler.reset()
        assert_right(scheduler)
        with pytest.raises(UsageError, match="by their names"):
            scheduler.reset(world().open_all())


def test_refusals():
    w = world()
    scheduler = Scheduler(w.open_all(), weights={"w": W}, settings=SETTINGS)
    with pytest.raises(UsageError, match="there were 2"):
        scheduler.reset(w.open_all()[:1])
    scheduler.close()
    with pytest.raises(UsageError, match="closed"):
        scheduler.reset()
