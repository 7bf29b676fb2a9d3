"""What the Makefile installs, with a Python and a pip that only write down how they are called."""

import os
import shutil
import subprocess

import pytest

from tests.meta.repository import ROOT

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="no make")
PYTHON = """#!/bin/sh
echo "python $*" >> {log}
case "$*" in
  *is_refused*) exit {refused} ;;
  *pip*opencl-intel*) exit {installs} ;;
esac
"""


def clean():
    """Return an environment without the settings of a make that runs the tests."""
    return {
        k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKEOVERRIDES", "PYTHON")
    }


@pytest.fixture
def make(tmp_path):
    def run(target, *settings, refused=0, installs=0):
        log, python = tmp_path / "log", tmp_path / "python"
        python.write_text(PYTHON.format(log=log, refused=refused, installs=installs))
        python.chmod(0o755)
        (tmp_path / ".ready-demo").touch()
        (tmp_path / ".ready-dev").touch()
        (tmp_path / ".ready-nvrtc").touch()
        done = subprocess.run(
            ["make", "ARGS=", f"PY={python}", f"READY={tmp_path / '.ready'}", *settings, target],
            check=True, capture_output=True, text=True, timeout=60, cwd=ROOT, env=clean(),
        )  # fmt: skip
        return log.read_text().splitlines(), done.stderr

    return run


@pytest.mark.parametrize("target", ["demo", "test"])
def test_intels_opencl_is_installed_where_pocl_refuses_the_processor(make, target):
    calls, said = make(target, refused=4)
    assert "is_refused" in calls[0]
    assert calls[1].endswith("--editable .[opencl-intel]")
    assert "demo" in calls[2] or "pytest" in calls[2]
    assert "275 MB" in said


@pytest.mark.parametrize("refused", [0, 1, 139], ids=["works", "fails", "crashes"])
def test_nothing_is_downloaded_elsewhere(make, refused):
    calls, said = make("demo", refused=refused)
    assert not any("opencl-intel" in call for call in calls)
    assert "275" not in said


def test_nothing_is_downloaded_on_request(make):
    calls, said = make("demo", "OPENCL=none", refused=4)
    assert [call.split(" -m ")[1] for call in calls] == ["ggsched demo"]
    assert not said


def test_the_demo_goes_on_where_the_download_fails(make):
    calls, said = make("demo", refused=4, installs=1)
    assert calls[-1].endswith("-m ggsched demo")
    assert "could not be installed" in said


def test_it_is_asked_once(make):
    make("demo")
    calls, _ = make("demo")
    assert sum("is_refused" in call for call in calls) == 1


@pytest.mark.parametrize(
    ("named", "found", "folder"),
    [
        (None, "3.11", ""),
        ("3.13", None, ""),
        ("3.11", "3.11", ""),
        ("3.13", "3.11", "/python3.13"),
        ("", "3.11", ""),
    ],
    ids=["unnamed", "first", "same", "other", "gone"],
)
def test_another_python_gets_an_environment_of_its_own(tmp_path, named, found, folder):
    """Tests of one Python never run in the environment of another."""

    def python(path, version):
        if version:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"#!/bin/sh\necho {version}\n")
            path.chmod(0o755)
        return str(path)

    root = tmp_path / "venv"
    python(root / "bin" / "python", found)
    name = [] if named is None else [f"PYTHON={python(tmp_path / 'named', named)}"]
    done = subprocess.run(
        ["make", "--no-print-directory", f"ROOT={root}", *name, "--eval", "show: ; @echo $(VENV)",
         "show"],
        check=True, capture_output=True, text=True, timeout=60, cwd=ROOT, env=clean(),
    )  # fmt: skip
    assert done.stdout.strip() == f"{root}{folder}"
