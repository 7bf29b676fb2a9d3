"""Mapped files: what is read, and what happens when the file changes. Faults run in a child."""

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from ggsched.errors import ModelError
from ggsched.files.mapping import MAPPINGS, file_behind, map_file

PAGES = 64
PAGE = os.sysconf("SC_PAGE_SIZE")
linux = pytest.mark.skipif(sys.platform != "linux", reason="the handler is Linux's")


def content(tmp_path, nbytes=PAGES * PAGE):
    path = tmp_path / "weights.bin"
    data = np.random.default_rng(1).integers(1, 255, nbytes, np.uint8)
    data.tofile(path)
    return path, data


def test_maps_and_finds_the_file_behind_views(tmp_path):
    path, data = content(tmp_path)
    mapped = map_file(str(path))
    assert np.array_equal(mapped, data)
    file, offset = file_behind(np.asarray(mapped)[100:300].view(np.uint16)) or (None, 0)
    assert file is not None
    assert (file.path, offset) == (str(path), 100)
    target = bytearray(200)
    file.read_into(memoryview(target), offset)
    assert bytes(target) == data[100:300].tobytes()
    file.require_unchanged()
    assert file_behind(data) is None


def test_is_forgotten_with_the_last_view(tmp_path):
    path, _ = content(tmp_path)
    mapped = map_file(str(path))
    view = mapped[10:20].view(np.ndarray)
    file, _ = file_behind(view) or (None, 0)
    assert file is not None
    del mapped
    assert file in MAPPINGS.files
    del view
    assert file not in MAPPINGS.files
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(file.descriptor)


@pytest.mark.parametrize("how", ["shorter", "longer", "rewritten"])
def test_a_changed_file_is_named(tmp_path, how):
    path, data = content(tmp_path)
    mapped = map_file(str(path))
    file, _ = file_behind(mapped) or (None, 0)
    assert file is not None
    match how:
        case "shorter":
            os.truncate(path, PAGE)
        case "longer":
            os.truncate(path, 2 * len(data))
        case _:
            with open(path, "r+b") as handle:
                handle.write(b"x")
            os.utime(path, ns=(0, 1))
    words = "was truncated" if how == "shorter" else "was changed"
    with pytest.raises(ModelError, match=rf"weights\.bin: the file {words}"):
        file.require_unchanged()
    if how == "shorter":
        with pytest.raises(ModelError, match="was truncated"):
            file.read_into(memoryview(bytearray(len(data))), 0)


def in_child(code, *arguments):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@linux
@pytest.mark.parametrize("where", ["this thread", "another thread"])
def test_a_read_behind_the_end_goes_on_and_is_known(tmp_path, where):
    path, data = content(tmp_path)
    child = in_child(
        """
        import os, sys, threading
        import numpy as np
        from ggsched.errors import ModelError
        from ggsched.files.mapping import file_behind, map_file
        path, where = sys.argv[1:]
        mapped = map_file(path)
        file, _ = file_behind(mapped)
        size, page = len(mapped), os.sysconf("SC_PAGE_SIZE")
        sums = [int(mapped[: 8 * page].sum())]
        os.truncate(path, 8 * page)
        read = lambda: sums.append(int(mapped.sum()))
        if where == "this thread":
            read()
        else:
            thread = threading.Thread(target=read)
            thread.start()
            thread.join()
        os.truncate(path, size)  # as a writer does that begins anew
        print(*sums)
        try:
            file.require_unchanged()
        except ModelError as error:
            print(error)
        """,
        path,
        where,
    )
    assert child.returncode == 0, child.stderr
    numbers, message = child.stdout.splitlines()
    before, after = map(int, numbers.split())
    assert before == after == int(data[: 8 * PAGE].sum())
    assert f"{path}: the file cannot be read" in message


@linux
def test_other_faults_are_nobodys_business(tmp_path):
    """A SIGBUS at another address ends the process as it did before."""
    path, _ = content(tmp_path)
    child = in_child(
        """
        import mmap, os, sys
        from ggsched.files.mapping import map_file
        mapped = map_file(sys.argv[1])
        with open(sys.argv[1] + ".other", "w+b") as file:
            file.truncate(1 << 16)
            other = mmap.mmap(file.fileno(), 1 << 16, prot=mmap.PROT_READ)
            file.truncate(0)
        print("before", flush=True)
        other[5]
        print("after")
        """,
        path,
    )
    assert child.returncode == -7
    assert child.stdout == "before\n"
