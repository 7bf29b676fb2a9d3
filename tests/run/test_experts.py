"""Experts computed away from their weights: results, the ledger to the byte, caches, failures."""

import numpy as np
import pytest

from ggsched.errors import DeviceFault, UsageError
from ggsched.passes.place import Constraints
from ggsched.plan.command import CopyRows, HostSync
from ggsched.run.expert_binding import Decision
from ggsched.scheduler import Scheduler
from ggsched_offload.offload import ExpertPolicy
from ggsched_testing.generators.expert_graphs import (
    INPUT,
    chosen_rows,
    expert_graph,
    expert_homes,
    expert_names,
    expert_values,
)
from ggsched_testing.oracle.interpreter import run_oracle
from ggsched_testing.schedule_policy import RandomPolicy
from ggsched_testing.sim.config import InjectedFaults, SimConfig
from ggsched_testing.sim.world import SimWorld

ROWS = ExpertPolicy("on")
CACHED = ExpertPolicy("on", cache_nbytes=4 * 8192 + 100)
RUNS = 4

WAYS = {
    "events": {},
    "no events": {"has_events": False},
    "barriers": {"copy_order": "barrier"},
    "host orders copies": {"copy_order": "host"},
    "no path": {"copies": frozenset()},
    "one stream": {"max_streams": 1},
    "host waits": {"waits": "host"},
    "transfer queues": {"transfer_queues": 2},
}


def sim_devices(seed=0, faults=None, **config):
    configs = [SimConfig(**config), SimConfig(is_host=True, kind="cpu", **config)]
    world = SimWorld(configs, policy=RandomPolicy(seed), faults=faults)
    return world, world.open_all()


class Used:
    """A scheduler on two devices with experts on the second, and what was chosen so far."""

    def __init__(self, devices, policy, graph=None, seed=0):
        self.graph = graph or expert_graph(3, biases=True)
        self.values = expert_values(self.graph, seed)
        self.scheduler = Scheduler(devices, weights=self.values)
        homes = expert_homes(self.graph, here=1, there=0)
        self.constraints = Constraints(homes, offload=policy)
        self.rng = np.random.default_rng(seed)
        self.decided: list[dict[str, set[int]]] = []

    @property
    def plan(self):
        return self.scheduler.plan(self.graph, self.constraints)

    def run(self, times=1):
        for _ in range(times):
            shape = self.values[INPUT].shape
            self.values[INPUT] = self.rng.standard_normal(shape, np.float32)
            given = {INPUT: self.values[INPUT]}
            out = self.scheduler.run(self.graph, given, self.constraints)
            expected = run_oracle(self.graph, self.values)
            for tid, array in out.items():
                np.testing.assert_allclose(array, expected[tid], rtol=1e-4, atol=1e-5)
            self.decided.append(chosen_rows(self.graph, out))

    def row_nbytes(self, name):
        return self.values[name][0].nbytes

    def accounts(self):
        ledger = self.scheduler.expert_ledger
        return {name: account for (name, _), account in ledger.accounts.items()}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", range(3))
def test_the_ledger_is_exact(way, seed):
    """Bytes of used experts, each once for each decision, on devices of every sort."""
    _, devices = sim_devices(seed, **WAYS[way])
    used = Used(devices, ROWS, seed=seed)
    with used.scheduler:
        used.run(RUNS)
        copies = [c for c in used.plan.commands if isinstance(c, CopyRows)]
        assert {c.through_host_view for c in copies} == {way == "no path"}
        assert_uploads_are_what_was_chosen(used)


@pytest.mark.opencl
@pytest.mark.parametrize("seed", range(2))
def test_the_ledger_is_exact_on_opencl(seed):
    used = Used(["opencl:0", "cpu:0"], ROWS, seed=seed)
    with used.scheduler:
        used.run(RUNS)
        assert_uploads_are_what_was_chosen(used)


def assert_uploads_are_what_was_chosen(used):
    accounts = used.accounts()
    assert set(accounts) == set(expert_names(used.graph))
    for name, account in accounts.items():
        chosen = sum(len(decided[name]) for decided in used.decided)
        assert account.chosen_rows == account.uploaded_rows == chosen
        assert account.uploaded_nbytes == chosen * used.row_nbytes(name)
        assert account.layers == account.cached_rows == 0
        assert account.copies <= chosen
    layers = len(used.graph.outputs) - 1
    assert used.scheduler.expert_ledger.id_reads == layers * len(used.decided)


