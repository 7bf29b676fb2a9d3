"""Object code on disk, so that kernels are compiled once per machine.

An entry's name is a hash of everything it depends on; it begins with a hash of its content, so that
one that was damaged, or belongs to something else, is made anew. A folder that cannot be read or
written, or that is not the user's alone, costs time only.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from ggsched.files.own import cache_home, own_contents
from ggsched.whole_file import write_whole
from ggsched_cpu.kernels.target import Target

_HEAD = b"ggsched cpu kernels 1\n"


def default_folder() -> Path:
    """Return ``$XDG_CACHE_HOME/ggsched/cpu-kernels``."""
    return (cache_home() or Path(os.devnull)) / "ggsched" / "cpu-kernels"


def entry_name(ir: str, target: Target, llvm_version: str) -> str:
    """Return the name of the entry of a module."""
    text = "\0".join((llvm_version, target.triple, target.cpu, target.features, ir))
    return f"{sha256(text.encode()).hexdigest()}.o"


def cached_code(folder: Path, name: str, make: Callable[[], bytes]) -> bytes:
    """Return an entry, made and kept where it is missing or damaged."""
    file = folder / name
    known = _read(file)
    if known is not None:
        return known
    code = make()
    _write(file, code)
    return code


def discard(folder: Path, name: str) -> None:
    """Remove an entry that turned out to be of no use."""
    try:
        (folder / name).unlink(missing_ok=True)
    except OSError:
        return


def _read(file: Path) -> bytes | None:
    try:
        data = own_contents(file)
    except OSError:
        return None
    start = len(_HEAD) + 32
    code = data[start:]
    if data[: len(_HEAD)] != _HEAD or sha256(code).digest() != data[len(_HEAD) : start]:
        return None
    return code


def _write(file: Path, code: bytes) -> None:
    with suppress(OSError):
        write_whole(file, _HEAD + sha256(code).digest() + code)
