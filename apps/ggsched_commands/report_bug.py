"""``ggsched report-bug``: what a maintainer asks for, without names of users, machines, folders."""

import io
import os
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from ggsched.backend.registry import discover
from ggsched.cli.console import NO_LIMIT, write_json
from ggsched.cli.devices import remarks, table
from ggsched.cli.main import GROUP
from ggsched.cli.options import json_option
from ggsched.cli.versions import version_lines
from ggsched.config import VARIABLES, Settings
from ggsched.files.reading import contents
from ggsched.fingerprint import fingerprint
from ggsched.printable import write_out
from ggsched.units import nbytes_text

_ASKED: Final = """\
### What happened

<!-- The command line, what it wrote, and what it should have written. With GGSCHED_DEBUG=1 an error
has its traceback. A small model or graph that shows it helps most. Nothing is sent anywhere: read
this text, and remove what you do not want to show. -->

"""
_PUBLIC: Final = ("usr", "lib", "lib64", "bin", "etc", "proc", "sys", "dev", "opt")
"""Folders of the system, whose paths tell nothing about their users."""
_PATH: Final = re.compile(rf"(?<![\w.~/])/(?!(?:{'|'.join(_PUBLIC)})/)(?:[^\s/:'\"<>|,;()]+/)+")
_CPU: Final = re.compile(r"^model name\s*:\s*(.+)$", re.MULTILINE)


@click.command(name="report-bug")
@json_option
@click.pass_obj
def report_bug(settings: Settings, /, as_json: bool) -> None:
    """Write what a bug report needs, and nothing private.

    Versions, machine, devices and settings, on stdout as Markdown: 'ggsched report-bug > bug.md'.
    Folders, the name of the user and that of the machine are left out. Nothing is sent anywhere.
    """
    names = private_names()
    found = {name: without_names(text, names) for name, text in _sections(settings)}
    if as_json:
        write_json({name.lower(): text.splitlines() for name, text in found.items()})
        return
    parts = (f"### {name}\n\n```text\n{text}\n```\n" for name, text in found.items())
    write_out(_ASKED + "\n".join(parts))


def _applications() -> list[str]:
    """Return the packages that commands are in."""
    found = {p.value.partition(":")[0].partition(".")[0] for p in entry_points(group=GROUP)}
    return sorted(name for name in found - {"ggsched"} if find_spec(name) is not None)


def _sections(settings: Settings) -> Iterator[tuple[str, str]]:
    first, *others = version_lines()
    yield "Versions", "\n".join([f"{first}, sources {fingerprint(*_applications())}", *others])
    yield "Machine", _machine()
    statuses = discover(allow=settings.backends)
    text = io.StringIO()
    console = Console(file=text, width=NO_LIMIT, highlight=False, markup=False, emoji=False)
    for part in (table(statuses), *remarks(statuses)):
        console.print(part)
    tracebacks = "".join(f"\n{s.name}:\n{s.traceback}" for s in statuses if s.traceback)
    lines = (line.rstrip() for line in (text.getvalue() + tracebacks).splitlines())
    yield "Devices", "\n".join(lines)
    given = [f"{v.name}={os.environ[v.name]}" for v in VARIABLES if os.environ.get(v.name)]
    yield "Settings", "\n".join(given) or "none"


def _machine() -> str:
    from ggsched.backend.base import physical_memory_nbytes
    from ggsched.backend.processors import usable_processors

    models: list[str] = []
    with suppress(OSError, UnicodeDecodeError):
        models = _CPU.findall(contents("/proc/cpuinfo").decode())
    kinds = ", ".join(dict.fromkeys(models)) or "a processor of unknown model"
    memory = nbytes_text(physical_memory_nbytes())
    return (
        f"{kinds}; {len(usable_processors())} of {os.cpu_count()} threads usable; memory {memory}"
    )


def private_names() -> dict[str, str]:
    """Return what stands for people and this machine, with what is written instead."""
    found: dict[str, str] = {}
    for name in ("USER", "LOGNAME", "USERNAME", "SUDO_USER"):
        found[os.environ.get(name, "")] = "USER"
    home = ""
    with suppress(RuntimeError, KeyError, ImportError):
        import pwd

        account = pwd.getpwuid(os.getuid())
        found[account.pw_name] = "USER"
        home = account.pw_dir
    for folder in (home, str(Path("~").expanduser())):
        if folder.strip("/"):
            found[folder.rstrip("/")] = "~"
    for host in (socket.gethostname(), os.environ.get("HOSTNAME", "")):
        found |= {host: "HOST", host.partition(".")[0]: "HOST"}
    found.pop("", None)
    return found


def without_names(text: str, names: dict[str, str]) -> str:
    """Return a text without private names, and with the last part alone of other folders' paths."""
    for name in sorted(names, key=len, reverse=True):
        text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", names[name], text)
    return _PATH.sub(lambda found: ".../" + found[0].partition("/site-packages/")[2], text)
