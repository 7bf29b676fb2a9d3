"""A capability is declared once; what can be derived from its declaration is."""

import json
from dataclasses import MISSING, replace

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from ggsched.calibrate.identity import device_identity
from ggsched.errors import PlanError, UsageError
from ggsched.topology.caps import Capability, DeviceFacts, capabilities
from ggsched.topology.codec import topology_from_text, topology_to_text
from ggsched.topology.model import Topology
from ggsched_commands import capabilities_page as page
from ggsched_testing.conformance.needs import NEEDS
from ggsched_testing.conformance.rules import RULES
from ggsched_testing.conformance.suite import all_cases
from ggsched_testing.generators.topologies import devices
from ggsched_testing.sim import SimConfig
from tests.meta.repository import ROOT

PAGE = ROOT / "docs" / "reference" / "capabilities.md"
SILENT = DeviceFacts(name="a:0", backend="a", memory_nbytes=1 << 20)
DECLARED = list(capabilities().values())
RULES_WITH_CASES = {case.rule for case in all_cases()}


def ids(capability):
    return capability.name


def test_the_page_has_the_table_as_it_is_declared():
    text = PAGE.read_text(encoding="utf-8")
    assert text == page.filled(text), (
        "python -m ggsched_commands.capabilities_page docs/reference/capabilities.md"
    )


@pytest.mark.parametrize("capability", DECLARED, ids=ids)
def test_each_has_a_meaning_a_default_and_a_place_in_the_kit(capability):
    assert capability.meaning
    assert capability.default is not MISSING or capability.name == "memory_nbytes"
    assert capability.rules
    assert set(capability.rules) <= set(RULES)
    assert set(capability.rules) <= RULES_WITH_CASES
    for name, (value, otherwise) in capability.needs.items():
        assert name in NEEDS
        assert type(value) is capability.type
        assert otherwise


def test_needs_that_are_declared_are_used():
    declared = {name for capability in DECLARED for name in capability.needs}
    assert declared <= {need for case in all_cases() for need in case.needs}


def test_a_silent_device_promises_nothing():
    promises = {"has_events", "is_host", "is_async", "snapshots_uploads", "is_deterministic"}
    assert not any(getattr(SILENT, name) for name in promises | {"imports_host_memory"})
    assert (SILENT.copy_order, SILENT.max_streams) == ("host", 1)
    assert not SILENT.ops | SILENT.fusions | SILENT.neighbours
    assert SILENT.max_allocation_nbytes == SILENT.memory_nbytes


@given(drawn=devices("fake:0", fusions=True))
def test_files_name_what_differs_from_the_default(drawn):
    text = topology_to_text(Topology((drawn,)))
    (plain,) = json.loads(text)["devices"]
    for name, capability in capabilities().items():
        if name != "max_allocation_nbytes":
            assert (name in plain) == (getattr(drawn, name) != capability.default)
    assert topology_from_text(text) == Topology((drawn,))


def test_a_file_of_format_1_that_leaves_out_facts_gets_the_conservative_ones():
    plain = Topology((SILENT,)).to_json() | {"format": "ggsched-topology/1"}
    assert topology_from_text(json.dumps(plain)).devices == (SILENT,)


@pytest.mark.parametrize("name", ["name", "backend", "memory_nbytes"])
def test_what_only_the_device_knows_has_no_default(name):
    plain = Topology((SILENT,)).to_json()
    del plain["devices"][0][name]
    with pytest.raises(PlanError, match=name):
        topology_from_text(json.dumps(plain))


@pytest.mark.parametrize("capability", DECLARED, ids=ids)
def test_random_topologies_take_every_value(capability):
    any_will_do = settings(max_examples=2000, phases=(Phase.generate,))  # not the smallest one
    for value in capability.drawn_values():
        find(
            devices("fake:0"),
            lambda f, v=value: getattr(f, capability.name) == v,
            settings=any_will_do,
        )


@given(st.data())
def test_the_simulator_takes_every_capability(data):
    facts = data.draw(devices("sim:0"))
    again = SimConfig.of_facts(facts).facts(0)
    assert again == replace(facts, backend="sim", description=again.description)


def test_the_simulator_refuses_a_capability_that_is_unknown():
    with pytest.raises(TypeError, match="colour"):
        SimConfig(colour="red").facts(0)


def test_what_a_device_does_not_declare_does_not_tell_it_from_another():
    assert device_identity(SILENT) == device_identity(replace(SILENT, name="a:1"))
    assert device_identity(SILENT) != device_identity(replace(SILENT, has_events=True))


def test_facts_that_cannot_be_true_are_refused():
    with pytest.raises(UsageError, match="alignment 3 is not a power of two"):
        replace(SILENT, alignment=3)
    with pytest.raises(UsageError, match="at least one stream"):
        replace(SILENT, max_streams=0)


def test_drawn_values_follow_from_the_type():
    assert Capability("", (), type=bool).drawn_values() == (False, True)
    assert Capability("", (), type=int).drawn_values() == ()
    assert Capability("", (), type=bool, drawn=(True,)).drawn_values() == (True,)
