import json
import sys
from importlib.metadata import EntryPoint

import pytest

from ggsched.backend.registry import discover, open_devices
from ggsched.errors import (
    BackendBroken,
    BackendUnavailable,
    GgschedError,
    OutOfDeviceMemory,
    UsageError,
)
from tests.backend.stubs import Point, StubBackend, StubDevice, facts_of, point, raising


def good(name="good", **kwargs):
    return StubBackend(name, **kwargs)


def status_of(entry_point):
    """The status of a plug-in, seen beside a good one that must not be harmed."""
    beside = good("beside")
    statuses = {s.name: s for s in discover(entry_points=[entry_point, point(beside)])}
    assert statuses["beside"].state == "ready"
    assert [d.closed for d in beside.opened] == [1]
    return statuses[entry_point.name]


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module and return an entry point of it."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(source, name="stub_plugin", value="stub_plugin:open_backend"):
        (tmp_path / f"{name}.py").write_text(source)
        monkeypatch.delitem(sys.modules, name, raising=False)
        return EntryPoint("mod", value, "ggsched.backends")

    return write


class TestDiscover:
    def test_ready_with_facts(self):
        status = status_of(point(good(count=2)))
        assert (status.state, status.reason) == ("ready", "")
        assert [d.name for d in status.devices] == ["good:0", "good:1"]
        assert status.devices[1].facts == facts_of("good:1")

    def test_devices_are_closed_again(self):
        backend = good(count=3)
        discover(entry_points=[point(backend)])
        assert [d.closed for d in backend.opened] == [1, 1, 1]

    def test_json_is_plain(self):
        data = json.loads(json.dumps(status_of(point(good())).to_json()))
        assert data["devices"][0]["facts"]["ops"] == ["add:f32", "mul_mat:q8_0"]

    def test_unavailable_keeps_reason_and_hint(self):
        error = BackendUnavailable("no driver", why="nothing answers", hint="install one")
        status = status_of(raising("gone", error))
        assert (status.state, status.reason) == ("unavailable", "no driver: nothing answers")
        assert status.hint == "install one"

    def test_library_that_is_not_installed(self, module):
        status = status_of(module("import surely_not_installed_xyz"))
        assert status.state == "unavailable"
        assert "surely_not_installed_xyz" in status.reason
        assert status.hint

    def test_plugin_whose_own_module_is_gone(self):
        point = EntryPoint("mod", "module_that_went_away:open_backend", "ggsched.backends")
        status = status_of(point)
        assert status.state == "broken"
        assert "module_that_went_away" in status.reason

    def test_function_that_is_not_there(self, module):
        status = status_of(module("x = 1"))
        assert status.state == "broken"
        assert "open_backend" in status.reason

    def test_raises_on_import(self, module):
        status = status_of(module("raise RuntimeError('at\\nimport')"))
        assert status.state == "broken"
        assert status.reason == "importing it raised RuntimeError: at import"
        assert "Traceback" in status.traceback
        assert "at\nimport" in status.traceback

    def test_syntax_error(self, module):
        assert status_of(module("def (")).state == "broken"

    @pytest.mark.parametrize(
        "error", [ValueError("bad"), SystemExit(3), ImportError("half"), KeyError("k")]
    )
    def test_raises_on_open(self, error):
        status = status_of(raising("bad", error))
        assert status.state == "broken"
        assert type(error).__name__ in status.reason
        assert status.hint

    def test_interrupt_is_not_swallowed(self):
        with pytest.raises(KeyboardInterrupt):
            discover(entry_points=[raising("bad", KeyboardInterrupt())])

    @pytest.mark.parametrize(
        ("thing", "missing"),
        [
            (None, "name, contract_version, device_count, open_device"),
            (object(), "device_count"),
            (type("Half", (), {"name": "odd", "contract_version": (1, 0)})(), "open_device"),
        ],
    )
    def test_not_a_backend_names_the_members(self, thing, missing):
        status = status_of(Point("odd", lambda: thing))
        assert status.state == "broken"
        assert missing in status.reason
        assert type(thing).__name__ in status.reason

    def test_member_that_cannot_be_called(self):
        backend = good()
        backend.device_count = 3
        status = status_of(point(backend))
        assert status.state == "broken"
        assert "cannot be called: device_count" in status.reason

    def test_entry_point_that_is_no_function(self):
        status = status_of(Point("odd", 17))
        assert status.state == "broken"
        assert "int instead of a function" in status.reason

    @pytest.mark.parametrize(("version", "newer"), [((0, 9), "the plug-in"), ((2, 0), "ggsched")])
    def test_other_major_version(self, version, newer):
        status = status_of(point(good(contract_version=version)))
        assert status.state == "wrong version"
        assert f"contract {version[0]}.{version[1]}" in status.reason
        assert "contract 1." in status.reason
        assert newer in status.hint

    def test_other_minor_version_is_fine(self):
        assert status_of(point(good(contract_version=(1, 99)))).state == "ready"

    @pytest.mark.parametrize("version", ["1.0", 1, (1,), (1, "0"), None, [1, 0]])
    def test_version_that_is_none(self, version):
        status = status_of(point(good(contract_version=version)))
        assert status.state == "broken"
        assert "contract_version" in status.reason

    def test_other_name(self):
        status = status_of(point(good("other"), "mine"))
        assert status.state == "broken"
        assert "'other'" in status.reason

    @pytest.mark.parametrize("count", [-1, None, "2", 1.0, True])
    def test_count_that_is_none(self, count):
        status = status_of(point(good(count=count)))
        assert status.state == "broken"
        assert "device_count" in status.reason

    def test_no_device_unless_named(self):
        status = status_of(point(good(count=0)))
        assert (status.state, status.devices) == ("ready", ())
        assert status.hint == "write good:0"

    def test_one_bad_device_of_two(self):
        status = status_of(point(good(count=2, failing={0: RuntimeError("burnt")})))
        assert status.state == "ready"
        assert [d.state for d in status.devices] == ["broken", "ready"]
        assert "burnt" in status.devices[0].reason
        assert status.devices[0].facts is None

    @pytest.mark.parametrize(
        ("kind", "state"),
        [
            (RuntimeError, "broken"),
            (BackendUnavailable, "unavailable"),
            (OutOfDeviceMemory, "unavailable"),
        ],
    )
    def test_all_devices_bad(self, kind, state):
        status = status_of(point(good(failing={0: kind("no luck")})))
        assert status.state == state
        assert "no luck" in status.reason

    def test_facts_that_cannot_be_true(self):
        status = status_of(point(good(changes={"ops": frozenset({"frobnicate:f32"})})))
        assert status.state == "broken"
        assert "frobnicate" in status.reason

    def test_device_of_another_name(self):
        backend = good()
        device = StubDevice(facts_of("good:7"))
        backend.open_device = lambda index: device
        status = status_of(point(backend))
        assert status.state == "broken"
        assert "'good:7'" in status.reason
        assert device.closed == 1

    def test_not_a_device(self):
        backend = good()
        half = type("Half", (), {"facts": facts_of("good:0"), "close": lambda self: None})()
        backend.open_device = lambda index: half
        status = status_of(point(backend))
        assert status.state == "broken"
        assert "compile" in status.reason

    def test_same_name_twice(self):
        first, second = good(), good()
        statuses = discover(entry_points=[point(first), point(second)])
        assert [s.state for s in statuses] == ["ready", "broken"]
        assert "its name belongs to" in statuses[1].reason

    def test_seen_twice_is_one(self, module):
        entry_point = module("raise RuntimeError")
        assert len(discover(entry_points=[entry_point, entry_point])) == 1

    def test_blocked_is_shown_and_not_loaded(self):
        entry_points = [point(good("one")), point(good("two")), point(good("three"))]
        statuses = discover(allow=["three", "one"], entry_points=entry_points)
        assert [(s.name, s.state) for s in statuses] == [
            ("three", "ready"),
            ("one", "ready"),
            ("two", "blocked"),
        ]
        assert [p.loads for p in entry_points] == [1, 0, 1]

    def test_blocking_by_a_misspelt_name(self):
        with pytest.raises(UsageError, match=r"'godo'.*did you mean good"):
            discover(allow=["godo"], entry_points=[point(good())])

    def test_nothing_installed(self):
        assert discover(entry_points=[]) == ()

    def test_what_is_installed_here(self):
        statuses = {s.name: s for s in discover()}
        assert {"cpu", "opencl"} <= set(statuses)
        assert statuses["cpu"].distribution == "ggsched"
        assert statuses["cpu"].version


