"""``ggsched new-backend``: write a plug-in that passes the conformance kit, to start from."""

import contextlib
import keyword
import re
import shutil
import tempfile
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import click

from ggsched.backend.plugins import find_plugins
from ggsched.cli.console import output, write_json
from ggsched.cli.options import json_option, option
from ggsched.errors import UsageError
from ggsched.files.reading import package_text

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,39}", re.ASCII)
_RESERVED: Final = frozenset({"all", "elsewhere", "ggsched", "host", "none", "test", "tests"})
"""Names that mean something else: in options, in the kit, in the names of files."""
_SUFFIX: Final = ".in"


@click.command(name="new-backend")
@click.argument("name")
@option(
    "--dir folder",
    "Folder to make. Default: ggsched-NAME.",
    click.Path(path_type=Path),
    metavar="DIR",
)
@json_option
def new_backend(name: str, folder: Path | None, as_json: bool) -> None:
    """Write a plug-in for the backend NAME, with tests.

    It passes the conformance kit from the start; docs/how-to/write-a-backend.md goes on from there.
    """
    place = folder or Path(distribution_of(checked_name(name)))
    written = write_backend(name, place)
    if as_json:
        write_json({"name": name, "folder": str(place), "files": [str(p) for p in written]})
        return
    console = output()
    for path in written:
        console.print(str(path), soft_wrap=True)
    for line in (
        "",
        "Install it and run the kit:",
        f"  pip install -e '{place}[test]'",
        f"  ggsched conform {name}",
    ):
        console.print(line, soft_wrap=True)


def checked_name(name: str) -> str:
    """Return a name that a new backend can have.

    Raises:
        UsageError: it is not a name, or somebody has it.
    """
    hint = "small letters, digits and _, from a letter on: e.g. mydevice"
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} is not a name for a backend", hint=hint)
    if keyword.iskeyword(name) or name in _RESERVED:
        raise UsageError(f"{name!r} has another meaning", hint="choose another name")
    for plugin in find_plugins():
        if plugin.name == name:
            by = f"by {plugin.distribution} {plugin.version}" if plugin.distribution else ""
            raise UsageError(f"a backend {name!r} is installed", why=by, hint="choose another name")
    if find_spec(package_of(name)) is not None:
        raise UsageError(
            f"there is a package {package_of(name)} already", hint="choose another name"
        )
    return name


def distribution_of(name: str) -> str:
    """Return the name under which the plug-in is installed."""
    return f"ggsched-{name.replace('_', '-')}"


def package_of(name: str) -> str:
    """Return the name under which the plug-in is imported."""
    return f"ggsched_{name}"


def write_backend(name: str, folder: Path) -> tuple[Path, ...]:
    """Write the plug-in into a new folder, all of it or nothing.

    Args:
        name: Name of the backend.
        folder: Folder that does not exist, in one that does.

    Returns:
        The files.

    Raises:
        UsageError: a bad name; the folder exists; or it cannot be written.
    """
    checked_name(name)
    if folder.exists() or folder.is_symlink():
        raise UsageError(
            "it exists already", where=str(folder), hint="name another folder with --dir"
        )
    parent = folder.absolute().parent
    if not parent.is_dir():
        raise UsageError("there is no such folder", where=str(parent), hint="make it first")
    contents = dict(render(name))
    try:
        with _draft(parent) as draft:
            for relative, text in contents.items():
                path = draft / relative
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8", newline="\n")
            draft.chmod(0o755)  # a temporary folder is for its owner only
            draft.rename(folder)
    except OSError as error:
        raise UsageError(
            "it cannot be written", where=str(folder), why=error.strerror or str(error)
        ) from error
    return tuple(folder / relative for relative in contents)


@contextlib.contextmanager
def _draft(parent: Path) -> Iterator[Path]:
    """Give a folder that is gone afterwards, unless it was renamed."""
    folder = Path(tempfile.mkdtemp(prefix=".ggsched-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def render(name: str) -> Iterator[tuple[str, str]]:
    """Yield the files of a plug-in: path and text."""
    tokens = {"@NAME@": name, "@PACKAGE@": package_of(name), "@DIST@": distribution_of(name)}
    for path in _templates(files("ggsched_commands") / "template", ""):
        text = package_text("ggsched_commands", f"template/{path}{_SUFFIX}")
        for token, value in tokens.items():
            text = text.replace(token, value)
            path = path.replace(token, value)
        yield path, text


def _templates(folder: Traversable, prefix: str) -> Iterator[str]:
    for entry in sorted(folder.iterdir(), key=lambda e: e.name):
        if entry.is_dir():
            yield from _templates(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(_SUFFIX):
            yield f"{prefix}{entry.name.removesuffix(_SUFFIX)}"
