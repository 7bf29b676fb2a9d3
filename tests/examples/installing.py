"""Plug-ins as if they were installed: on the path, with the metadata of an installation."""

import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def as_installed(source: Path, metadata: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Let the plug-in of a folder be found; give the name of its package.

    Args:
        source: Folder with its ``pyproject.toml``.
        metadata: Folder for what an installation would write.
        monkeypatch: Takes both from the path again.
    """
    project = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    group = project["entry-points"]["ggsched.backends"]
    (package,) = {value.partition(":")[0] for value in group.values()}
    info = metadata / f"{package}-{project['version']}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    points = [f"{name} = {value}" for name, value in group.items()]
    (info / "entry_points.txt").write_text("\n".join(["[ggsched.backends]", *points, ""]))
    for folder in {source, metadata}:
        monkeypatch.syspath_prepend(folder)
    try:
        yield package
    finally:
        for module in [m for m in sys.modules if m.partition(".")[0] == package]:
            del sys.modules[module]
