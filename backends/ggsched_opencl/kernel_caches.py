"""Caches of compiled kernels on disk that other programs own: PoCL's and pyopencl's.

A crash or a full disk leaves files of them cut short. PoCL ends the process when it meets such a
library, and refuses or misreads such bitcode; pyopencl raises whatever its database raises. So
libraries are looked at before PoCL does, and what was in use when a kernel could not be made is
removed: caches are made to be.
"""

import os
import shutil
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_ELF: Final = b"\x7fELF\x02\x01"
_SECTIONS: Final = struct.Struct("<QIHHHHHH")  # from e_shoff on
_SECTIONS_AT: Final = 40
_RECENT_S: Final = 1.0


def user_cache() -> Path:
    """Return the folder of the user's caches."""
    base = os.environ.get("XDG_CACHE_HOME", "").strip()
    return Path(base) if base else Path.home() / ".cache"


def pocl_folder() -> Path:
    """Return where PoCL keeps compiled kernels."""
    named = os.environ.get("POCL_CACHE_DIR", "").strip()
    return Path(named) if named else user_cache() / "pocl" / "kcache"


def remove_cut_short(folder: Path) -> int:
    """Remove programs with a library that is cut short; return how many there were.

    Args:
        folder: PoCL's, with a folder of two letters and one below it for each program.
    """
    removed = 0
    for program in _programs(folder):
        if any(not _is_whole(library) for library in program.rglob("*.so")):
            shutil.rmtree(program, ignore_errors=True)
            removed += 1
    return removed


def remove_in_use(began_s: float) -> list[Path]:
    """Remove what may have kept a kernel from being made; return the folders.

    Args:
        began_s: When that began, as of ``time.time``.
    """
    folders = []
    pocl = pocl_folder()
    for program in _programs(pocl):
        try:
            used_s = (program / "last_accessed").stat().st_mtime
        except OSError:
            used_s = 0.0
        if used_s >= began_s - _RECENT_S:
            shutil.rmtree(program, ignore_errors=True)
            folders.append(pocl)
    for database in sorted((user_cache() / "pytools").glob("pdict-*pyopencl-invoker*")):
        if database.suffix == ".sqlite" and not _is_database(database):
            for part in database.parent.glob(f"{database.name}*"):
                part.unlink(missing_ok=True)
            folders.append(database.parent)
    return list(dict.fromkeys(folders))


def _programs(folder: Path) -> Iterator[Path]:
    try:
        groups = [e.path for e in os.scandir(folder) if e.is_dir() and len(e.name) == 2]
        for group in groups:
            yield from (Path(e.path) for e in os.scandir(group) if e.is_dir())
    except OSError:  # there is none, or somebody removes it at the same time
        return


def _is_whole(library: Path) -> bool:
    """Whether a library is as long as its header says; sections are listed at its end."""
    if sys.platform != "linux":
        return True
    try:
        with library.open("rb") as file:
            head = file.read(64)
            size = os.fstat(file.fileno()).st_size
    except OSError:
        return True  # it is somebody else's affair by now
    if len(head) < 64 or not head.startswith(_ELF):
        return False
    start, _, _, _, _, each, count, _ = _SECTIONS.unpack_from(head, _SECTIONS_AT)
    return bool(start + each * count <= size)


def _is_database(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            head = file.read(16)
    except OSError:
        return True
    return head in (b"", b"SQLite format 3\0")


def now_s() -> float:
    """Return the time that files are stamped with."""
    return time.time()
