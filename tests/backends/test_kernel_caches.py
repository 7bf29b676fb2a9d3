"""Damaged caches of compiled kernels: found, named, and built again once."""

import logging
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ggsched import GraphBuilder
from ggsched.backend.registry import open_devices
from ggsched.config import Settings
from ggsched.errors import BackendBroken
from ggsched.scheduler import Scheduler
from ggsched_opencl import compiled, driver, kernel_caches
from ggsched_opencl.kernel_caches import remove_damaged, remove_in_use, seal_used

X = np.ones((2, 4), np.float32)


def library(path, whole=True):
    """Write a file with the header of a library that has four sections at its end."""
    path.parent.mkdir(parents=True)
    head = b"\x7fELF\x02\x01".ljust(40, b"\0")
    head += struct.pack("<QIHHHHHH", 1000, 0, 64, 56, 0, 64, 4, 3)
    path.write_bytes(head.ljust(1256 if whole else 1255, b"\0"))


def test_libraries_that_are_cut_short_go_with_their_program(tmp_path):
    library(tmp_path / "AB" / "GOOD" / "add" / "1" / "add.so")
    library(tmp_path / "AB" / "SHORT" / "add" / "1" / "add.so", whole=False)
    library(tmp_path / "CD" / "EMPTY" / "add" / "1" / "add.so")
    (tmp_path / "CD" / "EMPTY" / "add" / "1" / "add.so").write_bytes(b"")
    (tmp_path / "tempfile_x").write_bytes(b"")
    assert remove_damaged(tmp_path) == 2
    assert [p.name for p in sorted(tmp_path.glob("*/*"))] == ["GOOD"]
    assert remove_damaged(tmp_path) == 0
    assert remove_damaged(tmp_path / "gone") == 0


def sealed(folder):
    """Write a program as PoCL leaves it, and seal it."""
    library(folder / "AB" / "USED" / "add" / "1" / "add.so")
    program = folder / "AB" / "USED"
    (program / "program.bc").write_bytes(b"BC\xc0\xde" + bytes(range(200)))
    (program / "last_accessed").write_bytes(b"")
    seal_used(folder, kernel_caches.now_s())
    return program


