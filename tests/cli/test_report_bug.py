"""``ggsched report-bug``, and what it leaves out."""

import json
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggsched.backend import registry
from ggsched.cli.main import main
from ggsched.cli.versions import nvidia_driver
from ggsched_commands import report_bug as module
from ggsched_commands.report_bug import without_names
from tests.backend.stubs import StubBackend, point, raising

HOME, USER, HOST = "/home/jo.smith", "jo", "kestrel"


@pytest.fixture
def report(monkeypatch, capsys):
    """Return what is written where everything around has private names in it."""
    for name, value in {
        "HOME": HOME, "USER": USER, "LOGNAME": USER, "HOSTNAME": f"{HOST}.corp.example",
        "GGSCHED_RATES": f"{HOME}/secret/rates.json", "GGSCHED_SEED": "7",
        "GGSCHED_MODELS": "/srv/acme/models/",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(socket, "gethostname", lambda: HOST)
    text = f"{USER}@{HOST}.corp.example: {HOME}/lib/x.so, /srv/acme/venv/lib.so: not found"
    plug_ins = (
        point(StubBackend("fast", changes={"description": f"{HOST}'s fast one, driver 1.2"})),
        raising("bad", RuntimeError(text)),
    )
    monkeypatch.setattr(
        module, "discover", lambda allow=None: registry.discover(entry_points=plug_ins)
    )

    def call(*options):
        assert main(["report-bug", *options]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        return out

    return call


def test_it_has_what_a_maintainer_asks_for(report):
    text = report()
    for wanted in (
        "### What happened", "ggsched 0.", "sources ", "python: ", "system: ", "numpy ",
        "threads usable", "memory ", "fast:0 ", "driver 1.2", "bad: ", "RuntimeError",
        "Traceback", "GGSCHED_SEED=7", "GGSCHED_RATES=~/secret/rates.json",
    ):  # fmt: skip
        assert wanted in text, wanted
    assert text.count("```") == 8


def test_it_has_nothing_private(report):
    for text in (report(), report("--json")):
        for name in (HOME, "jo.smith", f"{USER}@", HOST, "acme", str(module.Path.cwd())):
            assert name not in text
        assert ".../lib.so: not found" in text
    assert set(json.loads(report("--json"))) == {"versions", "machine", "devices", "settings"}


PART = st.text("abcxyz0189._-", min_size=1, max_size=8).filter(lambda part: part.strip("."))


@given(
    folder=st.lists(PART, min_size=1, max_size=4), last=PART,
    around=st.sampled_from(["{}", "cannot open '{}': no", 'File "{}", line 3', "a={},b", "({})"]),
)  # fmt: skip
def test_of_paths_the_last_part_is_left(folder, last, around):
    path = "/".join(["", "private", *folder, last])
    assert without_names(around.format(path), {}) == around.format(f".../{last}")
    inside = f"{'/'.join(['', 'private', *folder])}/site-packages/ggsched/x.py"
    assert without_names(around.format(inside), {}) == around.format(".../ggsched/x.py")
    for public in (f"/usr/{last}/x", f"https://x.example/{last}/y", f"1/2/{last}"):
        assert without_names(around.format(public), {}) == around.format(public)


def test_the_version_of_the_driver(tmp_path):
    file = tmp_path / "version"
    assert nvidia_driver(str(file)) == ""
    file.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27\nGCC 1")
    assert nvidia_driver(str(file)) == "NVIDIA 580.65.06"
    file.write_text("something else")
    assert nvidia_driver(str(file)) == "NVIDIA, of an unknown version"
