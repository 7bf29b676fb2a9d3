"""Topology files: what is written is read, and what is damaged is refused on one line."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggsched.backend.free_memory import free_nbytes
from ggsched.backend.offline_device import paper_devices, paper_topology
from ggsched.backend.probe import probe
from ggsched.errors import GgschedError, PlanError, UsageError
from ggsched.passes import make_plan
from ggsched.passes.decomposed_plan import decomposed_plan
from ggsched.passes.options import plan_options
from ggsched.passes.place import Constraints
from ggsched.passes.placement.ggml import GgmlRules
from ggsched.plan.codec import plan_to_json
from ggsched.scheduler import Scheduler
from ggsched.topology.codec import restricted, topology_from_text, topology_to_text
from ggsched.topology.model import Topology
from ggsched_testing.generators.strategies import graphs
from ggsched_testing.generators.topologies import topologies
from tests.backend.stubs import facts_of

PLAIN = Topology((facts_of("gpu:0"), facts_of("gpu:1", fusions=frozenset({"x"})))).to_json()


def text_of(**changes):
    return json.dumps({**PLAIN, **changes})


@given(topology=topologies(fusions=True))
def test_what_is_written_is_read(topology):
    text = topology_to_text(topology)
    again = topology_from_text(text)
    assert again == topology
    assert again.digest == topology.digest
    assert topology_to_text(again) == text
    assert topology_from_text(json.dumps({"backends": [], "topology": topology.to_json()})) == again


@given(topology=topologies(max_devices=3), data=st.data())
def test_paper_devices_are_the_machine(topology, data):
    devices = paper_devices(topology)
    assert probe(devices) is topology
    names = [d.name for d in topology.devices]
    some = data.draw(st.permutations(names))[: data.draw(st.integers(1, len(names)))]
    less = restricted(topology, some)
    assert [d.name for d in less.devices] == some
    old = [names.index(name) for name in some]
    for i, was in enumerate(old):
        for j, there in enumerate(old):
            assert less.wait_path(i, j) == topology.wait_path(was, there)
            path = topology.copy_paths.get((was, there))
            assert ((i, j) in less.copy_paths) == (path is not None)
            if path is not None:
                assert old[less.copy_paths[i, j].by] == path.by
    assert restricted(topology, None) is topology


@given(drawn=graphs(max_nodes=6), topology=topologies())
def test_plans_for_paper_are_the_plans_for_the_topology(drawn, topology):
    with Scheduler(
        paper_devices(topology_from_text(topology_to_text(topology))), placement="ggml"
    ) as scheduler:
        found = scheduler.plan(drawn.graph)
        options = plan_options(scheduler.settings, topology)
    # A scheduler decomposes what no device has; a plan is made of what it is given.
    graph, wanted = drawn.graph, Constraints()
    other = decomposed_plan(graph, topology, wanted, options, GgmlRules())
    if other is not None:
        graph, wanted = other.graph, other.constraints
    assert plan_text(found) == plan_text(make_plan(graph, topology, wanted, options))


def plan_text(plan):
    return {k: v for k, v in json.loads(plan_to_json(plan)).items() if k != "planning_s"}


def test_paper_runs_nothing():
    device = paper_devices(topology_from_text(text_of()))[0]
    for call in (
        lambda: device.allocate(4),
        lambda: device.allocate_host(4),
        lambda: device.import_host(memoryview(b"1234")),
        device.create_stream,
        device.create_event,
        lambda: device.compile([], None),
    ):
        with pytest.raises(UsageError, match="nothing runs on a device that is described"):
            call()
    device.close()
    assert free_nbytes(device) == device.facts.memory_nbytes


def test_some_of_the_devices_are_not_the_machine():
    devices = paper_devices(topology_from_text(text_of()))
    assert paper_topology(devices[:1]) is None
    assert paper_topology(devices[::-1]) is None
    assert paper_topology([*devices, *devices]) is None
    assert len(probe(devices[:1]).devices) == 1


def device(**changes):
    return {**PLAIN["devices"][0], **changes}


BAD = {
    "empty": "",
    "no JSON": "{",
    "no text": b"\xff\xfe",
    "deep": "[" * 100_000,
    "a list": "[]",
    "a number": "3",
    "no format": "{}",
    "another format": text_of(format="ggsched-topology/3"),
    "a plan": text_of(format="ggsched-plan/3"),
    "no usable device": json.dumps({"backends": [], "topology": None}),
    "no devices": text_of(devices=[]),
    "devices that are not objects": text_of(devices=[1]),
    "a fact too few": text_of(devices=[{"name": "gpu:0"}]),
    "a fact too many": text_of(devices=[device(colour="red")]),
    "an entry too many": text_of(colour="red"),
    "a wrong type": text_of(devices=[device(memory_nbytes="8 GiB")]),
    "a fact that is neither": text_of(devices=[device(is_host=1)]),
    "an unknown word": text_of(devices=[device(copy_order="perhaps")]),
    "a negative size": text_of(devices=[device(memory_nbytes=-1)]),
    "no power of two": text_of(devices=[device(alignment=3)]),
    "no streams": text_of(devices=[device(max_streams=0)]),
    "no name": text_of(devices=[device(name="")]),
    "an unknown op": text_of(devices=[device(ops=["fly:f32"])]),
    "an unknown type": text_of(devices=[device(ops=["add:f31"])]),
    "no op": text_of(devices=[device(ops=["add"])]),
    "a name twice": text_of(devices=[device(), device()]),
    "a path to nowhere": text_of(copy_paths=[[0, 7, 0]]),
    "a path by a third": text_of(copy_paths=[[0, 1, 2]]),
    "a path twice": text_of(copy_paths=[[0, 1, 0], [0, 1, 1]]),
    "a wait twice": text_of(wait_paths=[[0, 1, "host"], [0, 1, "native"]]),
    "a wait by magic": text_of(wait_paths=[[0, 1, "magic"]]),
    "a wait of nobody": text_of(wait_paths=[[0, -1, "native"]]),
    "a pair of one": text_of(copy_paths=[[0]]),
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_damaged_files_give_one_line(text):
    with pytest.raises(PlanError) as caught:
        topology_from_text(text, "machine.json")
    line = str(caught.value)
    assert line.startswith("machine.json: ")
    assert "\n" not in line
    assert "ggsched devices --json" in line
    assert caught.value.exit_code == 2


@given(data=st.data())
def test_any_other_value_anywhere_is_a_topology_or_refused(data):
    plain = json.loads(json.dumps(PLAIN | {"copy_paths": [[0, 1, 0]]}))
    at = data.draw(st.sampled_from([plain, plain["devices"][0], plain["copy_paths"][0]]))
    keys = list(at) if isinstance(at, dict) else list(range(len(at)))
    junk = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
        max_leaves=5,
    )
    at[data.draw(st.sampled_from(keys))] = data.draw(junk)
    problem = ""
    try:
        found = topology_from_text(json.dumps(plain))
    except PlanError as error:
        problem = str(error)
    assert "\n" not in problem
    if not problem:
        assert topology_from_text(topology_to_text(found)) == found


def test_a_device_that_is_not_there():
    topology = topology_from_text(text_of())
    with pytest.raises(GgschedError, match="no device 'gpu:7'"):
        restricted(topology, ["gpu:7"])
    with pytest.raises(GgschedError, match="named twice"):
        restricted(topology, ["gpu:0", "gpu:0"])
