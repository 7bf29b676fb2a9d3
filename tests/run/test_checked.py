"""The scheduler behind the checked layer: it keeps the rules that the layer checks."""

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings

from ggsched import Scheduler
from ggsched.backend.checked import CheckedDevice
from ggsched.config import Settings
from ggsched_testing.generators.strategies import ATOL, RTOL, graphs, seeds, values_for
from ggsched_testing.oracle.interpreter import run_oracle
from ggsched_testing.sim import SimConfig
from ggsched_testing.sim.harness import sim_harness

CHECKED = Settings(checked=True)

MACHINES = {
    "cpu": ["cpu:0", "cpu:1"],
    "one of two": [SimConfig(), SimConfig(is_host=True, kind="cpu")],
    "no events": [SimConfig(has_events=False), SimConfig(copies=frozenset())],
    "barriers": [
        SimConfig(copy_order="barrier", transfer_queues=2),
        SimConfig(snapshots_uploads=True),
    ],
}


def opened(machine, seed):
    given_ = MACHINES[machine]
    if isinstance(given_[0], str):
        return given_
    return list(sim_harness(*given_).open(2, seed))


@pytest.mark.parametrize("machine", MACHINES)
@given(drawn=graphs(max_nodes=8), seed=seeds())
@hypothesis_settings(max_examples=12)
def test_any_graph(machine, drawn, seed):
    values = values_for(drawn, seed)
    weights = {t: v for t, v in values.items() if t in _names(drawn.graph, "weight")}
    inputs = {t: v for t, v in values.items() if t in _names(drawn.graph, "input")}
    states = {}
    with Scheduler(opened(machine, seed), weights=weights, settings=CHECKED) as scheduler:
        for _ in range(2):
            expected = run_oracle(drawn.graph, values, states=states)
            outputs = scheduler.run(drawn.graph, inputs)
            for tid, wanted in expected.items():
                assert abs(outputs[tid] - wanted).max(initial=0) <= ATOL + RTOL * 256


def _names(graph, role):
    return {t.name for t in graph.tensors if not t.is_view and t.role.value == role}


def test_devices_are_wrapped_on_request():
    with Scheduler(["cpu:0"], settings=CHECKED) as scheduler:
        assert isinstance(scheduler._store.devices[0], CheckedDevice)
    with Scheduler(["cpu:0"], settings=Settings()) as scheduler:
        assert not isinstance(scheduler._store.devices[0], CheckedDevice)
