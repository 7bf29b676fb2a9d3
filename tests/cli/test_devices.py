import json
import os

import pytest
from rich.cells import cell_len

from ggsched.backend import registry
from ggsched.cli import devices as devices_command
from ggsched.cli.main import main
from ggsched.errors import BackendUnavailable
from ggsched_cluster.remote_devices import open_group
from tests.backend.stubs import StubBackend, point, raising


@pytest.fixture
def plugins(monkeypatch):
    """Let the command see these plug-ins and no others."""

    def install(*entry_points):
        monkeypatch.setattr(
            devices_command,
            "discover",
            lambda allow=None: registry.discover(allow=allow, entry_points=entry_points),
        )

    return install


MIXED = (
    point(StubBackend("fast", count=2, changes={"description": "a long name of a processor " * 4})),
    raising("gone", BackendUnavailable("no driver answers", hint="install the vendor's driver")),
    raising("bad", RuntimeError("boom " * 40)),
)


def test_what_is_installed_here(capsys):
    assert main(["devices"]) == 0
    out, err = capsys.readouterr()
    assert "cpu" in out
    assert err == ""


@pytest.mark.usefixtures("narrow")
def test_table_with_reasons_in_80_columns(plugins, capsys):
    plugins(*MIXED)
    assert main(["devices"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert max(cell_len(line.rstrip()) for line in out.splitlines()) <= 80
    rows = {line.split()[0]: line.split() for line in out.splitlines() if line.strip()}
    assert rows["fast:0"][1:4] == ["ready", "gpu", "1.0"]
    assert rows["gone"][1] == "unavailable"
    assert rows["bad"][1] == "broken"
    assert "no driver answers" in out
    assert "install the vendor's driver" in out
    assert "RuntimeError: boom" in out


def test_a_backend_says_what_it_has_chosen(plugins, capsys):
    backend = StubBackend("fast")
    backend.notes = ("platform A is used", "platform B is not used: A offers the same device")
    plugins(point(backend), point(StubBackend("plain")))
    assert main(["devices"]) == 0
    out = capsys.readouterr().out
    assert "\nfast: platform A is used\n  platform B is not used: A offers" in out
    assert "plain: " not in out
    assert main(["devices", "--json"]) == 0
    fast, plain = json.loads(capsys.readouterr().out)["backends"]
    assert fast["notes"] == list(backend.notes)
    assert plain["notes"] == []


@pytest.mark.usefixtures("narrow")
def test_long_state_fits_too(plugins, capsys):
    huge = {"memory_nbytes": 1023 << 40, "max_streams": 999, "description": "x" * 200}
    name = "a_rather_long_name"
    plugins(
        point(StubBackend(name, changes=huge)), point(StubBackend("old", contract_version=(9, 0)))
    )
    assert main(["devices"]) == 0
    out = capsys.readouterr().out
    assert max(cell_len(line.rstrip()) for line in out.splitlines()) <= 80
    assert "wrong version" in out
    assert name in out


def test_json(plugins, capsys):
    plugins(*MIXED)
    assert main(["devices", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [(b["name"], b["state"]) for b in data["backends"]] == [
        ("fast", "ready"),
        ("gone", "unavailable"),
        ("bad", "broken"),
    ]
    assert data["backends"][0]["devices"][1]["facts"]["name"] == "fast:1"
    assert "Traceback" in data["backends"][2]["traceback"]


def test_restricted_and_ordered(plugins, capsys, monkeypatch):
    plugins(*MIXED)
    monkeypatch.setenv("GGSCHED_BACKENDS", "gone,fast")
    assert main(["devices", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [(b["name"], b["state"]) for b in data["backends"]] == [
        ("gone", "unavailable"),
        ("fast", "ready"),
        ("bad", "blocked"),
    ]


def test_restricted_to_what_is_not_there(plugins, capsys, monkeypatch):
    plugins(*MIXED)
    monkeypatch.setenv("GGSCHED_BACKENDS", "fats")
    assert main(["devices"]) == 2
    assert "did you mean fast?" in capsys.readouterr().err


def test_nothing_installed(plugins, capsys):
    plugins()
    assert main(["devices"]) == 0
    assert "No backend is installed" in capsys.readouterr().out


def test_traceback_of_a_broken_plugin_on_request(plugins, capsys, monkeypatch):
    plugins(*MIXED)
    monkeypatch.setenv("GGSCHED_DEBUG", "1")
    assert main(["devices"]) == 0
    assert "RuntimeError: boom" in capsys.readouterr().err


@pytest.mark.parametrize(("variable", "coloured"), [(None, True), ("NO_COLOR", False)])
def test_colours_on_a_terminal_only(plugins, monkeypatch, variable, coloured):
    plugins(*MIXED)
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    if variable:
        monkeypatch.setenv(variable, "1")
    leader, follower = os.openpty()
    with open(follower, "w") as terminal, monkeypatch.context() as patch:
        patch.setattr("sys.stdout", terminal)
        assert main(["devices"]) == 0
    written = os.read(leader, 65536).decode()
    os.close(leader)
    assert "fast:0" in written
    assert ("\x1b[32m" in written) is coloured


def test_devices_of_a_cluster(monkeypatch, capsys):
    """Named, such as ``ray://``, they are opened to be shown."""
    from tests.cluster.workers import Members

    def opened(names, allow=None):
        assert names == ("threads://",)
        return open_group(Members("a", "b").start, backends=("cpu",), timeout_s=20)

    monkeypatch.setattr(registry, "open_devices", opened)
    assert main(["devices", "threads://"]) == 0
    out = capsys.readouterr().out
    assert "threads://a/cpu:0" in out
    assert "threads://b/cpu:0" in out
    assert main(["devices", "threads://", "--json"]) == 0
    topology = json.loads(capsys.readouterr().out)["topology"]
    assert [d["name"] for d in topology["devices"]] == ["threads://a/cpu:0", "threads://b/cpu:0"]


def test_a_device_that_is_named_and_not_there(capsys):
    assert main(["devices", "cpu:99"]) == 2
    assert "cpu:99" in capsys.readouterr().err
