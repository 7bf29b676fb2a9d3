"""Rates of several machines: of devices, of messages between them, and how far clocks are apart."""

from dataclasses import replace

import numpy as np
import pytest

from ggsched import GraphBuilder
from ggsched.calibrate.cache import load_rates
from ggsched.passes import make_plan
from ggsched.passes.cost.predict import predict_step
from ggsched.passes.place import Constraints
from ggsched.run.release import close_all
from ggsched.topology.cost import HOST, Link, guessed_rates, machine_of
from ggsched_calibrate.save import save_rates
from ggsched_cluster import worker
from ggsched_cluster.calibrate import calibrate_group
from ggsched_cluster.remote_devices import group_of, open_group
from ggsched_commands.calibrate import report
from tests.calibrate.undisturbed import trust_what_is_measured
from tests.cluster.workers import Members


@pytest.fixture(scope="module")
def group():
    wanted = [("a", ("cpu:0", "cpu:1")), ("b", ("cpu:0",))]
    devices = open_group(Members("a", "b").start, wanted, timeout_s=20)
    yield group_of(devices)
    close_all(devices)


@pytest.fixture(scope="module")
def found(group):
    with pytest.MonkeyPatch.context() as patch:
        trust_what_is_measured(patch)
        patch.setattr(worker, "others_of_this_process", lambda: None)
        return calibrate_group(group, 0.3)


def test_messages_are_measured_both_ways(found):
    assert set(found.rates.network) == {
        ("threads://a", "threads://b"),
        ("threads://b", "threads://a"),
    }
    for link in found.rates.network.values():
        assert 0 <= link.latency_s < 0.1
        assert link.bandwidth > 1e6
    assert len(found.rates.devices) == 3
    assert (HOST, 2) in found.rates.links
    assert (0, 1) in found.rates.links
    assert (0, 2) not in found.rates.links


def test_a_way_to_another_machine_costs_the_message_too(found):
    rates = found.rates
    there, between, here = rates.link(0, HOST), rates.between(0, 2), rates.link(HOST, 2)
    whole = rates.link(0, 2)
    latencies = [way.latency_s for way in (there, between, here)]
    assert whole.latency_s == pytest.approx(sum(latencies))
    assert 1 / whole.bandwidth == pytest.approx(
        sum(1 / w.bandwidth for w in (there, between, here))
    )
    assert rates.between(0, 1) is None


def test_the_file_keeps_links_between_machines(group, found, tmp_path):
    path = tmp_path / "rates.json"
    save_rates(found, {f.name: f for f in group.topology.devices}, path)
    again = load_rates(group.topology, str(path))
    assert again.network == found.rates.network
    assert again.machines == ("threads://a", "threads://a", "threads://b")
    assert len(report(found, {f.name: f for f in group.topology.devices})["network"]) == 2


def test_a_step_is_predicted_to_take_what_the_network_takes(group):
    g = GraphBuilder("two nodes")
    x = g.input("x", (64, 64))
    graph = g.build(g.silu(g.gelu(x)))
    plan = make_plan(graph, group.topology, Constraints(pins={0: 0, 1: 2}))
    rates = guessed_rates(group.topology)
    slow = replace(rates, network={("threads://a", "threads://b"): Link(1.0, 1e9)})
    assert predict_step(graph, plan, slow).seconds > 1
    assert predict_step(graph, plan, rates).seconds < 0.1


def test_clocks_of_one_host_are_not_apart(group):
    for offset in group.driver.clock_offsets():
        assert abs(offset.offset_s) <= offset.error_s


def test_machines_by_name(group):
    names = [machine_of(facts) for facts in group.topology.devices]
    assert names == ["threads://a", "threads://a", "threads://b"]
    assert np.all([machine_of(replace(f, name="cpu:0")) == "" for f in group.topology.devices])
