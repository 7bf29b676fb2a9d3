"""Distinguishes states of the sources, since all checkouts have one version."""

import hashlib
from functools import lru_cache
from pathlib import Path

from ggsched.files.reading import contents


@lru_cache(maxsize=1)
def fingerprint() -> str:
    """Return a short hash of the sources of this package, as they are installed here."""
    folder = Path(__file__).parent
    found = hashlib.blake2b(digest_size=6)
    for path in sorted(folder.rglob("*.py")):
        found.update(path.relative_to(folder).as_posix().encode())
        found.update(contents(path))
    return found.hexdigest()