class TestOpenByName:
    def test_order_is_kept(self):
        entry_points = [point(good("a", count=2)), point(good("b"))]
        devices = open_devices(["b:0", "a:1", "a:0"], entry_points=entry_points)
        assert [d.facts.name for d in devices] == ["b:0", "a:1", "a:0"]
        assert [p.loads for p in entry_points] == [1, 1]

    def test_name_without_number_is_all_of_them(self):
        devices = open_devices(["a"], entry_points=[point(good("a", count=3))])
        assert [d.facts.name for d in devices] == ["a:0", "a:1", "a:2"]

    def test_others_are_not_loaded(self):
        other = raising("other", RuntimeError())
        open_devices(["a:0"], entry_points=[other, point(good("a"))])
        assert other.loads == 0

    @pytest.mark.parametrize(
        "spec",
        ["", ":", ":0", "a:", "a:x", "a:-1", "a:0:1", "a 0", "a:0,b:0", "a:\u0661", "a:9999999"],
    )
    def test_malformed(self, spec):
        with pytest.raises(UsageError, match="is not a device.*opencl:0"):
            open_devices([spec], entry_points=[point(good("a"))])

    @pytest.mark.parametrize("spec", ["a:0,b:0", "a:\u0661", "a:9999999", "a:0\n\n.", "-a:0"])
    def test_strange(self, spec):
        with pytest.raises(UsageError, match="is not a device"):
            open_devices([spec], entry_points=[point(good("a"))])

    def test_none_named(self):
        with pytest.raises(UsageError, match="no device is named"):
            open_devices([], entry_points=[point(good())])

    def test_unknown_backend(self):
        with pytest.raises(UsageError, match="'opencll'.*did you mean opencl.*opencl, cpu"):
            open_devices(["opencll:0"], entry_points=[point(good("opencl")), point(good("cpu"))])

    def test_unknown_index(self):
        with pytest.raises(UsageError, match="a:5: there is no device 5"):
            open_devices(["a:5"], entry_points=[point(good("a"))])

    def test_blocked_backend(self):
        with pytest.raises(BackendUnavailable, match="'b' is blocked.*GGSCHED_BACKENDS"):
            open_devices(["b:0"], allow=["a"], entry_points=[point(good("a")), point(good("b"))])

    def test_twice(self):
        backend = good("a")
        with pytest.raises(UsageError, match="a:0: a device is named twice"):
            open_devices(["a:0", "a"], entry_points=[point(backend)])
        assert [d.closed for d in backend.opened] == [1]

    @pytest.mark.parametrize(
        ("entry_point", "kind"),
        [
            (raising("bad", RuntimeError("boom")), BackendBroken),
            (raising("bad", BackendUnavailable("boom")), BackendUnavailable),
            (point(StubBackend("bad", failing={0: RuntimeError("boom")})), BackendBroken),
            (point(StubBackend("bad", failing={0: OutOfDeviceMemory("boom")})), OutOfDeviceMemory),
        ],
    )
    def test_failure_closes_what_was_opened(self, entry_point, kind):
        backend = good("a", count=2)
        with pytest.raises(kind, match=r"bad.*boom"):
            open_devices(["a:0", "a:1", "bad:0"], entry_points=[point(backend), entry_point])
        assert [d.closed for d in backend.opened] == [1, 1]

    def test_failure_on_closing_is_a_note(self):
        backend = good("a")

        def refuse():
            raise RuntimeError("stuck")

        entry_points = [point(backend), raising("bad", RuntimeError("boom"))]
        original = backend.open_device
        backend.open_device = lambda i: _with_close(original(i), refuse)
        with pytest.raises(BackendBroken, match="boom") as caught:
            open_devices(["a:0", "bad:0"], entry_points=entry_points)
        assert any("stuck" in note for note in caught.value.__notes__)

    def test_offers_none(self):
        with pytest.raises(BackendUnavailable, match="unless one is named"):
            open_devices(["a"], entry_points=[point(good("a", count=0))])

    def test_hidden_device_by_name(self):
        devices = open_devices(["a:0"], entry_points=[point(good("a", count=0))])
        assert devices[0].facts.name == "a:0"


