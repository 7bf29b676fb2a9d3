"""The OpenCL drivers of this machine, and those that this Python environment brings.

Loaders read ``.icd`` files, each with the library of a driver. pyopencl's loader reads those in its
own folder only, others those of the system; and a package such as Intel's runtime installs one
that names a path of the machine where it was built. So the loader is given a folder of entries
that are found here: pyopencl's own, the system's and the environment's. ``OCL_ICD_VENDORS`` of the
user has precedence, and then nothing else is looked at.

A driver that crashes or hangs while it looks for its devices would take the process with it.
Each is asked in a process of its own, therefore, once for each version of its library.
"""

import json
import logging
import os
import signal
import site
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from ggsched.files.own import own_contents
from ggsched.files.reading import contents
from ggsched.whole_file import write_whole
from ggsched_opencl import vendor_probe
from ggsched_opencl.kernel_caches import user_cache

SETTING: Final = "OCL_ICD_VENDORS"
_OWN_FOLDER: Final = "PYOPENCL_HOME"
"""Set by pyopencl for its loader, which looks there besides ``OCL_ICD_VENDORS``."""

SYSTEM: Final = Path("/etc/OpenCL/vendors")
PROBE_TIMEOUT_S: Final = 60.0
_NOT_LOADED: Final = "it cannot be loaded"
_LOG: Final = logging.getLogger("ggsched.opencl")


@dataclass(frozen=True, slots=True)
class Refused:
    """A driver that is left out.

    Attributes:
        library: Its path or name.
        why: What it did.
    """

    library: str
    why: str

    def __str__(self) -> str:
        return f"{self.library} is not used: {self.why}"


def libraries() -> list[str]:
    """Return the libraries of all drivers: by path, or by name where the linker finds them."""
    named = os.environ.get(SETTING, "").strip()
    if named:
        place = Path(named)
        if place.is_dir():
            return _unique(_library(icd, place) for icd in sorted(place.glob("*.icd")))
        return _unique([_library(place, place.parent) if place.suffix == ".icd" else named])
    found = [_library(icd, folder) for folder in _folders() for icd in sorted(folder.glob("*.icd"))]
    return _unique(found)


def _folders() -> list[Path]:
    """Return folders with ``.icd`` files: pyopencl's own, the system's and the environment's."""
    spec = find_spec("pyopencl")
    own = [Path(p) / ".libs" for p in (spec.submodule_search_locations or ())] if spec else []
    bases = {sys.prefix: None, sysconfig.get_path("data"): None, site.getuserbase(): None}
    return [*own, SYSTEM, *(Path(base, "etc", "OpenCL", "vendors") for base in bases)]


def _library(icd: Path, folder: Path) -> str:
    """Return the library that an ``.icd`` file names, or "" where there is none.

    A path of another machine stands for the library of that name in ``lib`` of the environment
    that the file belongs to.
    """
    try:
        named = contents(icd).decode().strip()
    except (OSError, UnicodeDecodeError):
        return ""
    path = Path(named)
    near = [folder / path.name, *(p / "lib" / path.name for p in folder.parents[2:3])]
    for place in [path, *near] if path.is_absolute() else near:
        if place.is_file():
            return str(place)
    return "" if path.is_absolute() else named


def _unique(found: Iterable[str]) -> list[str]:
    """Return libraries once each, without links to the same file."""
    files = {os.path.realpath(lib) if os.sep in lib else lib: lib for lib in found if lib}
    return list(files.values())


def probed(found: Sequence[str]) -> tuple[list[str], list[Refused]]:
    """Return the drivers that look for their devices without harm, and the others."""
    sound = _read_sound()
    usable, refused = [], []
    for library in found:
        stamp = _stamp(library)
        if stamp is None or sound.get(library) != stamp:
            if why := _harm(library):
                refused.append(Refused(library, why))
                continue
            if stamp is not None:
                sound[library] = stamp
                _write_sound(sound)
        usable.append(library)
    for left_out in refused:
        # Containers often have the entry of a driver that is not there.
        log = _LOG.info if left_out.why.startswith(_NOT_LOADED) else _LOG.warning
        log("opencl: %s", left_out)
    return usable, refused


def _harm(library: str) -> str:
    """Return what goes wrong when a driver is loaded and looks for devices, or ""."""
    if not sys.executable:  # embedded in another program
        return ""
    command = [sys.executable, "-I", "-S", str(vendor_probe.__file__), library]
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return f"it looks for devices for more than {PROBE_TIMEOUT_S:g} s"
    except OSError:  # no process can be started; the driver may be as good as any
        return ""
    if done.returncode == vendor_probe.CANNOT_LOAD:
        return f"{_NOT_LOADED}: {done.stderr.strip()}"
    if done.returncode < 0:
        with suppress(ValueError):
            name = signal.Signals(-done.returncode).name
            return f"it crashes in clGetPlatformIDs or clGetDeviceIDs ({name})"
    return ""


def _sound_path() -> Path:
    return user_cache() / "ggsched" / "opencl-drivers.json"


def _read_sound() -> dict[str, list[int]]:
    """Return the drivers that were probed and did no harm, with the version of their library."""
    try:
        read = json.loads(own_contents(_sound_path()))
    except (OSError, ValueError, RecursionError):
        return {}
    return read if isinstance(read, dict) else {}


def _write_sound(sound: Mapping[str, list[int]]) -> None:
    path = _sound_path()
    with suppress(OSError):  # they are probed anew each time, then
        write_whole(path, json.dumps(sound).encode())


def _stamp(library: str) -> list[int] | None:
    """Return what changes with a library's version; None where the linker has to find it."""
    try:
        found = os.stat(library)
    except OSError:
        return None
    return [found.st_size, found.st_mtime_ns]


@contextmanager
def visible(drivers: Sequence[str]) -> Iterator[None]:
    """Let a loader that is used first in here find these drivers, and no others.

    Loaders look for drivers once in a process, so nothing is left behind.
    """
    try:
        made = TemporaryDirectory(prefix="ggsched-opencl-")
    except OSError:  # no place for temporary files: the loader looks where it is used to
        yield
        return
    before = {name: os.environ.get(name) for name in (SETTING, _OWN_FOLDER)}
    with made as folder:
        for number, library in enumerate(drivers):
            Path(folder, f"{number:02}.icd").write_text(library + "\n", encoding="utf-8")
        os.environ.update({SETTING: folder, _OWN_FOLDER: folder})
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name)
                if value is not None:
                    os.environ[name] = value
