"""Versions that a bug report needs: of ggsched, Python, the system, libraries and drivers.

They come from metadata of installations and from the kernel: no library is loaded.
"""

import platform
import re
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import Distribution, PackageNotFoundError, distribution, entry_points
from typing import Final

import click

from ggsched import __version__
from ggsched.cli.console import write_folded
from ggsched.files.reading import contents

_TOOLS: Final = frozenset({"test", "dev", "docs", "peers", "browser"})
"""Extras that no command needs."""
_BROUGHT: Final = ("pocl-binary-distribution",)
"""By an extra of a requirement."""
_EXTRA: Final = re.compile(r"extra == ['\"]([\w-]+)")
_DRIVER: Final = "/proc/driver/nvidia/version"


def version_lines() -> list[str]:
    """Return a line for each kind of thing that has a version; the first is ggsched's."""
    libc = " ".join(platform.libc_ver()).strip()
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    found = {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{system}, {libc}" if libc else system,
        "libraries": _listed(_requirements()),
        "plug-ins": _listed(_plug_ins()),
        "drivers": nvidia_driver(),
    }
    return [f"ggsched {__version__}", *(f"{kind}: {text}" for kind, text in found.items() if text)]


def nvidia_driver(path: str = _DRIVER) -> str:
    """Return NVIDIA's driver and its version, or "" where the kernel has none."""
    with suppress(OSError, UnicodeDecodeError):
        found = re.search(r"\s([0-9]+[.][0-9.]+)\s", contents(path).decode())
        return f"NVIDIA {found[1]}" if found else "NVIDIA, of an unknown version"
    return ""


def print_versions(ctx: click.Context, _param: click.Parameter, asked: bool) -> None:
    """Write the versions, and end."""
    if asked and not ctx.resilient_parsing:
        for line in version_lines():
            write_folded(line, indent=2)
        ctx.exit()


def _listed(names: Iterator[str]) -> str:
    texts = (f"{name} {found.version}" for name in names if (found := _installed(name)))
    return ", ".join(dict.fromkeys(texts))


def _installed(name: str) -> Distribution | None:
    with suppress(PackageNotFoundError):
        return distribution(name)
    return None


def _requirements() -> Iterator[str]:
    """Yield what ggsched requires, always or by an extra."""
    ours = _installed("ggsched")
    for requirement in (ours and ours.requires) or ():
        extra, name = _EXTRA.search(requirement), re.match(r"[\w.-]+", requirement)
        if name and name[0] != "ggsched" and not (extra and extra[1] in _TOOLS):
            yield name[0]
    yield from _BROUGHT


def _plug_ins() -> Iterator[str]:
    """Yield distributions of others that bring a backend."""
    for point in entry_points(group="ggsched.backends"):
        if point.dist is not None and point.dist.name != "ggsched":
            yield point.dist.name
