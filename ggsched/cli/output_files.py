"""Files that commands write: checked before anything is computed, and never one that is read."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, Final

import click

from ggsched.errors import UsageError

_READ: Final = ("model", "prompt_file", "script", "suppressions", "text_file", "topology")
"""Parameters that name a file to read."""


def refuse_overwriting(ctx: click.Context) -> None:
    """Refuse to write a file that the command reads, one file twice, or a file named ``-``.

    Raises:
        UsageError: two parameters name the same file; or one is ``-``, which means standard output
            elsewhere, where commands write something else.
    """
    given = ctx.params
    used = {_real(given[n]): f"the {n.replace('_', ' ')}" for n in _READ if given.get(n)}
    for param in ctx.command.get_params(ctx):
        path = given.get(param.name or "")
        if not (isinstance(param.type, click.Path) and param.type.writable and path):
            continue
        if path == "-":
            what = f"{param.opts[0]} writes a file, not standard output"
            raise UsageError(what, where=path, hint="name a file; ./- is one of that name")
        where = _real(path)
        if where in used and (os.path.isfile(where) or not os.path.exists(where)):
            what = f"{param.opts[0]} would write over {used[where]}"
            raise UsageError(what, where=path, hint="name another file")
        used[where] = param.opts[0]


def check_writable(path: str | None, what: str) -> None:
    """Refuse a path that cannot be written, if there is one; an existing file is not changed.

    Raises:
        UsageError: it cannot.
    """
    if path is None:
        return
    is_new = not os.path.lexists(path)
    try:
        with open(path, "ab"):
            pass
        if is_new:
            os.remove(path)
    except (OSError, ValueError) as error:
        raise _unwritable(path, what, error) from error


@contextmanager
def output_file(path: str, what: str) -> Iterator[BinaryIO]:
    """Open a file to write it.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        with open(path, "wb") as file:
            yield file
    except (OSError, ValueError) as error:
        raise _unwritable(path, what, error) from error


def _unwritable(path: str, what: str, error: OSError | ValueError) -> UsageError:
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return UsageError(f"cannot write {what}", where=path, why=why)


def _real(path: str) -> str:
    try:
        return os.path.realpath(path)
    except ValueError:  # a zero byte
        return path
