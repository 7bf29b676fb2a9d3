"""Versions of the contract: a backend is not asked for what joined later than it declares."""

from dataclasses import replace

from ggsched.backend.base import BaseBackend, BaseDevice, BaseStream, host_facts
from ggsched.backend.plugins import member_flaws
from ggsched.backend.protocols import CONTRACT_VERSION, MEMBERS_SINCE, Device, Stream
from ggsched_testing.conformance import ConformanceRunner, Harness, all_cases, select
from ggsched_testing.conformance.rules import RULES, RULES_SINCE
from tests.testing.test_conformance_kit import Point


class StreamWithoutFill(BaseStream):
    """As a plug-in of contract 1.0 has them."""

    @property
    def fill(self):
        raise AttributeError("fill")


class DeviceOfTheFirstContract(BaseDevice):
    begin_capture = None

    def make_stream(self, name):
        return StreamWithoutFill(self, name)


def make(index):
    return DeviceOfTheFirstContract(host_facts("old", [], name=f"old:{index}"), {})


def harness(version):
    backend = BaseBackend("old", make, limit=2, contract_version=version)
    return Harness.named("old", entry_points=[Point("old", lambda: backend)])


def test_a_backend_of_the_first_contract_passes_without_fill():
    """``tru1_protocols`` demanded it, though the table of versions said that it is optional."""
    kit = ConformanceRunner(harness((1, 0)))
    results = [kit.run(c) for c in select("TRU-1,FIL-*,CPY-2,ERR-1,ERR-3")]
    assert not [r for r in results if r.verdict == "fail"]
    fills = [r for r in results if r.case.rule.startswith("FIL")]
    reason = "it declares contract 1.0, and this is of 1.1"
    assert {(r.verdict, r.reason) for r in fills} == {("skip", reason)}


def test_a_backend_that_declares_a_later_contract_is_told_which_member_is_missing():
    (case,) = select("tru1_protocols")
    result = ConformanceRunner(harness((1, 1))).run(case)
    assert result.verdict == "fail"
    assert result.reason == "q0 is not a Stream: it lacks fill"


def test_the_version_of_an_installed_backend_is_known_and_others_have_the_newest():
    assert harness((1, 2)).contract == (1, 2)
    assert Harness("x", lambda count, seed: []).contract == CONTRACT_VERSION
    assert Harness.named("cpu").contract == CONTRACT_VERSION


def test_each_case_is_of_a_version_that_exists():
    for case in all_cases():
        assert RULES_SINCE.get(case.rule, (1, 0)) <= case.since <= CONTRACT_VERSION, case.name


def test_what_joined_later_is_there():
    assert set(RULES_SINCE) <= set(RULES)
    kinds = {"Stream": Stream, "Device": Device}
    for member in MEMBERS_SINCE:
        kind, name = member.split(".")
        assert hasattr(kinds[kind], name)


def test_members_that_cannot_be_called_are_named():
    device = make(0)
    device.allocate = None
    assert member_flaws(device, Device) == "cannot be called: allocate"
    assert member_flaws(object(), Device, (1, 0)).startswith("lacks facts, allocate")


def test_a_case_of_a_later_contract_is_skipped_before_a_device_is_opened():
    def open_nothing(count, seed):
        raise AssertionError("opened")

    old = replace(harness((1, 0)), open=open_nothing)
    (case,) = select("fil1_whole_buffers")
    assert ConformanceRunner(old).run(case).verdict == "skip"
