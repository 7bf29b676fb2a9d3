"""How many threads compute: one for each core, or as configured."""

import logging
from functools import cache
from pathlib import Path
from typing import Final

from ggsched.backend.processors import usable_processors
from ggsched.files.reading import contents

_LOG: Final = logging.getLogger("ggsched")


@cache
def default_threads() -> int:
    """Return the number of physical cores that affinity and control groups leave this process."""
    cores = {_siblings(cpu) for cpu in usable_processors()}
    quota = _quota()
    return max(1, len(cores) if quota is None else min(len(cores), quota))


def warn_of_crowd(threads: int) -> None:
    """Say so if threads of a team get fewer processors than there are of them."""
    allowed, quota = len(usable_processors()), _quota()
    usable = allowed if quota is None else min(allowed, quota)
    if threads > usable:
        _LOG.warning(
            "cpu: %d threads share %d processor%s, all that this process may use, and wait for "
            "each other; -t %d is faster",
            threads,
            usable,
            "" if usable == 1 else "s",
            default_threads(),
        )


def _siblings(cpu: int) -> str:
    """Return the processors of a core, this one if the system does not report it."""
    file = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    try:
        return contents(file).decode("ascii").strip()
    except (OSError, ValueError):
        return str(cpu)


def _quota(
    root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> int | None:
    """Return the processors that the control groups of this process allow, rounded up."""
    found = [q for folder in _groups(root, own) if (q := _quota_of(folder)) is not None]
    return min(found, default=None)


def _groups(root: Path, own: Path) -> list[Path]:
    """Return the folders of the process's groups and of those around them."""
    folders = [root, root / "cpu"]
    try:
        lines = contents(own).decode("utf-8", "surrogateescape").splitlines()
    except OSError:
        return folders
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        base = root / "cpu" if controllers else root
        inner = base / path.lstrip("/")
        folders += [inner, *(p for p in inner.parents if p.is_relative_to(base))]
    return folders


def _quota_of(folder: Path) -> int | None:
    try:
        limit, period = contents(folder / "cpu.max").decode("ascii").split()
    except (OSError, ValueError):
        try:
            limit, period = (
                contents(folder / f"cpu.cfs_{name}_us").decode("ascii").strip()
                for name in ("quota", "period")
            )
        except (OSError, ValueError):
            return None
    if limit in ("max", "-1") or not (limit.isdigit() and period.isdigit() and int(period)):
        return None
    return max(1, -(-int(limit) // int(period)))
