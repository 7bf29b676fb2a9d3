"""Caches: what somebody else has put there, or could have, is not loaded."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ggsched.files import own
from ggsched.files.own import cache_home, is_own, own_contents, refusal
from ggsched.whole_file import write_whole


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A file of a cache; the folder of tests stands for a home that is the user's alone."""
    own._warn.cache_clear()
    path = tmp_path / "cache" / "ggsched" / "code" / "entry.o"
    write_whole(path, b"code")
    assert own_contents(path) == b"code"
    return path


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o722], ids=oct)
@pytest.mark.parametrize("level", range(4))
def test_what_others_can_write_is_refused(file, mode, level, monkeypatch):
    monkeypatch.setattr(own, "_is_own_group", lambda group: False)
    changed = [file, *file.parents][level]
    changed.chmod(mode)
    assert refusal(file) == f"others can write {changed} (chmod go-w)"
    with pytest.raises(PermissionError, match="not the user's alone"):
        own_contents(file)


@pytest.mark.parametrize("level", range(3))
def test_what_belongs_to_others_is_refused(file, level, monkeypatch):
    changed = [file, *file.parents][level]
    real = os.lstat

    def lstat(path):
        found = real(path)
        if Path(path) != changed:
            return found
        return os.stat_result((*found[:4], 12345, *found[5:]))

    monkeypatch.setattr(own.os, "lstat", lstat)
    assert refusal(file) == f"{changed} belongs to another user"


def test_a_link_leads_where_others_can_write(file, tmp_path, monkeypatch):
    monkeypatch.setattr(own, "_is_own_group", lambda group: False)
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    link = tmp_path / "link"
    link.symlink_to(shared)
    assert refusal(link / "x.o") == f"others can write {shared} (chmod go-w)"


def test_a_folder_with_the_sticky_bit_and_the_own_group_are_trusted(file, monkeypatch):
    file.parent.parent.chmod(0o1777)
    assert refusal(file) == ""
    file.parent.chmod(0o770)
    monkeypatch.setattr(own, "_is_own_group", lambda group: True)
    assert refusal(file) == ""


def test_new_folders_and_files_are_for_the_user_only(tmp_path):
    before = os.umask(0)
    try:
        path = tmp_path / "a" / "b" / "c"
        write_whole(path, b"")
    finally:
        os.umask(before)
    assert [oct(p.stat().st_mode & 0o777) for p in (path.parent.parent, path.parent, path)] == [
        "0o700", "0o700", "0o600"
    ]  # fmt: skip


def test_each_reason_is_one_warning(file, caplog):
    file.parent.chmod(0o777)
    with caplog.at_level(logging.WARNING):
        assert [is_own(file), is_own(file), is_own(file.parent)] == [False] * 3
    assert len(caplog.messages) == 1
    assert str(file.parent) in caplog.text


def test_relative_folders_of_the_environment_are_ignored(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("cache", "./cache", "~", "", " "):
        monkeypatch.setenv("XDG_CACHE_HOME", name)
        assert cache_home() == tmp_path / ".cache"
    monkeypatch.setenv("XDG_CACHE_HOME", "/shared")
    assert cache_home() == Path("/shared")


PLANTED = """
import sys
from pathlib import Path
from ggsched_cpu.kernels import object_cache
folder = object_cache.default_folder()
object_cache._write(folder / "entry.o", b"planted")
(folder if sys.argv[1] == "folder" else folder / "entry.o").chmod(0o777)
print(object_cache.cached_code(folder, "entry.o", lambda: b"compiled").decode())
"""


@pytest.mark.parametrize("what", ["folder", "file"])
def test_planted_object_code_is_compiled_anew(what, tmp_path):
    """Whoever could write a shared ``XDG_CACHE_HOME`` ran code as the user."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-c", PLANTED, what]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "compiled\n"
    assert done.stderr.count("\n") == 1


OPENCL = """
import os, sys
import ggsched_opencl.driver as driver
driver._settle_caches()
print(driver.cl._PYOPENCL_NO_CACHE, os.environ.get("POCL_CACHE_DIR", ""))
"""


@pytest.mark.opencl
@pytest.mark.parametrize("how", ["private", "shared", "relative"])
def test_caches_of_other_libraries(how, tmp_path):
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    if how == "shared":
        folder.chmod(0o777)
    environment = {k: v for k, v in os.environ.items() if k != "POCL_CACHE_DIR"}
    environment["XDG_CACHE_HOME"] = "cache" if how == "relative" else str(folder)
    environment["HOME"] = str(tmp_path)
    command = [sys.executable, "-c", OPENCL]
    done = subprocess.run(
        command,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=tmp_path,
    )
    stopped, *pocl = done.stdout.split()
    assert stopped == str(how != "private")
    match how:
        case "private":
            assert pocl == []
        case "shared":
            assert not Path(pocl[0]).is_relative_to(folder)
        case _:
            assert pocl == [str(tmp_path / ".cache" / "pocl" / "kcache")]
