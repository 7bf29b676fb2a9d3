"""Which OpenCL drivers are found, which of them is chosen, and those that crash."""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

pytest.importorskip("pyopencl", reason="pyopencl is in the extra 'opencl'")

from ggsched.errors import BackendUnavailable
from ggsched_opencl import driver, is_refused, vendors
from tests.backends.opencl_devices import TIMEOUT_S, opencl_device
from tests.meta.repository import ROOT

NEEDS_COMPILER = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
CRASHES = "void *clGetExtensionFunctionAddress(const char *name) { __builtin_trap(); }"
HANGS = "void *clGetExtensionFunctionAddress(const char *name) { for (;;) {} }"
EMPTY = "void *clGetExtensionFunctionAddress(const char *name) { return 0; }"


@pytest.fixture(autouse=True)
def caches(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(vendors.SETTING, raising=False)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """The folders of a machine without drivers: of the environment, and of the system."""
    base, system = tmp_path / "venv", tmp_path / "system"
    icds = base / "etc" / "OpenCL" / "vendors"
    for folder in (icds, base / "lib", system):
        folder.mkdir(parents=True)
    monkeypatch.setattr(vendors, "SYSTEM", system)
    monkeypatch.setattr(vendors, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "prefix", str(base))
    monkeypatch.setattr(vendors.sysconfig, "get_path", lambda name: str(base))
    monkeypatch.setattr(vendors.site, "getuserbase", lambda: str(tmp_path / "user"))
    return base, icds, system


def library(folder, name, text=""):
    """Compile a driver, or write what is none."""
    path = folder / name
    if text:
        source = folder / f"{name}.c"
        source.write_text(text)
        subprocess.run(["cc", "-shared", "-o", path, source], check=True, timeout=60)
    else:
        path.write_bytes(b"\x7fELF")
    return str(path)


# --- where they are looked for --------------------------------------------------------------------


def test_a_driver_of_the_environment_is_found_though_it_names_a_path_of_another_machine(machine):
    """As Intel's package does: pip does not run what puts the path right."""
    base, icds, system = machine
    here = library(base / "lib", "libintelocl.so")
    (icds / "intel-cpu.icd").write_text("/opt/anaconda1/lib/libintelocl.so")
    (icds / "intel-fpga.icd").write_text("/opt/anaconda1/lib/libintelocl_emu.so")
    (system / "nvidia.icd").write_text("libnvidia-opencl.so.1\n")
    (system / "again.icd").write_text(here)
    assert vendors.libraries() == [here, "libnvidia-opencl.so.1"]


def test_relative_libraries_are_looked_for_beside_their_file(machine, monkeypatch):
    """pyopencl's wheel has its drivers in its own folder."""
    base, _, _ = machine
    package = base / "pyopencl"
    (package / ".libs").mkdir(parents=True)
    here = library(package / ".libs", "libpocl.so")
    (package / ".libs" / "pocl.icd").write_text("libpocl.so")

    class Spec:
        submodule_search_locations = (str(package),)

    monkeypatch.setattr(vendors, "find_spec", lambda name: Spec())
    assert vendors.libraries() == [here]


def test_what_the_user_names_has_precedence(machine, monkeypatch, tmp_path):
    _, icds, system = machine
    (icds / "a.icd").write_text("liba.so")
    (system / "b.icd").write_text("libb.so")
    own = tmp_path / "own"
    own.mkdir()
    (own / "c.icd").write_text("libc-driver.so")
    for named in (own, own / "c.icd", "libc-driver.so"):
        monkeypatch.setenv(vendors.SETTING, str(named))
        assert vendors.libraries() == ["libc-driver.so"]
    monkeypatch.setenv(vendors.SETTING, str(own / "gone.icd"))
    assert vendors.libraries() == []


def test_nothing_is_left_behind_of_what_the_loader_is_shown(monkeypatch):
    monkeypatch.setenv(vendors.SETTING, "/named/by/the/user")
    monkeypatch.delenv("PYOPENCL_HOME", raising=False)
    with vendors.visible(["/a/liba.so", "libb.so"]):
        folder = Path(os.environ[vendors.SETTING])
        assert [p.read_text() for p in sorted(folder.iterdir())] == ["/a/liba.so\n", "libb.so\n"]
    assert os.environ[vendors.SETTING] == "/named/by/the/user"
    assert "PYOPENCL_HOME" not in os.environ
    assert not folder.exists()


# --- drivers that do harm -------------------------------------------------------------------------


@NEEDS_COMPILER
def test_a_driver_that_crashes_is_left_out_and_named(tmp_path, caplog):
    bad, good = (library(tmp_path, f"lib{n}.so", t) for n, t in (("bad", CRASHES), ("good", EMPTY)))
    usable, refused = vendors.probed([bad, good])
    assert usable == [good]
    (found,) = refused
    assert str(found).startswith(f"{bad} is not used: it crashes in clGetPlatformIDs")
    assert "SIG" in found.why
    assert str(found) in caplog.text


@NEEDS_COMPILER
def test_a_driver_that_hangs_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(vendors, "PROBE_TIMEOUT_S", 0.5)
    usable, (found,) = vendors.probed([library(tmp_path, "libslow.so", HANGS)])
    assert not usable
    assert "for more than 0.5 s" in found.why


def test_a_driver_that_cannot_be_loaded_says_why(tmp_path, caplog):
    usable, (found,) = vendors.probed([library(tmp_path, "libhalf.so")])
    assert not usable
    assert found.why.startswith("it cannot be loaded: ")
    assert "libhalf.so" in found.why
    assert not caplog.records, "each command would print it"


@NEEDS_COMPILER
def test_a_driver_is_probed_once_for_each_version_of_it(tmp_path, monkeypatch):
    probes = []
    harm = vendors._harm
    monkeypatch.setattr(vendors, "_harm", lambda lib: probes.append(lib) or harm(lib))
    good, bad = library(tmp_path, "libgood.so", EMPTY), library(tmp_path, "libbad.so", CRASHES)
    for _ in range(2):
        assert vendors.probed([good, bad])[0] == [good]
    assert probes == [good, bad, bad], "what crashed may work by now"
    os.utime(good, ns=(1, 1))
    vendors.probed([good])
    assert probes[3:] == [good]


@pytest.mark.parametrize("content", [b"", b"[1]", b'{"a": 2', b"\xff"])
def test_a_damaged_record_of_probes_is_no_record(tmp_path, monkeypatch, content):
    place = vendors._sound_path()
    place.parent.mkdir(parents=True)
    place.write_bytes(content)
    monkeypatch.setattr(vendors, "_harm", lambda lib: "")
    driver_file = library(tmp_path, "libd.so")
    assert vendors.probed([driver_file]) == ([driver_file], [])
    assert driver_file in json.loads(place.read_bytes())


IN_A_PROCESS = """
import sys
from ggsched_opencl import vendors
found = vendors.libraries()
vendors.libraries = lambda: [sys.argv[1], *found]
from ggsched_opencl import driver
driver.libraries = vendors.libraries
found = driver.find_devices()
print(len(found.devices), *found.notes, sep="\\n")
"""


@NEEDS_COMPILER
@pytest.mark.opencl
def test_devices_of_other_drivers_are_used_beside_one_that_crashes(tmp_path):
    bad = library(tmp_path, "libbad.so", CRASHES)
    done = subprocess.run(
        [sys.executable, "-c", IN_A_PROCESS, bad],
        check=False, timeout=TIMEOUT_S, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    count, *notes = done.stdout.splitlines()
    assert int(count) >= 1
    assert "is used" in notes[0]
    assert notes[-1].startswith(f"{bad} is not used: it crashes")


# --- several platforms with one device ------------------------------------------------------------


class Chip:
    global_mem_size, max_mem_alloc_size, mem_base_addr_align = 2**30, 2**28, 8
    max_compute_units = 4
    max_parameter_size = 1024
    max_work_group_size = 256
    host_unified_memory = False

    def __init__(self, name, kind="CPU", bus=None):
        self.name, self.type = name, getattr(driver.cl.device_type, kind)
        self.extensions = "" if bus is None else "cl_khr_pci_bus_info"
        if bus is not None:
            self.pci_bus_info_khr = Bus(bus)


class Bus:
    pci_domain = pci_device = pci_function = 0

    def __init__(self, number):
        self.pci_bus = number


class Platform:
    def __init__(self, name, version, *chips):
        self.name, self.version, self._chips = name, version, list(chips)

    def get_devices(self):
        return self._chips


@pytest.fixture
def platforms(monkeypatch):
    opencl_device().close()

    def use(*found, refused=()):
        def error(device):
            return "unknown target CPU 'generic'" if device.platform in refused else ""

        monkeypatch.setattr(driver.cl, "get_platforms", lambda: list(found))
        monkeypatch.setattr(driver, "_compiler_error", error)
        monkeypatch.setattr(driver, "_maps", lambda handle: True)
        return driver.find_devices()

    return use


@pytest.mark.opencl
def test_one_of_two_platforms_of_the_processor_is_chosen(platforms):
    intel = Platform("Intel(R) OpenCL", "OpenCL 3.1 LINUX", Chip("EPYC"))
    old = Platform("PoCL", "OpenCL 3.0 PoCL 3.0", Chip("pthread-EPYC"))
    new = Platform("PoCL", "OpenCL 3.0 PoCL 5.0", Chip("cpu-EPYC"))
    found = platforms(old, intel, new)
    assert [d.platform for d in found.devices] == ["Intel(R) OpenCL"]
    assert found.notes[0] == "Intel(R) OpenCL, OpenCL 3.1 LINUX is used"
    assert len(found.notes) == 3
    assert all("Intel(R) OpenCL offers the same device" in note for note in found.notes[1:])
    assert [d.version for d in platforms(new, old).devices] == ["OpenCL 3.0 PoCL 5.0"]


@pytest.mark.opencl
def test_a_platform_whose_compiler_refuses_the_processor_is_noted(platforms):
    intel = Platform("Intel(R) OpenCL", "OpenCL 3.1 LINUX", Chip("EPYC"))
    pocl = Platform("PoCL", "OpenCL 3.0 PoCL 3.0", Chip("pthread-EPYC"))
    found = platforms(pocl, intel, refused=["PoCL"])
    assert [d.platform for d in found.devices] == ["Intel(R) OpenCL"]
    assert found.notes == (
        "Intel(R) OpenCL, OpenCL 3.1 LINUX is used",
        "pthread-EPYC (PoCL, OpenCL 3.0 PoCL 3.0) is not used: unknown target CPU 'generic'",
    )


@pytest.mark.opencl
def test_gpus_are_told_apart_by_their_place_on_the_bus(platforms):
    nvidia = Platform("NVIDIA", "1", Chip("H200", "GPU", 3), Chip("H200", "GPU", 4))
    mesa = Platform("rusticl", "1", Chip("NV190", "GPU", 3), Chip("other", "GPU", 9))
    plain = Platform("unknown", "1", Chip("card", "GPU"), Chip("card", "GPU"))
    found = platforms(mesa, nvidia, plain, Platform("PoCL", "1", Chip("EPYC")))
    names = [d.name for d in found.devices]
    assert names == ["H200", "H200", "EPYC", "other", "card", "card"]
    assert [note.split(" is not used")[0] for note in found.notes[1:]] == ["NV190 (rusticl, 1)"]


@pytest.mark.opencl
def test_nothing_is_noted_where_there_is_no_choice(platforms):
    assert platforms(Platform("PoCL", "1", Chip("EPYC"))).notes == ()


# --- pyopencl's cache of programs -----------------------------------------------------------------

DAMAGED = """
import logging, pathlib, os, sys
logging.basicConfig()
from pyopencl import characterize
characterize.has_src_build_cache = lambda device: False  # as of Intel's runtime
from ggsched_opencl import driver
def build():
    for device in driver.find_devices().devices[:1]:
        driver._compile_something.__wrapped__(device.handle)
build()
cache = pathlib.Path(os.environ["XDG_CACHE_HOME"], "pyopencl")
damaged = [path for path in cache.rglob("*") if path.name in ("info", "binary")]
assert damaged
for path in damaged:
    path.write_bytes(b"damaged")
build()
print("built", cache.exists())
"""


@pytest.mark.opencl
def test_a_damaged_cache_of_pyopencl_is_removed_and_does_not_break_the_backend(tmp_path):
    """It raised ``KeyError: 'PYOPENCL_CACHE_FAILURE_FATAL'`` in every process from then on."""
    done = subprocess.run(
        [sys.executable, "-c", DAMAGED],
        check=False, timeout=TIMEOUT_S, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout == "built False\n", done.stderr[-3000:]
    assert "is damaged, and was removed" in done.stderr


# --- whether another OpenCL is installed, and what is advised ------------------------------------


@pytest.mark.parametrize(
    ("hint", "code"), [(driver.INTEL_HINT, 4), (driver.OTHERS_HINT, 0), (driver.INSTALL_HINT, 0)]
)
def test_another_opencl_is_asked_for_where_it_is_advised(monkeypatch, hint, code):
    def refuse():
        raise BackendUnavailable("refused", hint=hint)

    monkeypatch.setattr(driver, "find_devices", refuse)
    assert is_refused.main() == code


@pytest.mark.opencl
def test_no_other_opencl_is_asked_for_where_there_is_one():
    opencl_device().close()
    assert is_refused.main() == 0


ADVICE = {"opencl": driver.INSTALL_HINT, "opencl-intel": driver.INTEL_HINT}


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.timeout(1800)
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the wheels are for x86-64")
@pytest.mark.parametrize("extra", ADVICE)
def test_advice_is_right_in_a_fresh_environment(tmp_path, extra):
    """What ``ggsched devices`` prints is done, word by word, in an environment of its own."""
    (advised,) = re.findall(r'pip install "(ggsched\[[\w-]+\])"', ADVICE[extra])
    assert advised == f"ggsched[{extra}]"
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    clean = {
        k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "OCL_", "PYOPENCL"))
    }

    def run(*arguments, timeout=1500):
        return subprocess.run(
            [python, *arguments],
            check=False, capture_output=True, text=True, timeout=timeout, env=clean, cwd=tmp_path,
        )  # fmt: skip

    here = str(ROOT) + advised.removeprefix("ggsched")
    installed = run("-m", "pip", "install", "--quiet", "--editable", here)
    if installed.returncode and "No matching distribution" in installed.stderr:
        pytest.skip("no registry of packages can be reached")
    assert installed.returncode == 0, installed.stderr
    found = json.loads(run("-m", "ggsched", "devices", "--json").stdout)
    (status,) = (b for b in found["backends"] if b["name"] == "opencl")
    if extra == "opencl" and status["hint"] == driver.INTEL_HINT:
        return  # the next advice
    assert status["state"] == "ready", status