def _with_close(device, close):
    device.close = close
    return device


class TestOpenAll:
    def test_host_cpu_comes_last(self):
        cpu = good("cpu", changes={"kind": "cpu", "is_host": True})
        pocl = good("pocl", changes={"kind": "cpu"})
        gpu = good("gpu", count=2)
        devices = open_devices(entry_points=[point(cpu), point(pocl), point(gpu)])
        assert [d.facts.name for d in devices] == ["gpu:0", "gpu:1", "pocl:0", "cpu:0"]

    def test_order_that_was_asked_for(self):
        cpu = good("cpu", changes={"kind": "cpu", "is_host": True})
        devices = open_devices(allow=["cpu", "gpu"], entry_points=[point(good("gpu")), point(cpu)])
        assert [d.facts.name for d in devices] == ["cpu:0", "gpu:0"]

    def test_what_cannot_be_used_is_reported(self):
        entry_points = [
            raising("bad", RuntimeError("boom")),
            point(good("some", count=2, failing={1: BackendUnavailable("taken")})),
            point(good("old", contract_version=(0, 1))),
            point(good("hidden", count=0)),
        ]
        noted: list[GgschedError] = []
        devices = open_devices(entry_points=entry_points, on_skip=noted.append)
        assert [d.facts.name for d in devices] == ["some:0"]
        assert [e.where for e in noted] == ["bad", "some:1", "old"]

    def test_nothing_usable(self):
        entry_points = [raising("bad", RuntimeError("boom")), raising("worse", KeyError("k"))]
        with pytest.raises(BackendUnavailable, match=r"boom.*KeyError.*ggsched devices"):
            open_devices(entry_points=entry_points)

    def test_nothing_installed(self):
        with pytest.raises(BackendUnavailable, match="no backend is installed"):
            open_devices(entry_points=[])
