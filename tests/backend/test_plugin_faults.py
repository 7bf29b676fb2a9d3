"""What plug-ins do wrong is reported as theirs, wherever it shows."""

import json
import signal
import sys
import threading
from importlib import metadata
from importlib.metadata import EntryPoint

import numpy as np
import pytest

from ggsched import GraphBuilder
from ggsched.backend import plugins
from ggsched.backend.plugins import guarded, in_time
from ggsched.backend.probe import probe
from ggsched.backend.registry import MAX_DEVICES, discover, open_devices
from ggsched.cli.main import main
from ggsched.config import Settings
from ggsched.errors import BackendBroken, OutOfDeviceMemory
from ggsched.scheduler import Scheduler
from tests.backend.stubs import StubBackend, point
from tests.run.devices import TestDevice

X = np.ones((2, 4), np.float32)


class Odd(BaseException):
    """What no handler of ``Exception`` sees."""


def graph():
    g = GraphBuilder("plain")
    return g.build(g.silu(g.add(g.input("x", (2, 4)), g.weight("w", (2, 4)))))


def raising(error):
    def call(*args, **kwargs):
        raise error

    return call


ERRORS = [RuntimeError("oops"), SystemExit(3), Odd("odd"), TypeError()]


@pytest.mark.parametrize("error", [*ERRORS, None], ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("method", ["allocate", "create_stream", "compile", "allocate_host"])
def test_while_a_plan_is_bound(method, error):
    device = TestDevice()
    setattr(device, method, (lambda *a: None) if error is None else raising(error))
    with (
        Scheduler([device], weights={"w": X}, settings=Settings()) as scheduler,
        pytest.raises(BackendBroken, match=rf"^test:0: .*{method}") as caught,
    ):
        scheduler.run(graph(), {"x": X})
    wanted = "NoneType|None" if error is None else type(error).__name__
    assert any(word in str(caught.value) for word in wanted.split("|"))
    assert "author of the plug-in" in caught.value.hint


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("method", ["copies_with", "wait_path"])
def test_while_it_is_asked(method, error):
    devices = [TestDevice(f"test:{i}") for i in range(2)]
    setattr(devices[0], method, raising(error))
    with pytest.raises(BackendBroken, match=rf"test:0: {method}\(test:\d\) raised"):
        probe(devices)
    setattr(devices[0], method, lambda other: None)
    with pytest.raises(BackendBroken, match=rf"test:0: {method}.* returns None"):
        probe(devices)


@pytest.mark.parametrize("method", ["launch", "sync"])
def test_while_it_runs(method):
    device = TestDevice()
    real = device.create_stream

    def create():
        stream = real()
        setattr(stream, method, raising(ValueError(f"no {method}")))
        return stream

    g = GraphBuilder("plain")
    plain = g.build(g.silu(g.input("x", (2, 4))))
    device.create_stream = create
    scheduler = Scheduler([device], settings=Settings())
    try:
        with pytest.raises(BackendBroken, match=f"no {method}") as caught:
            scheduler.run(plain, {"x": X})
        assert caught.value.where == "test:0"
    finally:
        for stream in device.open_streams:
            del stream.__dict__[method]
        scheduler.close()


def failing_streams(device, method, error):
    """Let a method of the device's streams raise; return what ends that."""
    real = device.create_stream

    def create():
        stream = real()
        setattr(stream, method, raising(error))
        return stream

    device.create_stream = create

    def end():
        for stream in device.open_streams:
            stream.__dict__.pop(method, None)

    return end


@pytest.mark.parametrize("method", ["fill", "upload", "sync"])
@pytest.mark.parametrize("error", [RuntimeError("oops"), MemoryError()], ids=repr)
def test_while_memory_is_filled(method, error):
    device = TestDevice()
    end = failing_streams(device, method, error)
    g = GraphBuilder("one")
    w, state = g.weight("w", (2, 4)), g.state("s", (2, 4))
    plain = g.build(g.add(g.add(w, g.input("x", (2, 4))), state))
    scheduler = Scheduler([device], weights={"w": X}, settings=Settings())
    kind = OutOfDeviceMemory if isinstance(error, MemoryError) else BackendBroken
    try:
        with pytest.raises(kind, match=f"^test:0: {method}"):
            scheduler.run(plain, {"x": X})
    finally:
        end()
        scheduler.close()


def test_when_it_is_closed():
    device = TestDevice()
    real = device.allocate

    def allocate(nbytes):
        buffer = real(nbytes)
        buffer.close = raising(RuntimeError("no close"))
        return buffer

    device.allocate = allocate
    scheduler = Scheduler([device], weights={"w": X}, settings=Settings())
    scheduler.run(graph(), {"x": X})
    with pytest.raises(BackendBroken, match="test:0: closing BaseBuffer raised RuntimeError"):
        scheduler.close()


def test_host_memory_that_is_short():
    device = TestDevice()
    device.allocate_host = raising(MemoryError())
    with (
        Scheduler([device], weights={"w": X}, settings=Settings()) as scheduler,
        pytest.raises(OutOfDeviceMemory, match="test:0: allocate_host: the host has no memory"),
    ):
        scheduler.run(graph(), {"x": X})


def test_a_billion_devices():
    backend = StubBackend("many", count=10**9)
    (status,) = discover(entry_points=[point(backend)])
    assert status.state == "broken"
    assert status.reason == (
        f"device_count returns 1000000000: no machine has more than {MAX_DEVICES} devices"
    )
    assert backend.opened == []


def test_an_import_that_hangs():
    release = threading.Event()
    with pytest.raises(BackendBroken, match=r"^slow: importing it takes longer than 0\.05 s"):
        in_time("slow", lambda: release.wait(60), 0.05)
    release.set()
    for thread in threading.enumerate():
        if thread.name.startswith("ggsched: slow"):
            thread.join(10)
    assert in_time("quick", lambda: 7, 5.0) == 7
    with pytest.raises(Odd):
        in_time("odd", raising(Odd()), 5.0)


def test_a_device_that_hangs_at_open(monkeypatch):
    """`ggsched devices` waited for it without end."""
    release = threading.Event()
    monkeypatch.setattr(plugins, "event_timeout", lambda: 0.05)

    class Hangs(StubBackend):
        def open_device(self, index):
            release.wait(60)
            return super().open_device(index)

    try:
        (status,) = discover(entry_points=[point(Hangs("slow"))])
    finally:
        release.set()
    for thread in threading.enumerate():
        if thread.name.startswith("ggsched: slow"):
            thread.join(10)
    assert status.state == "broken"
    assert status.reason == "opening the device takes longer than 0.05 s"


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Install plug-ins for the command line: modules by their source."""
    monkeypatch.syspath_prepend(tmp_path)
    points = []
    monkeypatch.setattr(metadata, "entry_points", lambda group: points)

    def install(source, name="loud", distribution=""):
        module = f"plugin_{len(points)}"
        (tmp_path / f"{module}.py").write_text(source)
        monkeypatch.delitem(sys.modules, module, raising=False)
        made = EntryPoint(name, f"{module}:open_backend", "ggsched.backends")
        if distribution:
            kind = type("Dist", (), {"name": distribution, "version": "1.2"})
            made = made._for(kind())
        points.append(made)

    return install


LOUD = """
print("imported")
from ggsched.backend.base import BaseBackend, BaseDevice, host_facts
def make(index):
    print("opened")
    return BaseDevice(host_facts("loud", ["add:f32"]), {})
def open_backend():
    print("asked")
    return BaseBackend("loud", make)
"""


def test_what_it_prints_is_no_result(installed, capsys):
    installed(LOUD)
    assert main(["devices", "--json"]) == 0
    out, err = capsys.readouterr()
    assert [b["state"] for b in json.loads(out)["backends"]] == ["ready"]
    assert err.startswith("imported\nasked\nopened\n")


@pytest.mark.parametrize("what", ["sys.exit(5)", "raise Odd('x')"])
def test_it_cannot_end_the_command(installed, capsys, what):
    installed(f"import sys\nclass Odd(BaseException): pass\n{what}\n")
    assert main(["devices"]) == 0
    out = capsys.readouterr().out
    assert "broken" in out
    assert "importing it raised" in " ".join(out.split())


def test_two_distributions_with_one_name(installed, capsys, caplog):
    for distribution in ("first-dist", "second-dist"):
        installed(LOUD, distribution=distribution)
    statuses = discover()
    assert [s.state for s in statuses] == ["ready", "broken"]
    assert "belongs to first-dist 1.2 (plugin_0:open_backend)" in statuses[1].reason
    assert "and second-dist 1.2 (plugin_1:open_backend) brings one" in statuses[1].reason
    (device,) = open_devices(["loud:0"])
    device.close()
    assert "first-dist" in caplog.text
    assert "second-dist" in caplog.text


def test_an_exit_by_a_signal_is_no_fault_of_the_plug_in():
    """A handler of SIGTERM, such as Ray's, raises ``SystemExit`` wherever the process is."""

    def leave(*_):
        raise SystemExit(7)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        with pytest.raises(SystemExit) as left:
            guarded("ray", "opening it", lambda: signal.raise_signal(signal.SIGTERM))
        assert left.value.code == 7
    finally:
        signal.signal(signal.SIGTERM, before)
    with pytest.raises(BackendBroken, match="opening it raised SystemExit: 7"):
        guarded("ray", "opening it", leave)
