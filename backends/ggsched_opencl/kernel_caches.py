"""Caches of compiled kernels on disk that other programs own: PoCL's and pyopencl's.

A crash, a full disk or a bad one leaves files of them damaged. PoCL ends the process when it meets
such a library or such bitcode, or misreads it; pyopencl raises whatever unpickling raises. So each
program that a process has used is sealed when the process ends, with a checksum of each file;
programs are compared with their seals before PoCL is called; and what was in use when a
kernel could not be made is removed: caches are made to be.

Both libraries run what is there, whoever wrote it: folders that others can write are left to those.
"""

import atexit
import json
import logging
import os
import shutil
import struct
import sys
import time
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile, mkdtemp
from typing import Final

from ggsched.files.own import cache_home
from ggsched.files.reading import contents, open_regular, read_some
from ggsched.whole_file import write_whole

_ELF: Final = b"\x7fELF\x02\x01"
_SECTIONS: Final = struct.Struct("<QIHHHHHH")  # from e_shoff on
_SECTIONS_AT: Final = 40
_RECENT_S: Final = 1.0
_SEAL: Final = "ggsched-seal.json"
_TOUCHED: Final = frozenset({"last_accessed", _SEAL})
_LOG: Final = logging.getLogger("ggsched.opencl")


def user_cache() -> Path:
    """Return the folder of the user's caches; one that cannot be made where there is no home."""
    return cache_home() or Path(os.devnull)


def pocl_folder() -> Path:
    """Return where PoCL keeps compiled kernels."""
    named = os.environ.get("POCL_CACHE_DIR", "").strip()
    return Path(os.path.abspath(named)) if named else user_cache() / "pocl" / "kcache"


def writes_to(folder: Path) -> bool:
    """Return whether files can be made in a folder, which is made if it is not there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def use_folder_of_process(why: str) -> None:
    """Let PoCL keep kernels in a folder that is removed when the process ends.

    Args:
        why: The reason, for a warning.
    """
    try:
        folder = mkdtemp(prefix="ggsched-pocl-")
    except OSError:  # PoCL will say that it has no device
        return
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["POCL_CACHE_DIR"] = folder
    _LOG.warning("opencl: %s, so kernels are compiled anew each time", why)


@cache
def watch(folder: Path) -> None:
    """Remove damaged programs, and seal at the end of the process those that it has used.

    Once in a process, before PoCL looks at the folder: there may be thousands of programs.
    """
    atexit.register(seal_used, folder, now_s())
    if damaged := remove_damaged(folder):
        text = "opencl: removed %d damaged programs from the cache of compiled kernels %s"
        _LOG.warning(text, damaged, folder)


def remove_damaged(folder: Path) -> int:
    """Remove programs that differ from their seal, or whose files are cut short.

    Args:
        folder: PoCL's, with a folder of two letters and one below it for each program.

    Returns:
        How many there were.
    """
    damaged = [program for program in _programs(folder) if not _is_sound(program)]
    for program in damaged:
        shutil.rmtree(program, ignore_errors=True)
    return len(damaged)


def seal_used(folder: Path, began_s: float) -> None:
    """Write down sizes and checksums of the files of each program used since then.

    Args:
        folder: PoCL's.
        began_s: As of ``time.time``.
    """
    for program in _programs(folder):
        try:
            if _used_s(program) >= began_s - _RECENT_S and _seal(program) != (
                found := _look(program)
            ):
                write_whole(program / _SEAL, json.dumps(found).encode())
        except (OSError, ValueError):  # full, read-only, removed at the same time, a damaged seal
            continue


def _look(program: Path) -> dict[str, list[int]]:
    """Return size and checksum of each file, by its path within the program's folder."""
    found = {}
    for path, name in _files(str(program)):
        content = contents(path)
        found[name] = [len(content), zlib.crc32(content)]
    return found


def _files(folder: str, below: str = "") -> Iterator[tuple[str, str]]:
    """Yield path and name within the program's folder of each file that a seal is about."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _files(entry.path, f"{below}{entry.name}/")
            elif entry.name not in _TOUCHED and entry.is_file():
                yield entry.path, below + entry.name


def _seal(program: Path) -> dict[str, list[int]]:
    """Return what a program's seal says, nothing where there is none.

    Raises:
        ValueError: nobody can read it.
    """
    try:
        text = contents(program / _SEAL)
    except OSError:
        return {}
    if not isinstance(read := json.loads(text), dict):
        raise ValueError("no seal")
    return read


def _is_sound(program: Path) -> bool:
    try:
        found, sealed = _look(program), _seal(program)
    except OSError:
        return True  # it is somebody else's affair by now
    except ValueError:
        return False
    if any(found.get(name, now) != now for name, now in sealed.items()):
        return False
    return all(
        _is_whole(program / name) for name in found if name not in sealed and name.endswith(".so")
    )


def remove_in_use(began_s: float) -> list[Path]:
    """Remove what may have kept a kernel from being made; return the folders.

    Args:
        began_s: When that began, as of ``time.time``.
    """
    folders = []
    pocl = pocl_folder()
    for program in _programs(pocl):
        if _used_s(program) >= began_s - _RECENT_S:
            shutil.rmtree(program, ignore_errors=True)
            folders.append(pocl)
    for database in sorted((user_cache() / "pytools").glob("pdict-*pyopencl-invoker*")):
        try:
            database.unlink()
        except OSError:  # gone, or of another user: the rebuilt kernel does not look there
            continue
        folders.append(database.parent)
    return list(dict.fromkeys(folders))


def remove_programs_of_pyopencl() -> Path:
    """Remove the programs that pyopencl keeps of platforms without a cache; return the folder."""
    folder = user_cache() / "pyopencl"
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def _programs(folder: Path) -> Iterator[Path]:
    try:
        groups = [e.path for e in os.scandir(folder) if e.is_dir() and len(e.name) == 2]
        for group in groups:
            yield from (Path(e.path) for e in os.scandir(group) if e.is_dir())
    except OSError:  # there is none, or somebody removes it at the same time
        return


def _used_s(program: Path) -> float:
    """Return when PoCL last used a program, as of ``time.time``."""
    try:
        return (program / "last_accessed").stat().st_mtime
    except OSError:
        return 0.0


def _is_whole(library: Path) -> bool:
    """Whether a library is as long as its header says; sections are listed at its end."""
    if sys.platform != "linux":
        return True
    try:
        with open_regular(library) as file:
            head = read_some(file, 64)
            size = os.fstat(file).st_size
    except OSError:
        return True  # it is somebody else's affair by now
    if len(head) < 64 or not head.startswith(_ELF):
        return False
    start, _, _, _, _, each, count, _ = _SECTIONS.unpack_from(head, _SECTIONS_AT)
    return bool(start + each * count <= size)


def now_s() -> float:
    """Return the time that files are stamped with."""
    return time.time()
