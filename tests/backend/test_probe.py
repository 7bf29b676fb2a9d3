from dataclasses import replace

import pytest

from ggsched.backend.probe import checked_facts, probe
from ggsched.errors import BackendBroken
from ggsched.topology.model import CopyPath
from tests.backend.stubs import FACTS, StubDevice, facts_of


def host(name="cpu:0", **kwargs):
    return StubDevice(facts_of(name, kind="cpu", is_host=True), **kwargs)


def gpu(name="gpu:0", **kwargs):
    return StubDevice(facts_of(name), **kwargs)


def everyone(other):
    return True


def test_facts_in_the_given_order():
    topology = probe([gpu("b:0"), gpu("a:0"), host()])
    assert [d.name for d in topology.devices] == ["b:0", "a:0", "cpu:0"]
    assert topology.copy_paths == {}
    assert topology.wait_paths == {}


class TestCopyPaths:
    def test_device_copies_for_the_host(self):
        topology = probe([host(copies=everyone), gpu(copies=everyone)])
        assert topology.copy_paths == {(0, 1): CopyPath(0, 1, 1), (1, 0): CopyPath(1, 0, 1)}

    def test_only_one_side_can(self):
        topology = probe([gpu("a:0", copies=everyone), gpu("b:0")])
        assert topology.copy_paths == {(0, 1): CopyPath(0, 1, 0), (1, 0): CopyPath(1, 0, 0)}

    def test_only_the_host_can(self):
        topology = probe([gpu(), host(copies=everyone)])
        assert topology.copy_paths[0, 1].by == 1

    def test_source_copies_between_equals(self):
        topology = probe([gpu("a:0", copies=everyone), gpu("a:1", copies=everyone)])
        assert [(p.src, p.by) for p in topology.copy_paths.values()] == [(0, 0), (1, 1)]

    def test_it_depends_on_the_other_side(self):
        def own_kind(other):
            return other.backend == "a"

        topology = probe([gpu("a:0", copies=own_kind), gpu("a:1", copies=own_kind), gpu("b:0")])
        assert sorted(topology.copy_paths) == [(0, 1), (1, 0)]

    def test_answer_that_is_none(self):
        with pytest.raises(BackendBroken, match="a:0: copies_with returns 1 instead of bool"):
            probe([gpu("a:0", copies=lambda other: 1), gpu("b:0")])


class TestWaitPaths:
    def test_each_direction_of_its_own(self):
        topology = probe([gpu(waits=lambda o: "native"), host(waits=lambda o: "thread")])
        assert topology.wait_paths == {
            (0, 0): "native",
            (0, 1): "native",
            (1, 0): "thread",
            (1, 1): "thread",
        }

    def test_host_is_the_absence_of_a_path(self):
        topology = probe([gpu(waits=lambda o: "native" if o.backend == "gpu" else "host"), host()])
        assert topology.wait_paths == {(0, 0): "native"}
        assert topology.wait_path(0, 1) == "host"

    def test_without_events_nobody_is_asked(self):
        def unasked(other):
            raise AssertionError

        silent = StubDevice(facts_of("s:0", has_events=False), waits=unasked)
        topology = probe([silent, gpu(waits=lambda o: "native")])
        assert topology.wait_paths == {(1, 1): "native"}

    @pytest.mark.parametrize("answer", [None, True, "never"])
    def test_answer_that_is_none(self, answer):
        with pytest.raises(BackendBroken, match=r"wait_path\(gpu:0\) returns .* native, thread"):
            probe([gpu(waits=lambda o: answer)])


class TestLies:
    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("name", ""),
            ("name", 3),
            ("backend", None),
            ("description", b"x"),
            ("kind", "tpu"),
            ("memory_nbytes", 0),
            ("memory_nbytes", 1.5),
            ("max_allocation_nbytes", -1),
            ("max_streams", True),
            ("is_host", 1),
            ("has_events", None),
            ("copy_order", "none"),
            ("ops", {"add:f32"}),
            ("ops", frozenset({3})),
        ],
    )
    def test_field(self, field, value):
        with pytest.raises(BackendBroken, match=rf"its fact {field} is .*defect of the plug-in"):
            checked_facts(StubDevice(replace(FACTS, **{field: value})))

    @pytest.mark.parametrize("key", ["add", "frob:f32", ":f32", "add:", "add:f33", "add:f32:f32"])
    def test_op_that_does_not_exist(self, key):
        with pytest.raises(BackendBroken, match="unknown"):
            checked_facts(StubDevice(replace(FACTS, ops=frozenset({key}))))

    @pytest.mark.parametrize("facts", [None, {"name": "x"}, "facts"])
    def test_no_facts_at_all(self, facts):
        with pytest.raises(BackendBroken, match="instead of DeviceFacts"):
            checked_facts(StubDevice(facts))

    def test_facts_that_change(self):
        class Fickle(StubDevice):
            calls = 0

            @property
            def facts(self):
                self.calls += 1
                return facts_of("f:0", memory_nbytes=self.calls)

            @facts.setter
            def facts(self, value):
                pass

        with pytest.raises(BackendBroken, match="change"):
            checked_facts(Fickle(None))

    def test_two_of_one_name(self):
        with pytest.raises(BackendBroken, match="a:0: two devices call themselves by one name"):
            probe([gpu("a:0"), host(), gpu("a:0")])
