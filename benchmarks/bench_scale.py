"""Plans for 16 to 1,024 devices: what each device and micro-batch costs, in processor time.

A pipeline of machines with eight devices each that share every product (tensor parallelism), one
layer for each machine, 4 micro-batches. The figures are of 1,024 devices over those of 16, and the
time for each device and micro-batch. Then the parts run on simulated devices, with links of 50 us
and 12.5 GB/s (100 Gbit/s) between machines: how much longer it takes than the closed form says of
equal stages, (m + p - 1) stages; with a machine half as fast; and with one that is lost. Besides,
what a step of a group of 4 to 32 devices costs, which grows with the devices.
"""

import gc
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np

from benchmarks.table import Row
from ggsched.errors import DeviceFault
from ggsched.ir.graph import Graph
from ggsched.ir.tensor import Role
from ggsched.passes import Constraints, make_plan
from ggsched.passes.cost.predict import predict_step
from ggsched.plan.bundle import Plan
from ggsched.plan.parts import Part
from ggsched.sanitize import check_plan
from ggsched.topology.cost import Link, guessed_rates
from ggsched_cluster.check_parts import check_parts
from ggsched_cluster.machines import cut_by_machine
from ggsched_testing.generators.clusters import (
    Machines,
    one_machine,
    several_machines,
    staged_model,
)
from ggsched_testing.sim.cluster import ClusterFaults, SimCluster
from ggsched_testing.sim.costs import Costs

GROUP, BATCHES = 8, 4
GROUPS = (4, 8, 16, 32)
MACHINES = (2, 8, 32, 128)
LINK = Link(50e-6, 12.5e9)
RUN = (4, 8)
"""Machines and micro-batches of the simulated runs."""
LAUNCH_S = 1e-3
"""Of every launch, so that a stage takes milliseconds, as those of real models do."""

T = TypeVar("T")


def _seconds(of: dict[str, float], name: str, count: int, make: Callable[[], T]) -> T:
    gc.collect()
    began = time.process_time()
    made = make()
    of[name] = (time.process_time() - began) / count
    return made


def measured(machines: int, batches: int) -> dict[str, float]:
    """Return for each step its seconds for each device and micro-batch."""
    count, took = machines * GROUP * batches, dict[str, float]()
    model = _seconds(took, "shard", count, lambda: staged_model(machines, GROUP))
    joined, wanted = _seconds(took, "join", count, lambda: model.micro_batches(batches))
    cluster = several_machines(one_machine(GROUP), machines)
    graph = joined.graph
    _ = graph.digest, cluster.topology.digest  # made once, whoever plans
    plan = _seconds(took, "plan", count, lambda: make_plan(graph, cluster.topology, wanted))
    parts = _seconds(took, "cut", count, lambda: cut_by_machine(plan, cluster.machine_of))
    report = _seconds(took, "check", count, lambda: check_plan(plan))
    assert report.is_clean
    report = _seconds(
        took, "check the parts", count, lambda: check_parts(plan, parts, cluster.machine_of)
    )
    assert report.is_clean
    took["commands"] = len(plan.commands) / count
    return took


class _Runs:
    """Runs of one plan on simulated machines."""

    def __init__(self, machines: int, batches: int) -> None:
        joined, wanted = staged_model(machines, GROUP, width=16, tokens=4).micro_batches(batches)
        self._graph: Graph = joined.graph
        self._machines: Machines = several_machines(one_machine(GROUP), machines)
        self._plan: Plan = self._planned(wanted)
        self._parts: tuple[Part, ...] = cut_by_machine(self._plan, self._machines.machine_of)
        self._values = {t.name: np.ones(t.shape, np.float32) for t in self._graph.roots(Role.INPUT)}
        roots = self._graph.roots(Role.WEIGHT)
        self._weights = {t.name: np.ones(t.shape, np.float32) for t in roots}

    def _planned(self, wanted: Constraints) -> Plan:
        return make_plan(self._graph, self._machines.topology, wanted)

    def run(
        self, *, slow: dict[int, float] | None = None, faults: ClusterFaults | None = None
    ) -> SimCluster:
        """Run it with machines that take that many times as long."""
        times = dict.fromkeys((part.machine for part in self._parts), 1.0) | (slow or {})
        cluster = SimCluster(
            self._graph,
            self._plan,
            self._parts,
            self._machines.machine_of,
            self._machines.topology,
            weights=self._weights,
            link=LINK,
            costs={m: Costs(launch_s=LAUNCH_S * by) for m, by in times.items()},
            faults=faults,
        )
        cluster.run(self._values)
        return cluster


def _total(cluster: SimCluster) -> float:
    spans = [s for _, s in cluster.timeline() if s.kind == "launch"]
    return max(s.end_s for s in spans) - min(s.start_s for s in spans)


def _groups() -> Iterator[Row]:
    """Yield what a decoding step costs where one group of devices shares all layers and copies."""
    for group in GROUPS:
        joined, wanted = staged_model(1, group, layers=4, tokens=1).micro_batches(1)
        topology, graph = one_machine(group), joined.graph
        plan = make_plan(graph, topology, wanted)
        step_us = 1e6 * predict_step(graph, plan, guessed_rates(topology)).seconds
        what, count = f"group of {group}, four layers:", len(plan.commands)
        yield Row("scale", f"{what} commands", count, count, count, "")
        yield Row("scale", f"{what} predicted step", step_us, step_us, step_us, "us")


def _simulated() -> list[Row]:
    p, m = RUN
    alone, all_of_them = _Runs(p, 1), _Runs(p, m)
    stage = _total(alone.run()) / p
    even = all_of_them.run()
    rows = []

    def add(what: str, value: float, unit: str = "", bound: str = "") -> None:
        rows.append(Row("scale", what, value, value, value, unit, bound))

    what = f"{p} machines of {GROUP}, {m} micro-batches"
    ideal = (p - 1) / (m + p - 1)
    add(f"{what}: time / closed form", _total(even) / ((m + p - 1) * stage), bound="<= 1.05")
    add(f"{what}: idle share - closed form", even.idle_share(range(p - 1)) - ideal)
    slow = all_of_them.run(slow={1: 2.0})
    add(f"{what}, one at half speed: time / closed form", _total(slow) / ((2 * m + p - 1) * stage))
    try:
        all_of_them.run(faults=ClusterFaults({1: 100}))
    except DeviceFault as error:
        add(f"{what}, one lost: errors ({error.one_line()[:60]})", 1.0)
    return rows


def run() -> list[Row]:
    """Measure."""
    rows = []
    found = {n: measured(n, BATCHES) for n in MACHINES}
    few, many = found[MACHINES[0]], found[MACHINES[-1]]
    for name in few:
        unit, scale = ("ms", 1e3) if name != "commands" else ("", 1.0)
        for n in MACHINES:
            value = found[n][name] * scale
            what = f"{name}, {n * GROUP} devices x {BATCHES}: for each"
            rows.append(Row("scale", what, value, value, value, unit))
        value, bound = many[name] / few[name], "<= 1.5" if name == "plan" else ""
        what = f"{name}: {MACHINES[-1] * GROUP} devices / {MACHINES[0] * GROUP}"
        rows.append(Row("scale", what, value, value, value, bound=bound))
    return [*rows, *_groups(), *_simulated()]
