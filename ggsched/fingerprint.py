"""Distinguishes states of Python sources, since all checkouts have one version."""

import hashlib
from functools import cache
from importlib.resources import files
from pathlib import Path

from ggsched.files.reading import contents


@cache
def fingerprint(*applications: str) -> str:
    """Return a short hash of the sources of the core and of applications, as installed here."""
    found = hashlib.blake2b(digest_size=6)
    for package in ("ggsched", *applications):
        folder = Path(str(files(package)))
        for path in sorted(folder.rglob("*.py")):
            found.update(path.relative_to(folder).as_posix().encode())
            found.update(contents(path))
    return found.hexdigest()