def test_the_host_waits_once_for_each_decision():
    _, devices = sim_devices()
    used = Used(devices, ROWS)
    with used.scheduler:
        used.run()
        syncs = [c for c in used.plan.commands if isinstance(c, HostSync)]
        ids = {c.ids for c in used.plan.commands if isinstance(c, CopyRows)}
        for_ids = [c for c in syncs if c.hazard.later >= 0]
        assert len(for_ids) == len(used.graph.outputs) - 1 >= len(ids)


@pytest.mark.parametrize("way", WAYS)
def test_cached_rows_are_uploaded_once_for_each_residency(way):
    _, devices = sim_devices(**WAYS[way])
    used = Used(devices, CACHED)
    with used.scheduler:
        used.run(6)
        for name, account in used.accounts().items():
            expected = replayed(used, name)
            found = (account.uploaded_rows, account.cached_rows)
            assert found == expected
            assert account.uploaded_nbytes == expected[0] * used.row_nbytes(name)
            assert account.cached_rows
        slots = next(o.cached for o in used.plan.placement.offloads)
        nbytes = slots * sum(used.row_nbytes(n) for n in expert_names(used.graph))
        assert used.scheduler.resident_nbytes("cache") == {"sim:0": nbytes}
        assert nbytes <= CACHED.cache_nbytes


def replayed(used, name):
    """Return (uploaded, cached) rows of a cache that forgets what was used longest ago."""
    slots, there = used.plan.placement.offloads[0].cached, []
    uploaded = cached = 0
    for decided in used.decided:
        rows = sorted(decided[name])
        found = [r for r in rows if r in there]
        missing = [r for r in rows if r not in there]
        uploaded, cached = uploaded + len(missing), cached + len(found)
        there = [r for r in there if r not in found] + found
        there = (there + missing[: max(0, slots - len(found))])[-slots:]
    return uploaded, cached


def test_reloaded_weights_are_not_taken_from_the_cache():
    _, devices = sim_devices()
    used = Used(devices, CACHED)
    with used.scheduler:
        used.run(3)
        names = expert_names(used.graph)
        for name in names:
            used.values[name] = -0.5 * used.values[name]
        used.scheduler._store._weights = used.values
        used.scheduler.reload_weights(names)
        before = {n: a.cached_rows for n, a in used.accounts().items()}
        used.run(1)  # compares with the oracle on the new weights
        assert before == {n: a.cached_rows for n, a in used.accounts().items()}
        used.run(2)
        assert before != {n: a.cached_rows for n, a in used.accounts().items()}
        with pytest.raises(UsageError, match="not resident"):
            used.scheduler.reload_weights(["nobody"])


def test_whole_layers_are_counted_apart():
    _, devices = sim_devices()
    used = Used(devices, ExpertPolicy("on", ring=2), expert_graph(3, tokens=64))
    with used.scheduler:
        used.run(2)
        assert {o.way for o in used.plan.placement.offloads} == {"layer"}
        for name, account in used.accounts().items():
            assert (account.layers, account.uploaded_rows) == (2, 0)
            assert account.layer_nbytes == 2 * used.values[name].nbytes
        assert used.scheduler.expert_ledger.id_reads == 0


def test_ids_that_are_no_rows_are_refused(monkeypatch):
    monkeypatch.setattr(Decision, "rows", lambda self, run: (0, 8))
    _, devices = sim_devices()
    used = Used(devices, ROWS)
    with used.scheduler, pytest.raises(DeviceFault, match="ids from 0 to 8 for 8 rows") as info:
        used.run()
    assert any("CopyRows on q2" in note for note in info.value.__notes__)


@pytest.mark.parametrize(
    ("policy", "tokens"), [(CACHED, 4), (ExpertPolicy("on", ring=2), 64)], ids=["cache", "ring"]
)
def test_a_command_that_fails_leaves_no_row_behind_that_is_trusted(policy, tokens):
    """Every command of a run is refused in turn; the next run computes what it should."""
    world, devices = sim_devices()
    used = Used(devices, policy, expert_graph(3, tokens=tokens, biases=True))
    with used.scheduler:
        used.run(2)
        before = world.enqueued
        used.run(1)
        count = world.enqueued - before
        for number in range(0, count, 3):
            world.faults = InjectedFaults(refuse=frozenset({world.enqueued + number}))
            with pytest.raises(UsageError, match="is refused"):
                used.run(1)
            world.faults = InjectedFaults()
            used.run(1)
        assert not world.violations