@pytest.mark.parametrize("name", ["program.bc", "add/1/add.so", "ggsched-seal.json"])
@pytest.mark.parametrize("how", ["flip", "cut", "empty"])
def test_programs_that_differ_from_their_seal_are_removed(tmp_path, name, how):
    program = sealed(tmp_path)
    assert remove_damaged(tmp_path) == 0
    content = bytearray((program / name).read_bytes())
    content[len(content) // 2] ^= 0xFF
    content = {"flip": content, "cut": content[: len(content) // 2], "empty": b""}[how]
    (program / name).write_bytes(content)
    assert remove_damaged(tmp_path) == 1
    assert not program.exists()


def test_what_a_seal_does_not_hold_is_no_damage(tmp_path):
    """Kernels that another process adds, files that PoCL touches or removes, programs of old."""
    program = sealed(tmp_path)
    (program / "add" / "2").mkdir()
    shutil.copy(program / "add" / "1" / "add.so", program / "add" / "2")
    (program / "last_accessed").write_bytes(b"now")
    (program / "program.bc").unlink()
    assert remove_damaged(tmp_path) == 0
    seal_used(tmp_path, kernel_caches.now_s())
    assert remove_damaged(tmp_path) == 0
    (program / "add" / "2" / "add.so").write_bytes(b"")
    assert remove_damaged(tmp_path) == 1
    library(tmp_path / "AB" / "OLD" / "add" / "1" / "add.so")
    seal_used(tmp_path, kernel_caches.now_s())
    assert not list((tmp_path / "AB" / "OLD").glob("*.json"))


RUNS = """
import logging
logging.basicConfig()
import numpy as np
from ggsched import GraphBuilder
from ggsched.backend.registry import open_devices
from ggsched.scheduler import Scheduler
(device,) = open_devices(["opencl:0"])
g = GraphBuilder("one")
graph = g.build(g.silu(g.input("x", (2, 4))))
with Scheduler([device]) as s:
    print(float(s.run(graph, {"x": np.ones((2, 4), np.float32)}).popitem()[1][0, 0]))
device.close()
"""


@pytest.mark.opencl
def test_damaged_bitcode_and_pickles_are_built_again(tmp_path):
    """PoCL ends a process that reads the one, and pyopencl raises at the other, for good."""
    caches = {"XDG_CACHE_HOME": str(tmp_path), "POCL_CACHE_DIR": str(tmp_path / "pocl")}
    environment = {**os.environ, **caches}
    said = []
    for _ in range(3):
        command = [sys.executable, "-c", RUNS]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert float(done.stdout) == pytest.approx(0.7310586)
        said.append(done.stderr)
        if len(said) == 1:
            for path in [*tmp_path.rglob("program.bc"), *tmp_path.rglob("*.sqlite")]:
                path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert [str(tmp_path) in text for text in said] == [False, True, False]


@pytest.mark.opencl
def test_caches_that_cannot_be_written(tmp_path):
    """As with a home that is read-only: PoCL had no device then, and pyopencl wrote a traceback."""
    (tmp_path / "file").touch()
    (tmp_path / "temporary").mkdir()
    environment = {k: v for k, v in os.environ.items() if k != "POCL_CACHE_DIR"}
    environment |= {
        "XDG_CACHE_HOME": str(tmp_path / "file" / "x"),
        "TMPDIR": str(tmp_path / "temporary"),
    }
    command = [sys.executable, "-c", RUNS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(0.7310586)
    assert done.stderr.count("\n") == 1
    assert f"{tmp_path / 'file' / 'x' / 'pocl' / 'kcache'} cannot be written" in done.stderr
    assert list((tmp_path / "temporary").iterdir()) == []


def test_only_what_was_in_use_is_removed(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("POCL_CACHE_DIR", raising=False)
    pocl = tmp_path / "pocl" / "kcache"
    for name in ("OLD", "NEW"):
        folder = pocl / "AB" / name
        folder.mkdir(parents=True)
        (folder / "last_accessed").write_bytes(b"")
    os.utime(pocl / "AB" / "OLD" / "last_accessed", (1000, 1000))
    pytools = tmp_path / "pytools"
    pytools.mkdir()
    (pytools / "pdict-v5-pyopencl-invoker-cache-x.sqlite").write_bytes(b"SQLite format 3\0...")
    (pytools / "pdict-v5-other.sqlite").write_bytes(b"garbage")
    assert remove_in_use(kernel_caches.now_s()) == [pocl, pytools]
    assert [p.name for p in pocl.glob("*/*")] == ["OLD"]
    assert [p.name for p in pytools.iterdir()] == ["pdict-v5-other.sqlite"]
    (pytools / "pdict-v5-pyopencl-invoker-cache-y.sqlite").mkdir()  # as what cannot be removed
    assert remove_in_use(kernel_caches.now_s()) == []


@pytest.mark.opencl
@pytest.mark.parametrize("times", [1, 2])
def test_a_kernel_that_cannot_be_made_is_built_again_once(times, monkeypatch, caplog, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compiled.forget()
    (device,) = open_devices(["opencl:0"])
    failing, built = [times], []
    make, build = driver.make_kernel, driver.build_program

    def bad_make(program, name):
        if failing[0]:
            failing[0] -= 1
            raise OSError("file is not a database")
        return make(program, name)

    def spied_build(context, text, defines):
        built.append(tuple(defines))
        return build(context, text, defines)

    monkeypatch.setattr(driver, "stop_caching", lambda: None)
    monkeypatch.setattr(driver, "make_kernel", bad_make)
    monkeypatch.setattr(driver, "build_program", spied_build)
    g = GraphBuilder("one")
    graph = g.build(g.silu(g.input("x", (2, 4))))
    try:
        with caplog.at_level(logging.WARNING), Scheduler([device], settings=Settings()) as s:
            if times == 1:
                s.run(graph, {"x": X})
                assert "a cache of compiled kernels is damaged, and was built again" in caplog.text
                assert built[1][:-1] == built[0]
                assert built[1][-1][0] == "KERNEL_REBUILT"
            else:
                with pytest.raises(BackendBroken, match="file is not a database"):
                    s.run(graph, {"x": X})
                assert len(built) == 2
    finally:
        device.close()


def test_real_libraries_are_whole():
    """What PoCL has written here is not taken for damaged."""
    folder = kernel_caches.pocl_folder()
    libraries = list(Path(folder).glob("??/*/*/*/*.so"))[:20]
    assert all(kernel_caches._is_whole(path) for path in libraries)
    assert shutil.which("sh")  # a program of the system
    assert kernel_caches._is_whole(Path(shutil.which("sh")).resolve())


def test_machine_code_that_the_driver_refuses_is_compiled_again(monkeypatch, caplog, tmp_path):
    programs = pytest.importorskip("ggsched_cuda.programs")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compiled, code = [], programs.KernelCode("elementwise", (), "binary")
    monkeypatch.setattr(programs, "compiler_version", lambda: (12, 0))
    monkeypatch.setattr(
        programs, "compile_text", lambda text, options: compiled.append(text) or b"good"
    )

    def load(code):
        if code != b"good":
            raise programs.CudaError("cuModuleLoadData", 200, "invalid image")
        return code

    monkeypatch.setattr(programs.driver, "load_module", load)
    assert programs.loaded(code, 90) == b"good"
    (file,) = (tmp_path / "ggsched" / "cuda").iterdir()
    file.write_bytes(b"bad")
    assert programs.loaded(code, 90) == b"good"
    assert len(compiled) == 2
    assert str(file) in caplog.text
    monkeypatch.setattr(programs, "compile_text", lambda text, options: b"always bad")
    file.unlink()
    with pytest.raises(programs.CudaError):
        programs.loaded(code, 90)
