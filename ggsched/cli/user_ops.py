"""Modules that register ops: named by ``GGSCHED_OPS``, or by ``--op MODULE:NAME``."""

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from ggsched.cli.interruption import is_interruption
from ggsched.errors import GgschedError, UsageError


def import_modules(names: Sequence[str]) -> None:
    """Import modules that register ops; those in the current folder are found too.

    Raises:
        UsageError: there is no such module, or it fails.
    """
    for name in names:
        folder = os.getcwd()
        sys.path.insert(0, folder)
        try:
            import_module(name)
        except Exception as error:
            if isinstance(error, GgschedError) or is_interruption(error):
                raise
            raise UsageError(
                f"the module {name!r} cannot be imported",
                where="user-defined ops",
                why=f"{type(error).__name__}: {error}",
            ) from error
        finally:
            sys.path.remove(folder)


def named_op(text: str) -> str:
    """Return the name of an op, having imported its module if the text is ``MODULE:NAME``."""
    module, _, name = text.rpartition(":")
    if module:
        import_modules([module])
    return name
