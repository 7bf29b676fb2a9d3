"""The backend ``local``: devices in processes of this host, which a fault may end."""

import os
import sys

import numpy as np
import pytest

from ggsched.backend.registry import discover, find_plugins, open_devices
from ggsched.errors import BackendUnavailable, DeviceFault, UsageError
from ggsched.ir.builder import GraphBuilder
from ggsched.run.release import close_all
from ggsched.scheduler import Scheduler
from tests.cluster.kills import VARIABLES

OPS = """
import os
import ggsched
from ggsched import Sample

def end(x, out=None):
    if x.flat[0] == 7:
        os.abort()
    out[...] = x

ggsched.register_op("ends_of_test", version="1", operands=("x",), reference=lambda x: x,
                    kernels={"cpu": end}, samples=[Sample([(3,)])])
"""


@pytest.fixture
def ends(tmp_path, monkeypatch, registries_restored):
    """An op that ends its process where the first element is 7."""
    (tmp_path / "ends_ops.py").write_text(OPS)
    for name, value in {**VARIABLES, "GGSCHED_OPS": "ends_ops"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GGSCHED_BACKENDS", "cpu,local")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    monkeypatch.syspath_prepend(tmp_path)
    __import__("ends_ops")
    yield
    del sys.modules["ends_ops"]


def test_a_device_that_ends_its_process_is_an_error(ends):
    """This process stays, names what ended, and opens the device anew."""
    g = GraphBuilder("g")
    graph = g.build(g.op("ends_of_test", g.input("x", (3,))))
    for first in (7.0, 1.0):
        x = np.array([first, 2, 3], np.float32)
        with Scheduler(["local://a/cpu:0"]) as scheduler:
            if first == 7:
                with pytest.raises(DeviceFault, match=r"a.*its process ended with -6"):
                    scheduler.run(graph, {"x": x})
            else:
                (result,) = scheduler.run(graph, {"x": x}).values()
                np.testing.assert_array_equal(result, x)


def test_a_process_for_each_name(monkeypatch):
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GGSCHED_BACKENDS", "cpu,local")
    devices = open_devices(["local://a/cpu:0", "local://b/cpu:1", "local://a/cpu:1"])
    try:
        names = [device.facts.name for device in devices]
        assert names == ["local://a/cpu:0", "local://a/cpu:1", "local://b/cpu:1"]
        members = devices[0].group.driver._members
        assert len({member.process.pid for member in members} - {os.getpid()}) == 2
    finally:
        close_all(devices)


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        ("local://", BackendUnavailable, "local:// names no process"),
        ("local:0", UsageError, "no numbers"),
        ("local://a/cpu:999999", UsageError, "cpu:999999"),
        ("local://a/nope:0", UsageError, "no backend 'nope'"),
    ],
)
def test_names_that_open_nothing(spec, error, message):
    with pytest.raises(error, match=message):
        close_all(open_devices([spec]))


def test_its_example_opens_devices(monkeypatch):
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GGSCHED_BACKENDS", "cpu,local")
    (status,) = (s for s in discover() if s.name == "local")
    assert (status.state, status.devices) == ("ready", ())
    (plugin,) = (p for p in find_plugins() if p.name == "local")
    devices = open_devices([plugin.load().example])
    close_all(devices)
    assert all(device.facts.name.startswith("local://a/cpu:") for device in devices)
