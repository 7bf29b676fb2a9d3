"""Devices of Ray clusters of two and three nodes, all on this host."""

import os
import re
import subprocess
import sys
import time

import numpy as np
import pytest

pytest.importorskip("ray.cluster_utils")

from ggsched import Scheduler
from ggsched.backend.registry import discover, open_devices
from ggsched.config import Settings
from ggsched.errors import BackendUnavailable, DeviceFault, UsageError
from ggsched_llm.load import load_model
from ggsched_llm.offload import Offload, OverrideRule
from ggsched_llm.session import Session, SessionOptions
from ggsched_ray.members import ACTOR_VARIABLES
from tests.cluster.kills import is_there, kill_some
from tests.cluster.ray_nodes import add_node, cluster_of
from tests.cluster.test_sessions import alone, homes, model
from tests.models.helpers import ORACLE

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # Ray's own
    pytest.mark.timeout(300),
]
CPU = Settings(timeout_s=20)


@pytest.fixture(scope="module")
def nodes():
    with cluster_of("red", "blue", "green") as cluster:
        yield cluster


def run_all(scheduler, graph, inputs, machines):
    return scheduler.run(graph, inputs, homes(5, machines))


def run_until_it_fails(*args):
    while True:
        run_all(*args)


@pytest.mark.usefixtures("nodes")
@pytest.mark.parametrize("names", [["ray://red/cpu:0", "ray://blue"], ["ray://"]])
def test_results_are_those_of_one_machine(names, monkeypatch):
    monkeypatch.setenv("GGSCHED_BACKENDS", "ray,cpu")
    graph, weights, inputs = model(5)
    with Scheduler(names, weights=weights, settings=CPU) as scheduler:
        found = [d.facts.name for d in scheduler.devices]
        assert found[0].startswith("ray://")
        cpus = [i for i, name in enumerate(found) if name.endswith("/cpu:0")]
        assert len(cpus) == 2 if len(names) == 2 else 3
        got = scheduler.run(graph, inputs, homes(5, len(found)))
        for tid, array in alone(graph, weights, inputs).items():
            np.testing.assert_allclose(got[tid], array, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("nodes")
def test_gpus_of_a_node_are_not_hidden_from_its_actor():
    import ray

    class Sees:
        def devices(self):
            return os.environ.get("CUDA_VISIBLE_DEVICES")

    options = {"num_gpus": 0, "runtime_env": {"env_vars": ACTOR_VARIABLES}}
    actor = ray.remote(Sees).options(**options).remote()
    assert ray.get(actor.devices.remote()) == os.environ.get("CUDA_VISIBLE_DEVICES")


@pytest.mark.usefixtures("nodes")
def test_a_model_over_three_nodes():
    llama = load_model(ORACLE / "llama-tiny-f32.gguf")
    rules = (
        OverrideRule(re.compile(r"blk\.0"), "ray://blue/cpu:0"),
        OverrideRule(re.compile(r"blk\.1"), "ray://green/cpu:0"),
    )
    options = SessionOptions(n_ctx=32, offload=Offload(n_gpu_layers=0, overrides=rules))
    with Session(llama, ["cpu:0"], SessionOptions(n_ctx=32)) as session:
        wanted = [session.feed([3, 1, 4, 1, 5]), session.feed([9])]
    devices = ["ray://blue/cpu:0", "ray://green/cpu:0", "ray://red/cpu:0"]
    with Session(llama, devices, options, settings=CPU) as session:
        found = [session.feed([3, 1, 4, 1, 5]), session.feed([9])]
        used = {session.last_plan.devices[s.device].name for s in session.last_plan.splits.splits}
        assert used == set(devices)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-5)


@pytest.mark.usefixtures("nodes")
@pytest.mark.parametrize(
    ("names", "error", "text"),
    [
        (["ray://pink"], BackendUnavailable, "ray://pink: no such node .*blue, green, red"),
        (["ray://red/tpu:0"], UsageError, "ray://red: no backend 'tpu' is installed"),
        (["ray://red", "cpu:0"], UsageError, "devices of this machine and of others in one list"),
        (["ray:0"], UsageError, r"ray:0: devices of a cluster have no numbers \(write ray://"),
        (["cpu://red"], UsageError, "cpu: its devices are those of this machine"),
    ],
)
def test_names_that_make_no_sense(names, error, text):
    with pytest.raises(error, match=text):
        open_devices(names)


@pytest.mark.usefixtures("nodes")
def test_no_device_unless_named():
    status, *_ = discover(allow=["ray"])
    assert (status.state, status.devices) == ("ready", ())


def test_a_node_that_goes_and_one_that_comes(nodes):
    """The nodes that are left go on, and one that has come back is used again."""
    graph, weights, inputs = model(5)
    extra = add_node(nodes, "extra")
    with Scheduler(["ray://"], weights=weights, settings=CPU) as scheduler:
        members = scheduler.devices[0].group.driver._members
        everyone = [m.pid for m in members]
        count = len(scheduler.devices)
        run_all(scheduler, graph, inputs, count)
        nodes.remove_node(extra, allow_graceful=False)
        with pytest.raises(DeviceFault, match="ray://extra: the machine was lost"):
            run_until_it_fails(scheduler, graph, inputs, count)
        scheduler.reset()
        left = len(scheduler.devices)
        assert left < count
        got = run_all(scheduler, graph, inputs, left)
        for tid, array in alone(graph, weights, inputs).items():
            np.testing.assert_allclose(got[tid], array, rtol=1e-5, atol=1e-6)
        extra = add_node(nodes, "extra")
        scheduler.reset()
        assert len(scheduler.devices) == count
        run_all(scheduler, graph, inputs, count)
    nodes.remove_node(extra)
    assert not any(is_there(pid) for pid in everyone)


def test_killed_workers(nodes):
    from ggsched_cluster.members import Start
    from ggsched_ray.members import node_address, started

    start = Start("ray", lambda token: started(token, ("red", "blue")), node_address())
    outcomes, left = kill_some(3, start)
    assert outcomes == {"error, recovered": 3}
    assert left == {"processes": 0, "shared memory": 0}


DRIVER = """
import os, ray
ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=False, logging_level="ERROR")
from ggsched.backend.registry import open_devices
devices = open_devices(["ray://red", "ray://blue"])
print(*[m.pid for m in devices[0].group.driver._members], flush=True)
os.kill(os.getpid(), 9)
"""


def test_workers_end_when_their_driver_is_gone(nodes):
    env = {**os.environ, "RAY_ADDRESS": nodes.address}
    driver = subprocess.run(
        [sys.executable, "-c", DRIVER], capture_output=True, check=False, env=env
    )
    pids, until = list(map(int, driver.stdout.split())), time.monotonic() + 60
    assert len(pids) == 2
    while any(map(is_there, pids)):
        assert time.monotonic() < until
        time.sleep(0.1)
