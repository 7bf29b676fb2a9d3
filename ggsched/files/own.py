"""Caches of code, kernels and weights: read only where nobody but the user can write.

Compiled code in a cache is run as it is. Files and folders that belong to somebody else, or that
somebody else can write, are refused, together with what is above them: who can rename a folder can
replace it. The system's administrator, and a group that has no member but the user, are trusted.
"""

import errno
import grp
import logging
import os
import pwd
import stat
from functools import cache
from pathlib import Path
from typing import Final

from ggsched.files.reading import MAX_NBYTES, contents

_LOG: Final = logging.getLogger("ggsched")


def cache_home() -> Path | None:
    """Return the folder of the user's caches, as XDG names it; None where there is no home.

    Relative paths in ``XDG_CACHE_HOME`` are ignored, as the XDG specification has it.
    """
    base = os.environ.get("XDG_CACHE_HOME", "").strip()
    if os.path.isabs(base):
        return Path(base)
    try:
        return Path.home() / ".cache"
    except RuntimeError:
        return None


def refusal(path: Path) -> str:
    """Return why a file or folder is not the user's alone, or "".

    Parts of the path that are not there are nobody's. Links are judged by who made them and by
    what they lead to.
    """
    named = Path(os.path.abspath(path))
    found = dict.fromkeys((named, *named.parents))
    try:
        real = Path(os.path.realpath(named))
    except ValueError:  # a zero byte or half a character
        return "its name is not that of a file"
    found |= dict.fromkeys((real, *real.parents))
    return next(filter(None, map(_refusal, found)), "")


def _refusal(path: Path) -> str:
    try:
        found = os.lstat(path)
    except OSError:  # it is not there, or cannot be read either
        return ""
    if found.st_uid not in (0, os.geteuid()):
        return f"{path} belongs to another user"
    mode = found.st_mode
    # Of a folder with the sticky bit, such as /tmp, only the owner of an entry can rename it.
    if stat.S_ISLNK(mode) or (stat.S_ISDIR(mode) and mode & stat.S_ISVTX):
        return ""
    if mode & stat.S_IWOTH or (mode & stat.S_IWGRP and not _is_own_group(found.st_gid)):
        return f"others can write {path} (chmod go-w)"
    return ""


@cache
def _is_own_group(group: int) -> bool:
    """Whether a group has no member but the user, as systems with a umask of 002 make it."""
    try:
        me, found = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return me.pw_gid == group and found.gr_name == me.pw_name and {*found.gr_mem} <= {me.pw_name}


def is_own(path: Path) -> bool:
    """Return whether a cache can be used; warn once of what is not the user's alone."""
    why = refusal(path)
    if why:
        _warn(why)
    return not why


@cache
def _warn(why: str) -> None:
    _LOG.warning("what caches hold there is not used: %s", why)


def own_contents(path: Path, limit: int = MAX_NBYTES) -> bytes:
    """Return what a file of a cache contains.

    Raises:
        OSError: it cannot be read, or is not the user's alone.
    """
    if not is_own(path):
        raise OSError(errno.EPERM, "it is not the user's alone")
    return contents(path, limit)
